"""Calls or an answer in JSON: tools and a response schema in one request, within a token budget.

    OMP_NUM_THREADS=1 python -m benchmarks.replies --most 20

Half of the requests are xLAM's, with their tools. The other half asks for a label, beside the tools
of an xLAM request that don't help. All have the same response schema, `{"answer": string}`, and two
examples, an answer and a call. Calls are in the format `xlam`, as this repository's adapter of
SmolLM2-135M-Instruct was trained to write them. All methods decode greedily. Their masks differ:

    ours             calls or an answer within the budget
    xgrammar, tags   calls or an answer: xgrammar's structural tag, an alternative of both
    xgrammar, schema an answer
    free             everything

The budget is a multiple of the tokens of the right reply, EOS included. A reply is finished if it
ends within the budget, and valid if it is calls of the request's tools with valid arguments, or an
answer that obeys the schema. A right reply has the right calls in any order, or the right label.

With `--branches`, the probability of calls that `smc.ask` estimates with its default of 16
particles is compared with that of a run with more particles (256) and another seed, in standard
errors of both together. The budget is 1.25 times the tokens of the right reply, but at least 40, so
that calls fit.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
from tqdm import tqdm

import gcd
import smc
from benchmarks.answers import load
from benchmarks.common import XLAM, head, line, read_rows
from benchmarks.requests import requests
from benchmarks.values import encode, generate, xgrammar_compiler
from experiments.models import ROOT
from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.task import Call, makes_calls, read_xlam, signature
from gcd._languages.tools.call_formats import format_of
from gcd._replies import read_reply

FACTORS = (1, 1.25, 2)
MOST_TOOLS = 4
SCHEMA = {
    "type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"],
    "additionalProperties": False,
}  # fmt: skip
STYLE = "xlam"
INSTRUCTION = "Call the tools below if they help. Otherwise answer in JSON.\n"
EXAMPLE_TOOL = {
    "name": "get_time", "description": "Time in a city",
    "parameters": {"city": {"type": "str"}, "format": {"type": "str", "default": "24h"}},
}  # fmt: skip


class Request(NamedTuple):
    """Messages, tools with JSON schemas, and the right calls or the right label."""

    group: str
    messages: list[dict[str, str]]
    tools: list[dict[str, Any]]
    calls: tuple[Call, ...]
    label: str | None

    @property
    def gold(self) -> str:
        """The right reply."""
        return write(self.calls) if self.label is None else json.dumps({"answer": self.label})

    @property
    def language(self) -> gcd.Automaton:
        """Calls or an answer."""
        answer = gcd.json_schema(SCHEMA, whitespace="spaced")
        return gcd.tool_calls(self.tools, style=STYLE, choice="auto", answer=answer)


def write(calls: tuple[Call, ...]) -> str:
    """Write calls in the format of the requests."""
    return json.dumps([{"name": c.name, "arguments": c.arguments} for c in calls])


def make(count: int) -> Iterator[Request]:
    """Yield `count` requests of each group, in turn."""
    small = (r for r in read_xlam(XLAM).records if len(r.tools) <= MOST_TOOLS)
    labels = [each for each in requests() if each.group == "labels"]
    example = write((Call("get_time", {"city": "Oslo", "format": "24h"}),))
    for record, other in islice(zip(small, labels, strict=False), count):
        tools = to_json_schema_tools(record.tools)
        listed = "\n".join(map(signature, [EXAMPLE_TOOL, *record.tools]))
        shown = [
            {"role": "system", "content": INSTRUCTION + listed},
            {"role": "user", "content": '"We won!"\n\nIs it happy or sad?'},
            {"role": "assistant", "content": '{"answer": "happy"}'},
            {"role": "user", "content": "What time is it in Oslo?"},
            {"role": "assistant", "content": example},
        ]
        asked = [{"role": "user", "content": record.query}]
        yield Request("calls", shown + asked, tools, record.calls, None)
        yield Request("answers", shown + list(other.prompt), tools, (), other.value)


def decode(lm: smc.TransformersLM, request: Request, most: int, processor: Any = None) -> list[int]:
    """Return at most `most` tokens of greedy decoding, without the prompt."""
    masks = [] if processor is None else [processor]
    return generate(lm, encode(lm, request.messages), most, logits_processor=masks)


def xgrammar_processor(lm: smc.TransformersLM, request: Request, tags: bool) -> Any:
    """Return the mask of xgrammar, with calls as tags or for the schema alone."""
    from xgrammar.contrib.hf import LogitsProcessor

    compiler = xgrammar_compiler(lm)
    if not tags:
        return LogitsProcessor(
            compiler.compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)
        )
    one = {"type": "json_schema", "max_whitespace_cnt": 1}
    every = [
        {
            "type": "tag",
            "begin": f'{{"name": "{tool["name"]}", "arguments": ',
            "content": one | {"json_schema": tool["parameters"]},
            "end": "}",
        }
        for tool in request.tools
    ]  # fmt: skip
    calls = {"type": "tags_with_separator", "tags": every, "separator": ", ", "at_least_one": True}
    begin, end = ({"type": "const_string", "value": each} for each in "[]")
    answer = one | {"json_schema": SCHEMA}
    either = {"type": "or", "elements": [
        {"type": "sequence", "elements": [begin, calls, end]}, answer,
    ]}  # fmt: skip
    grammar = compiler.compile_structural_tag({"type": "structural_tag", "format": either})
    return LogitsProcessor(grammar)


def judge(lm: smc.TransformersLM, request: Request, ids: list[int], most: int) -> dict[str, Any]:
    """Return what is true of the reply in the first `most` tokens."""
    eos = lm.tokenizer.eos_token_id
    kept = ids[:most]
    finished = eos in kept
    text = lm.tokenizer.decode(kept[: kept.index(eos)] if finished else kept)
    calls, value = None, None
    tools = gcd.parse_tools(request.tools).tools
    try:
        calls = read_reply(text.encode(), format_of(STYLE), tools, None).calls
        value = json.loads(text if calls is None else calls)
    except ValueError:
        pass
    valid = finished and is_valid(request, calls, value)
    right = False
    if finished and calls is not None and request.label is None:
        right = makes_calls(calls, request.calls, "json")
    elif finished and isinstance(value, dict) and request.label is not None:
        right = str(value.get("answer")).strip().casefold() == request.label.casefold()
    return {
        "text": text, "finished": finished, "valid": valid, "right": right,
        "calls": valid and calls is not None,
    }  # fmt: skip


def is_valid(request: Request, calls: str | None, value: Any) -> bool:
    """Return whether a reply is calls with valid arguments, or a valid answer."""
    schemas = {tool["name"]: tool["parameters"] for tool in request.tools}
    try:
        if calls is None:
            jsonschema.validate(value, SCHEMA)
            return True
        for call in value:
            jsonschema.validate(call["arguments"], schemas[call["name"]])
    except (jsonschema.ValidationError, KeyError):
        return False
    return True


def rows_of(lm: smc.TransformersLM, request: Request) -> Iterator[dict[str, Any]]:
    """Yield the rows of a request: each method and budget."""
    budgets = {factor: budget(lm, request, factor) for factor in FACTORS}
    constraint = gcd.lift(request.language, lm.vocabulary)
    least = constraint.fewest_tokens
    others = {
        "xgrammar, tags": xgrammar_processor(lm, request, tags=True),
        "xgrammar, schema": xgrammar_processor(lm, request, tags=False),
        "free": None,
    }
    found = {name: decode(lm, request, max(budgets.values()), p) for name, p in others.items()}
    for factor, tokens in budgets.items():
        most = max(tokens, least)
        found["ours"] = decode(lm, request, most, smc.BudgetLogitsProcessor(constraint, most))
        for method, ids in found.items():
            yield {"method": method, "factor": factor, **judge(lm, request, ids, most)}


def show_branches(lm: smc.TransformersLM, every: list[Request], reference: int) -> None:
    """Print the probability of calls that is estimated with 16 and with more particles."""
    columns = ("16 particles", f"{reference} particles", "difference, standard errors", "label")
    print(head("right reply", *columns))
    gaps = []
    for request in every:
        prompt = lm.open(request.messages)
        options = {
            "tools": request.tools,
            "style": STYLE,
            "max_tokens": max(40, budget(lm, request, 1.25)),
        }
        few, many = (
            smc.ask(lm, prompt, SCHEMA, seed=seed, particles=n, **options)
            for seed, n in enumerate((16, reference))
        )
        one, other = (reply.branches["calls"] for reply in (few, many))
        error = max(math.hypot(one.error, other.error), 1e-3 * other.probability)
        gaps.append(abs(one.probability - other.probability) / error)
        shown = (f"{each.probability:.2e} +- {each.error:.1e}" for each in (one, other))
        print(line(request.group, *shown, f"{gaps[-1]:.2f}", few.reliability.label), flush=True)
    print(f"\n{sum(gap <= 3 for gap in gaps)} of {len(gaps)} within three standard errors")


def budget(lm: smc.TransformersLM, request: Request, factor: float) -> int:
    """Return a multiple of the tokens of the right reply."""
    return int(factor * (len(lm.tokenizer.encode(request.gold, add_special_tokens=False)) + 1))


def show(rows: list[dict[str, Any]]) -> None:
    """Print shares in percent, by kind of request, budget and method."""
    columns = ("finished", "valid", "calls", "right")
    print(head("right reply", "budget", "method", "requests", *(f"{c}, %" for c in columns)))
    keys = dict.fromkeys((row["group"], row["factor"], row["method"]) for row in rows)
    for key in sorted(keys, key=lambda k: (k[0], k[1], k[2] != "ours", k[2])):
        some = [row for row in rows if (row["group"], row["factor"], row["method"]) == key]
        shares = (f"{100 * statistics.mean(row[c] for row in some):.0f}" for c in columns)
        print(line(key[0], f"{key[1]} times", key[2], len(some), *shares))


def main() -> None:
    """Decode the requests, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--most", type=int, default=20, help="number of requests of each kind")
    parser.add_argument("--rows", type=Path, default=Path("runs/replies.jsonl"))
    parser.add_argument("--branches", action="store_true", help="only probabilities of calls")
    parser.add_argument("--reference", type=int, default=256, help="particles to compare with")
    options = parser.parse_args()
    every = list(make(options.most))
    lm = load(str(ROOT / "models" / "smollm2-xlam"), "cpu")
    if options.branches:
        show_branches(lm, every, options.reference)
        return
    rows = read_rows(options.rows)
    known = {row["number"] for row in rows}
    with options.rows.open("a", encoding="utf-8") as file:
        for number, request in enumerate(tqdm(every)):
            for row in rows_of(lm, request) if number not in known else ():
                rows.append({"number": number, "group": request.group, **row})
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
    show(rows)


if __name__ == "__main__":
    main()
