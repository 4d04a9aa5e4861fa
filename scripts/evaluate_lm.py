"""How often a model's greedy, unconstrained answer is right: the table of its model card.

    python -m scripts.evaluate_lm --model models/toolcall-lm --num 250 --markdown figures.md

Rows are held-out generated requests, the same requests with the tool lists exchanged between them
(a model that reads its prompt then fails), and real records: of an xLAM file those from `--skip`
on, which were not trained on, and of Hammer's files all. Records whose prompt is longer than the
context are counted as wrong, and their number is in the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.small_lm.greedy import greedy_answers
from experiments.tool_calling.answers import STYLES, makes_calls, write_answer
from experiments.tool_calling.generator import generate
from experiments.tool_calling.prompts import build_prompt
from experiments.tool_calling.records import ToolRecord, read_toolcalls, read_xlam

_PIECE = 64  # records between two moves of the progress bar
EVALUATION_SEED = 1


@dataclasses.dataclass(frozen=True)
class Figure:
    """One row of the table. `lengths` are median tokens of prompts and gold answers."""

    records: str
    style: str
    count: int
    exact: float
    too_long: int
    lengths: tuple[int, int]


def with_exchanged_tools(records: Sequence[ToolRecord]) -> list[ToolRecord]:
    """Each record with the tools of a following one that offers none of its own called tools."""
    exchanged = []
    for position, record in enumerate(records):
        called = {call.name for call in record.calls}
        for step in range(1, len(records)):
            tools = records[(position + step) % len(records)].tools
            if called.isdisjoint(tool["name"] for tool in tools):
                exchanged.append(dataclasses.replace(record, tools=tools))
                break
    return exchanged


def evaluate(
    model: Any,
    tokenizer: Any,
    name: str,
    records: Sequence[ToolRecord],
    style: str,
    max_new_tokens: int,
) -> Figure:
    """Greedy exact match on one list of records in one style."""
    prompts = [build_prompt(record, style, tokenizer=tokenizer) for record in records]
    golds = [write_answer(record.calls, record.tools, style) for record in records]
    order = sorted(range(len(records)), key=lambda i: len(prompts[i]))
    right = too_long = 0
    for start in tqdm(range(0, len(order), _PIECE), desc=f"{name}, {style}", unit="batch"):
        piece = order[start : start + _PIECE]
        answers = greedy_answers(
            model, tokenizer, [prompts[i] for i in piece], max_new_tokens=max_new_tokens
        )
        for i, answer in zip(piece, answers, strict=True):
            too_long += answer is None
            right += answer is not None and makes_calls(answer, records[i].calls, style)
    return Figure(
        records=name,
        style=style,
        count=len(records),
        exact=right / len(records),
        too_long=too_long,
        lengths=(_median_tokens(tokenizer, prompts), _median_tokens(tokenizer, golds)),
    )


def _median_tokens(tokenizer: Any, texts: Sequence[str]) -> int:
    lengths = sorted(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    return lengths[len(lengths) // 2]


def markdown(figures: Sequence[Figure]) -> str:
    """The table of the model card."""
    lines = [
        "| records | style | n | exact match | too long | median tokens: prompt, answer |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for f in figures:
        prompt, answer = f.lengths
        lines.append(
            f"| {f.records} | {f.style} | {f.count} | {f.exact:.1%} | {f.too_long} "
            f"| {prompt}, {answer} |"
        )
    return "\n".join(lines) + "\n"


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="models/toolcall-lm", help="directory or hub name")
    parser.add_argument("--num", type=int, default=250, help="held-out generated records")
    parser.add_argument("--seed", type=int, default=EVALUATION_SEED)
    parser.add_argument("--data", type=Path, nargs="*", default=[], help=".jsonl (xLAM) or .json")
    parser.add_argument(
        "--skip", type=int, default=500, help="first records of a .jsonl passed over"
    )
    parser.add_argument("--limit", type=int, default=None, help="at most so many of each file")
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here")
    parser.add_argument("--markdown", type=Path, default=None, help="write the table here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> list[Figure]:
    """Measure, print, write."""
    arguments = parse_arguments(argv)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    model = model.to(arguments.device)
    held_out = generate(arguments.num, arguments.seed, split="held_out")
    sources = {
        "generated, held out": held_out,
        "the same, tool lists exchanged": with_exchanged_tools(held_out),
    }
    for path in arguments.data:
        if path.suffix == ".jsonl":
            read = read_xlam(path).records[arguments.skip :]
            name = f"{path.parent.name}/{path.name} from {arguments.skip} on"
        else:
            read, name = read_toolcalls(path).records, f"{path.parent.name}/{path.name}"
        sources[name] = list(read[: arguments.limit])
    figures = [
        evaluate(model, tokenizer, name, records, style, arguments.max_new_tokens)
        for name, records in sources.items()
        if records
        for style in STYLES
    ]
    print(markdown(figures))
    if arguments.json is not None:
        rows = [dataclasses.asdict(figure) for figure in figures]
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    if arguments.markdown is not None:
        arguments.markdown.write_text(markdown(figures))
    return figures


if __name__ == "__main__":
    main()
