"""Cost and gain of a constraint compared with free text, on requests with known answers.

    pip install '.[benchmark]'
    OMP_NUM_THREADS=1 python -m benchmarks.price

Hard masks make all answers valid, but may lower accuracy (arXiv 2605.26128). This benchmark has 200
requests of two groups of `benchmarks.requests`, extraction and labels, with a seed that no setting
was chosen on. The model is SmolLM2-135M-Instruct. All methods have the same request and budget for
the answer; free text has 50 tokens more:

    free       greedy without a mask. JSON is repaired by the package json-repair, undeclared fields
               are dropped, and the others count even if the value doesn't satisfy the schema
    mask       greedy under xgrammar's mask, with its own white space (locally constrained). The
               fields of an answer that was cut off are read as those of free text
    gcd        greedy under the mask of the budget (`smc.BudgetLogitsProcessor`)
    beam       beam search of width 4 under the same mask
    ask        `smc.ask` with its default arguments
    vote       16 draws under the mask of the budget; the most frequent value of each field
               (self-consistency)
    weighted   `smc.ask` with 16 particles, whose weights undo the bias of the mask
    draft      `gcd` after a free draft, which is in the prompt (arXiv 2603.03305)
    thought    `gcd` after at most 80 tokens of free thought

Rows are appended to a file and never computed twice; `benchmarks.fields` reads them, too. For each
method, the table has the shares of valid answers, of right fields, of right answers, and of answers
that are valid but wrong, and the mean number of tokens computed. Differences of right fields to
free text and to `gcd` have paired 90% bootstrap intervals.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import torch
from tqdm import tqdm

import gcd
import smc
from benchmarks.answers import load
from benchmarks.common import head, line, read_rows
from benchmarks.requests import Request, leaves, requests, same
from benchmarks.values import EXTRA, compile_xgrammar, encode, interval, language, parse

SEED = 72
COUNT = 100
"""Number of requests of each group."""
GROUPS = ("extraction", "labels")
DRAWS = 16
THOUGHT = 80
"""Maximum number of tokens of a thought."""

Row = dict[str, Any]
Requests = list[Request]
"""Requests of one kind, which are answered in a batch."""
Prompts = list[list[int]]


def free(lm: smc.TransformersLM, some: Requests) -> list[Row]:
    """Decode greedily without a mask, and read the answers leniently."""
    return [
        {"text": text, "value": read_leniently(each, text), "tokens": count}
        for each, (text, count) in zip(
            some, _write(lm, _prompts(lm, some), some[0].budget + EXTRA), strict=True
        )
    ]


def read_leniently(request: Request, text: str) -> Any:
    """Return the first JSON object in a text, repaired, or the only label that occurs in it."""
    if request.group == "labels":
        found = [each for each in request.kind if each.casefold() in text.casefold()]
        return found[0] if len(found) == 1 else None
    from json_repair import repair_json

    begin = text.find("{")
    value = repair_json(text[begin:], return_objects=True) if begin >= 0 else None
    value = value[0] if isinstance(value, list) and value else value  # text after the object
    if not isinstance(value, dict):
        return None
    declared = request.kind["properties"]
    return {name: coerce(each, declared[name]) for name, each in value.items() if name in declared}


def coerce(value: Any, schema: Row) -> Any:
    """Convert a text to a number, true or false if the schema asks for one, as pydantic does."""
    if schema.get("type") in ("integer", "boolean") and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return json.loads(value.casefold())
    return value


def mask(lm: smc.TransformersLM, some: Requests) -> list[Row]:
    """Decode greedily under xgrammar's mask."""
    from xgrammar.contrib.hf import LogitsProcessor

    processor = LogitsProcessor(compile_xgrammar(lm, some[0]))
    answers = _write(lm, _prompts(lm, some), some[0].budget, logits_processor=[processor])
    return [
        {"text": text, "value": read_leniently(each, text), "tokens": count,
         "finished": parse(each, text) is not None}
        for each, (text, count) in zip(some, answers, strict=True)
    ]  # fmt: skip


def beam(lm: smc.TransformersLM, some: Requests) -> list[Row]:
    """Search with four beams under the mask of the budget."""
    constraint = gcd.lift(language(some[0]), lm.vocabulary)
    processor = smc.BudgetLogitsProcessor(constraint, some[0].budget)
    prompts = _prompts(lm, some)
    answers = _write(lm, prompts, some[0].budget, num_beams=4, logits_processor=[processor])
    return [
        {"text": text, "value": parse(each, text), "tokens": 4 * count - 3 * len(prompt)}
        for each, prompt, (text, count) in zip(some, prompts, answers, strict=True)
    ]


def greedy(lm: smc.TransformersLM, some: Requests, prompts: Prompts | None = None) -> list[Row]:
    """Decode greedily under the mask of the budget.

    A row has the text up to the end of each token, and the tokens' log-probabilities, of the
    model (`raw`) and renormalized over the mask (`masked`).
    """
    budget, constraint = some[0].budget, gcd.lift(language(some[0]), lm.vocabulary)
    found = _generate(
        lm, prompts or _prompts(lm, some), budget,
        logits_processor=[smc.BudgetLogitsProcessor(constraint, budget)], output_scores=True,
        output_logits=True,
    )  # fmt: skip
    rows = []
    for at, (request, ids, width) in enumerate(zip(some, found.ids, found.widths, strict=True)):
        each = range(len(ids))
        text = lm.tokenizer.decode(ids, skip_special_tokens=True)
        rows.append({
            "text": text, "value": parse(request, text), "tokens": width + len(ids),
            "pieces": [lm.tokenizer.decode(ids[: i + 1], skip_special_tokens=True) for i in each],
            "raw": [float(found.logits[i][at].log_softmax(-1)[ids[i]]) for i in each],
            "masked": [float(found.scores[i][at].log_softmax(-1)[ids[i]]) for i in each],
        })  # fmt: skip
    return rows


def ask(lm: smc.TransformersLM, some: Requests, **options: Any) -> list[Row]:
    """Call `smc.ask_all`; a row has the probabilities of the fields' values."""
    first = some[0]
    replies = smc.ask_all(
        lm, [each.prompt for each in some], first.kind, max_tokens=first.budget, **options
    )
    return [
        {
            "text": reply.text or "", "value": None if reply.text is None else reply.value,
            "tokens": reply.posterior.diagnostics.tokens,
            "probabilities": {
                pointer: {each.value: each.probability for each in field.values}
                for pointer, field in reply.fields.items()
            },
        }
        for reply in replies
    ]  # fmt: skip


def vote(lm: smc.TransformersLM, some: Requests) -> list[Row]:
    """Draw under the mask of the budget, and return the most frequent value of each field."""
    budget, constraint = some[0].budget, gcd.lift(language(some[0]), lm.vocabulary)
    found = smc.sample(
        lm, _prompts(lm, some), constraint, max_tokens=budget, particles=DRAWS,
        proposal=smc.GCD(), algorithm=smc.SMC(ess_threshold=0), seed=0,
    )  # fmt: skip
    rows = []
    for request, posterior in zip(some, found, strict=True):
        ids = [each.ids for each in posterior.particles]
        texts = [lm.tokenizer.decode(each, skip_special_tokens=True) for each in ids]
        values = [parse(request, text) for text in texts]
        rows.append({
            "text": texts[0], "value": most_frequent(values), "texts": texts,
            "tokens": posterior.diagnostics.tokens,
        })  # fmt: skip
    return rows


def most_frequent(values: list[Any]) -> Any:
    """Return the most frequent value, for objects that of each member; the first among equals."""
    if all(isinstance(each, dict) for each in values):
        names = dict.fromkeys(name for each in values for name in each)
        return {name: most_frequent([v[name] for v in values if name in v]) for name in names}
    return json.loads(Counter(map(json.dumps, values)).most_common(1)[0][0])


def after_draft(lm: smc.TransformersLM, some: Requests) -> list[Row]:
    """Write free drafts, then decode greedily under the mask with the drafts in the prompts."""
    return _after(lm, some, [each.prompt for each in some], some[0].budget + EXTRA)


def after_thought(lm: smc.TransformersLM, some: Requests) -> list[Row]:
    """Think freely, then decode greedily under the mask with the thoughts in the prompts."""
    think = "Think first: say in one or two sentences what the text says."
    chats = [
        [{"role": "user", "content": f"{each.prompt[0]['content']}\n{think}"}] for each in some
    ]
    return _after(lm, some, chats, THOUGHT)


def _after(lm: smc.TransformersLM, some: Requests, chats: list[Any], budget: int) -> list[Row]:
    """Write free texts after prompts, then the answers."""
    texts = _write(lm, [encode(lm, chat) for chat in chats], budget)
    form = "JSON" if some[0].group == "extraction" else "the label"
    told = {"role": "user", "content": f"Now give the answer, only {form}."}
    prompts = [
        encode(lm, [*chat, {"role": "assistant", "content": text}, told])
        for chat, (text, _) in zip(chats, texts, strict=True)
    ]
    rows = greedy(lm, some, prompts)
    return [
        row | {"tokens": row["tokens"] + count, "before": text}
        for row, (text, count) in zip(rows, texts, strict=True)
    ]


def _prompts(lm: smc.TransformersLM, some: Requests) -> Prompts:
    """Return the token ids of the requests' prompts."""
    return [encode(lm, each.prompt) for each in some]


class Written(NamedTuple):
    """Answers of `generate`: their ids, the lengths of the prompts, logits, and masked scores."""

    ids: list[list[int]]
    widths: list[int]
    logits: Any
    scores: Any


def _generate(lm: smc.TransformersLM, prompts: Prompts, budget: int, **options: Any) -> Written:
    """Decode a batch greedily, with padding on the left."""
    width, end = max(map(len, prompts)), lm.tokenizer.eos_token_id
    padded = torch.tensor([[end] * (width - len(ids)) + ids for ids in prompts])
    seen = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])
    found = lm.model.generate(
        padded, attention_mask=seen, max_new_tokens=budget, do_sample=False, pad_token_id=end,
        return_dict_in_generate=True, **options,
    )  # fmt: skip
    answers = []
    for row in found.sequences[:, width:].tolist():
        answers.append(row[: row.index(end) + 1] if end in row else row)
    return Written(answers, [len(ids) for ids in prompts], found.logits, found.scores)


def _write(
    lm: smc.TransformersLM, prompts: Prompts, budget: int, **options: Any
) -> list[tuple[str, int]]:
    """Decode a batch greedily; return the texts, and the numbers of tokens of prompt and text."""
    found = _generate(lm, prompts, budget, **options)
    return [
        (lm.tokenizer.decode(ids, skip_special_tokens=True), width + len(ids))
        for ids, width in zip(found.ids, found.widths, strict=True)
    ]


METHODS: dict[str, Callable[[smc.TransformersLM, Requests], list[Row]]] = {
    "free": free,
    "mask": mask,
    "gcd": greedy,
    "beam": beam,
    "draft": after_draft,
    "thought": after_thought,
    "ask": ask,
    "vote": vote,
    "weighted": partial(ask, particles=DRAWS, seed=0),
}


def judge(request: Request, row: Row) -> Row:
    """Return the right fields of an answer, and whether it is finished and obeys the schema."""
    value = row["value"]
    gold, found = dict(leaves(request.value)), dict(leaves(value))
    right = [at in found and same(found[at], wanted) for at, wanted in gold.items()]
    labels = request.group == "labels"
    schema = {"enum": request.kind} if labels else request.kind
    checker = jsonschema.FormatChecker()
    obeys = jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(value)
    return {
        "right": sum(right), "fields": len(right), "whole": all(right),
        "valid": obeys and row.get("finished", True),
    }  # fmt: skip


def show(rows: list[Row]) -> None:
    """Print the table of each group, over the requests that all methods have answered."""
    by_key: dict[tuple[str, int], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        by_key[row["group"], row["number"]][row["method"]] = row
    names = [name for name in METHODS if any(row["method"] == name for row in rows)]
    print(head("group", "method", "requests", "valid, %", "right fields, %", "minus free",
               "minus gcd", "right answers, %", "valid but wrong, %", "tokens"))  # fmt: skip
    for group in GROUPS:
        some = [each for key, each in by_key.items() if key[0] == group and len(each) == len(names)]
        for name in names if some else []:
            own = [each[name] for each in some]
            share = [row["right"] / row["fields"] for row in own]
            mean = f"{100 * statistics.mean(share):.1f}"
            print(line(
                group, name, len(own), _percent(own, "valid"), mean,
                *(_gain(some, name, base) for base in ("free", "gcd")), _percent(own, "whole"),
                f"{100 * statistics.mean(row['valid'] and not row['whole'] for row in own):.0f}",
                f"{statistics.mean(row['tokens'] for row in own):.0f}",
            ))  # fmt: skip


def _gain(some: list[dict[str, Row]], name: str, base: str) -> str:
    """Write how many more right fields a method has than another, with the interval."""
    if name == base or base not in some[0]:
        return ""
    pairs = [(each[name], each[base]) for each in some]
    return interval([(a["right"] - b["right"]) / a["fields"] for a, b in pairs])


def _percent(rows: list[Row], name: str) -> str:
    """Return the share of the rows with a property, in percent."""
    return f"{100 * statistics.mean(row[name] for row in rows):.0f}"


def batches() -> list[list[tuple[int, Request]]]:
    """Return the requests with their numbers, those of one kind together, in halves."""
    kinds: dict[str, list[tuple[int, Request]]] = defaultdict(list)
    for number, each in enumerate(requests(COUNT, SEED)):
        if each.group in GROUPS:
            kinds[each.group + json.dumps(each.kind)].append((number, each))
    return [each[half::2] for half in range(2) for each in kinds.values()]


def main() -> None:
    """Answer the requests and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--most", type=int, default=COUNT, help="requests of each batch")
    parser.add_argument("--rows", type=Path, default=Path("runs/price.jsonl"))
    parser.add_argument("--table", action="store_true", help="only print the table of --rows")
    options = parser.parse_args()
    rows = read_rows(options.rows)
    if not options.table:
        known = {(row["number"], row["method"]) for row in rows}
        lm = load("none", "cpu")
        todo = [(method, batch) for batch in batches() for method in options.methods]
        with options.rows.open("a", encoding="utf-8") as file:
            for method, batch in tqdm(todo):
                some = [each for each in batch[: options.most] if (each[0], method) not in known]
                found = METHODS[method](lm, [request for _, request in some]) if some else []
                for (number, request), row in zip(some, found, strict=True):
                    key = {"group": request.group, "number": number, "method": method}
                    rows.append(key | row | judge(request, row))
                    file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
    show(rows)


if __name__ == "__main__":
    main()
