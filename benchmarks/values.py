"""Right fields and processor time of `smc.ask`, and of what people use instead.

    OMP_NUM_THREADS=1 python -m benchmarks.values --half held-out

All methods have the same model (SmolLM2-135M-Instruct, for tool calls with the adapter of this
repository), prompts and budgets. `benchmarks.requests` makes the requests.

    greedy     `generate` of transformers with `smc.BudgetLogitsProcessor`
    beam 4     the same with four beams
    xgrammar   greedy under xgrammar's mask, with its own white space
    free       greedy without a mask; the first JSON value (or the label) of the text, with up to
               two retries that show the error to the model
    ask        `smc.ask` with its default arguments

A field is right if it has the known value; case and surrounding spaces don't matter. Fields that
shouldn't be there count as wrong. Free texts aren't counted. For them the table has the share of
words that occur in the request, and how many are empty. Rows are appended to a file and never
computed twice. The table has means, and the differences of the right fields per request to `ask`
with paired 90% bootstrap intervals.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import numpy as np
import torch
from scipy.stats import bootstrap
from tqdm import tqdm

import gcd
import smc
from benchmarks.answers import load
from benchmarks.common import head, line, read_rows
from benchmarks.requests import GROUPS, Request, leaves, requests, same
from experiments.models import ROOT

ADAPTERS = {"tool calls": str(ROOT / "models" / "smollm2-xlam")}
RETRIES = 2
EXTRA = 50
"""Additional tokens without a mask, for text around the answer."""


class Answer(NamedTuple):
    """The text of an answer, its value (None if it can't be read), and the tokens computed."""

    text: str
    value: Any
    tokens: int


def language(request: Request) -> gcd.Automaton:
    """Return the language of a request's answers, as `smc.ask` compiles it."""
    if request.group == "labels":
        return gcd.choice(request.kind)
    if request.group == "tool calls":
        return gcd.tool_calls(request.kind)
    return gcd.json_schema(request.kind, whitespace="spaced")


def encode(lm: smc.TransformersLM, prompt: Any) -> list[int]:
    """Return the token ids of a text or of messages."""
    if isinstance(prompt, str):
        return list(lm.encode(prompt))
    ids = lm.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
    return list(ids)


def parse(request: Request, text: str) -> Any:
    """Return the value of an answer; None if it has none."""
    if request.group == "labels":
        return text if text in request.kind else None
    try:
        return json.loads(text)
    except ValueError:
        return None


def generate(lm: smc.TransformersLM, prompt: list[int], budget: int, **options: Any) -> list[int]:
    """Return the tokens that `generate` of transformers gives without sampling."""
    ids = lm.model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=budget, do_sample=False, **options,
    )  # fmt: skip
    return list(ids[0, len(prompt) :].tolist())


def answer(
    lm: smc.TransformersLM, prompt: list[int], request: Request, **options: Any
) -> tuple[str, int]:
    """Return the text of an answer, and the number of its tokens."""
    ids = generate(lm, prompt, request.budget, **options)
    return lm.tokenizer.decode(ids, skip_special_tokens=True), len(ids)


def masked(beams: int) -> Callable[[smc.TransformersLM, Request], Answer]:
    """Return the method of greedy decoding or beam search under this library's mask."""

    def run(lm: smc.TransformersLM, request: Request) -> Answer:
        prompt, constraint = encode(lm, request.prompt), gcd.lift(language(request), lm.vocabulary)
        processor = smc.BudgetLogitsProcessor(constraint, request.budget)
        text, count = answer(lm, prompt, request, num_beams=beams, logits_processor=[processor])
        return Answer(text, parse(request, text), len(prompt) + beams * count)

    return run


@cache
def xgrammar_compiler(lm: smc.TransformersLM) -> Any:
    """Return xgrammar's compiler for a model's tokenizer."""
    import xgrammar

    size = lm.model.config.vocab_size
    info = xgrammar.TokenizerInfo.from_huggingface(lm.tokenizer, vocab_size=size)
    return xgrammar.GrammarCompiler(info)


def compile_xgrammar(lm: smc.TransformersLM, request: Request) -> Any:
    """Return xgrammar's grammar of a request's answers."""
    compiler = xgrammar_compiler(lm)
    if request.group == "labels":
        return compiler.compile_regex("|".join(map(re.escape, request.kind)))
    return compiler.compile_json_schema(json.dumps(schema_of(request)))


def run_xgrammar(lm: smc.TransformersLM, request: Request) -> Answer:
    """Decode greedily under xgrammar's mask."""
    from xgrammar.contrib.hf import LogitsProcessor

    prompt, processor = encode(lm, request.prompt), LogitsProcessor(compile_xgrammar(lm, request))
    text, count = answer(lm, prompt, request, logits_processor=[processor])
    return Answer(text, parse(request, text), len(prompt) + count)


def schema_of(request: Request) -> Any:
    """Return the JSON schema of a request's answers."""
    if request.group != "tool calls":
        return request.kind
    calls = []
    for tool in gcd.parse_tools(request.kind).tools:
        members = {"name": {"const": tool.name}, "arguments": tool.schema}
        calls.append({
            "type": "object", "properties": members, "required": list(members),
            "additionalProperties": False,
        })  # fmt: skip
    return {"type": "array", "items": {"anyOf": calls}, "minItems": 1}


def run_free(lm: smc.TransformersLM, request: Request) -> Answer:
    """Decode greedily without a mask, and read the answer out of the text."""
    prompt, tokens, text = request.prompt, 0, ""
    for _ in range(1 + RETRIES):
        ids = encode(lm, prompt)
        text, count = answer(lm, ids, request._replace(budget=request.budget + EXTRA))
        tokens += len(ids) + count
        value, error = read(request, text)
        if error is None:
            return Answer(text, value, tokens)
        if isinstance(prompt, str):
            prompt = f"{prompt}{text}\nThis is wrong: {error}. Calls in JSON:\n"
        else:
            told = {"role": "user", "content": f"This is wrong: {error}. Answer again."}
            prompt = [*prompt, {"role": "assistant", "content": text}, told]
    return Answer(text, None, tokens)


def read(request: Request, text: str) -> tuple[Any, str | None]:
    """Return the value in a text, and the error; None if the value is valid."""
    if request.group == "labels":
        found = [each for each in request.kind if each.casefold() in text.casefold()]
        return (found[0], None) if len(found) == 1 else (None, "expected one of the labels")
    begin = min((i for i in map(text.find, "[{") if i >= 0), default=0)
    try:
        value, _ = json.JSONDecoder().raw_decode(text[begin:])
    except ValueError as error:
        return None, str(error)
    try:
        jsonschema.validate(value, schema_of(request))
    except jsonschema.ValidationError as error:
        return None, error.message
    return value, None


def run_ask(lm: smc.TransformersLM, request: Request) -> Answer:
    """Call `smc.ask`."""
    reply = smc.ask(lm, request.prompt, request.kind, max_tokens=request.budget)
    try:
        value = reply.value
    except ValueError:
        value = None
    return Answer(reply.text or "", value, reply.posterior.diagnostics.tokens)


METHODS: dict[str, Callable[[smc.TransformersLM, Request], Answer]] = {
    "greedy": masked(1),
    "beam 4": masked(4),
    "xgrammar": run_xgrammar,
    "free": run_free,
    "ask": run_ask,
}


def log_p(lm: smc.TransformersLM, request: Request, text: str) -> float:
    """Return the model's log-probability of a text, in the tokenizer's spelling, and EOS."""
    prompt = encode(lm, request.prompt)
    ids = [*lm.tokenizer.encode(text, add_special_tokens=False), lm.tokenizer.eos_token_id]
    with torch.inference_mode():
        rows = lm.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    rows = rows.float().log_softmax(-1)
    return float(rows.gather(1, torch.tensor(ids)[:, None]).sum())


def measure(lm: smc.TransformersLM, request: Request, method: str) -> dict[str, Any]:
    """Return the row of one request and method."""
    started = time.process_time()
    given = METHODS[method](lm, request)
    seconds = time.process_time() - started
    gold, found = dict(leaves(request.value)), dict(leaves(given.value))
    right = [at in found and same(found[at], value) for at, value in gold.items()]
    named = [at for at in found if at.lstrip("/") not in request.free]
    texts = [str(found.get(f"/{name}") or "") for name in request.free]
    words = [word.casefold() for text in texts for word in re.findall(r"\w+", text)]
    source = set(re.findall(r"\w+", request.source.casefold()))
    return {
        "text": given.text,
        "right": sum(right), "fields": max(len(right), len(named)),
        "whole": all(right) and len(named) == len(right),
        "valid": given.value is not None, "seconds": seconds, "tokens": given.tokens,
        "words": len(words), "from_source": sum(word in source for word in words),
        "empty": sum(not text for text in texts), "log_p": log_p(lm, request, given.text),
    }  # fmt: skip


def interval(differences: list[float]) -> str:
    """Write a mean in points and its paired 90% bootstrap interval."""
    values = 100 * np.array(differences)
    if values.std() == 0:
        return f"{values.mean():+.1f}"
    low, high = bootstrap(
        (values,), np.mean, confidence_level=0.9, rng=np.random.default_rng(0)
    ).confidence_interval
    return f"{values.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table of each group, over the requests that all methods have answered."""
    names = [name for name in METHODS if any(row["method"] == name for row in rows)]
    by_key = {(row["group"], row["number"], row["method"]): row for row in rows}
    print(head("group", "method", "requests", "right fields, %", "ask minus this, points",
               "right answers, %", "valid, %", "words from the request, %", "empty",
               "log p", "tokens", "time / greedy, median; 95%"))  # fmt: skip
    for group in (*GROUPS, "all"):
        keys = sorted({
            (row["group"], row["number"]) for row in rows if group in (row["group"], "all")
        })  # fmt: skip
        for name in names:
            both = [
                k for k in keys if all((*k, each) in by_key for each in (name, "ask", "greedy"))
            ]
            some = [by_key[*key, name] for key in both]
            if not some:
                continue
            share = [row["right"] / row["fields"] for row in some]
            asked = [by_key[*key, "ask"] for key in both]
            gain = [a["right"] / a["fields"] - s for a, s in zip(asked, share, strict=True)]
            ratios = [
                row["seconds"] / by_key[*key, "greedy"]["seconds"]
                for key, row in zip(both, some, strict=True)
            ]
            words = sum(row["words"] for row in some)
            print(line(
                group, name, len(some), f"{100 * statistics.mean(share):.1f}",
                "" if name == "ask" else interval(gain),
                f"{100 * statistics.mean(row['whole'] for row in some):.0f}",
                f"{100 * statistics.mean(row['valid'] for row in some):.0f}",
                f"{100 * sum(row['from_source'] for row in some) / words:.0f}" if words else "",
                sum(row["empty"] for row in some),
                f"{statistics.mean(row['log_p'] for row in some):.1f}",
                f"{statistics.mean(row['tokens'] for row in some):.0f}",
                f"{np.median(ratios):.2f}; {np.percentile(ratios, 95):.2f}",
            ))  # fmt: skip


def main() -> None:
    """Answer the requests, one of each group in turn, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--half", choices=["tuning", "held-out"], default="tuning")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--most", type=int, help="number of requests of each group")
    parser.add_argument("--rows", type=Path, default=Path("runs/values.jsonl"))
    parser.add_argument("--table", action="store_true", help="only print the table of --rows")
    options = parser.parse_args()
    rows = [row for row in read_rows(options.rows) if row["half"] == options.half]
    if not options.table:
        known = {(row["group"], row["number"], row["method"]) for row in rows}
        odd = options.half == "held-out"
        halves = [[r for r in requests() if r.group == group][odd::2] for group in GROUPS]
        lms = {group: load(ADAPTERS.get(group, "none"), "cpu") for group in ("tool calls", "forms")}
        todo = [
            (number, request)
            for number in range(min(options.most or 100, *map(len, halves)))
            for request in (half[number] for half in halves)
        ]
        with options.rows.open("a", encoding="utf-8") as file:
            for number, request in tqdm(todo):
                lm = lms["tool calls" if request.group == "tool calls" else "forms"]
                for method in options.methods:
                    key = {"group": request.group, "number": number, "method": method}
                    if tuple(key.values()) not in known:
                        rows.append(key | {"half": options.half} | measure(lm, request, method))
                        file.write(json.dumps(rows[-1]) + "\n")
                        file.flush()
    show(rows)


if __name__ == "__main__":
    main()
