"""Accuracy and calibration of label probabilities: exact ones compared with common shortcuts.

The label is the name of the tool that a request needs, among the tools of the request: xLAM
requests with at least two tools whose answer calls one of them. The model is asked for the name
only, with the tools in the order of the data and in reverse. All methods use the same prompts in
one run:

    all spellings      smc.choose
    canonical          the same with spellings="canonical"
    first token        probability of the first canonical token, divided equally among the options
                       that begin with it
    length-normalized  mean log-probability of the canonical tokens, EOS included, normalized
    two orders         smc.choose with orders=2, from the same forward passes as the first method

Accuracy and expected calibration error (10 bins of equal width, of the probability of the best
option) are over both orders. Flips are requests whose best option differs between the orders.
Intervals are 95%, percentile bootstrap over requests.

    OMP_NUM_THREADS=1 python -m benchmarks.labels --records ../shared/data/xlam/first_600.jsonl
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import smc
from benchmarks.common import XLAM, head, line
from experiments.harness.config import ModelConfig
from experiments.harness.models import load_model
from experiments.tool_calling.answers import declaration_of, name_of
from experiments.tool_calling.records import ToolRecord, read_xlam

WORDS = 20
BINS = 10
RESAMPLES = 2000
METHODS = ("all spellings", "canonical", "first token", "length-normalized", "two orders")


class Scored(NamedTuple):
    """Result of a method on one request, in one order of its tools.

    Attributes:
        best: the option with the largest probability.
        confidence: its probability.
        is_right: whether it is the tool that the answer calls.
    """

    best: str
    confidence: float
    is_right: bool


def asks_for_one(record: ToolRecord) -> bool:
    """Tell whether a request has several tools and its answer calls one of them."""
    names = [name_of(tool) for tool in record.tools]
    called = {call.name for call in record.calls}
    return (
        len(names) > 1 and len(set(names)) == len(names) and len(called) == 1 and called < {*names}
    )


def prompt_of(record: ToolRecord, tokenizer: Any) -> Callable[[Sequence[str]], str]:
    """Return the function that makes the prompt for the tools in a given order."""
    described = {
        name_of(tool): str(declaration_of(tool).get("description") or "") for tool in record.tools
    }

    def prompt(options: Sequence[str]) -> str:
        lines = [f"- {name}: {' '.join(described[name].split()[:WORDS])}" for name in options]
        said = "\n".join(
            ["Tools:", *lines, f"Request: {record.query}",
             "Which tool does the request need? Answer with its name only."]
        )  # fmt: skip
        return str(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": said}], tokenize=False, add_generation_prompt=True
            )
        )

    return prompt


def both_orders(record: ToolRecord) -> tuple[list[str], list[str]]:
    """Return the names of a request's tools in the order of the data, and in reverse."""
    names = [name_of(tool) for tool in record.tools]
    return names, names[::-1]


def score(record: ToolRecord, options: Sequence[str], shares: Sequence[float]) -> Scored:
    """Compare the best option with the tool that the answer calls."""
    index = int(np.argmax(shares))
    [gold] = {call.name for call in record.calls}
    return Scored(options[index], shares[index], options[index] == gold)


def shortcuts(
    lm: Any, prompts: Sequence[str], options: Sequence[Sequence[str]]
) -> dict[str, list[list[float]]]:
    """Return the probabilities of the two shortcuts, from the canonical tokens, in one pass."""
    spelled = [[lm.vocabulary.segmentation.encode(each) for each in texts] for texts in options]
    flat = [ids for each in spelled for ids in each]
    owner = torch.tensor([i for i, each in enumerate(spelled) for _ in each])
    rows, first = lm.prefill([lm.encode(prompt) for prompt in prompts])
    rows.reorder(owner)
    width = max(map(len, flat))
    padded = torch.tensor([ids + [0] * (width - len(ids)) for ids in flat])
    after = rows.extend(padded, torch.tensor([len(ids) for ids in flat]))
    eos = list(lm.vocabulary.eos_ids)
    mean, begins = [], []
    for row, ids in enumerate(flat):
        begins.append(float(first[owner[row], ids[0]]))
        log_p = begins[-1] + sum(float(after[row, t, token]) for t, token in enumerate(ids[1:]))
        log_p += float(after[row, len(ids) - 1, eos].logsumexp(0))
        mean.append(log_p / (len(ids) + 1))
    found: dict[str, list[list[float]]] = {"first token": [], "length-normalized": []}
    start = 0
    for each in spelled:
        end = start + len(each)
        counts = Counter(ids[0] for ids in each)
        weights = [math.exp(begins[start + i]) / counts[ids[0]] for i, ids in enumerate(each)]
        found["first token"].append([w / sum(weights) for w in weights])
        weights = [math.exp(m) for m in mean[start:end]]
        found["length-normalized"].append([w / sum(weights) for w in weights])
        start = end
    return found


def calibration_error(confidence: np.ndarray, is_right: np.ndarray) -> float:
    """Return the expected calibration error over bins of equal width."""
    index = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gap = np.zeros(BINS)
    np.add.at(gap, index, confidence - is_right)
    return float(np.abs(gap).sum() / confidence.size)


def with_interval(
    values: list[list[Scored]], measure: Callable[[list[list[Scored]]], float]
) -> str:
    """Format a measure in percent with its bootstrap interval over requests."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(RESAMPLES):
        drawn = rng.integers(0, len(values), len(values)).tolist()
        found.append(measure([values[i] for i in drawn]))
    low, high = np.percentile(found, [2.5, 97.5])
    return f"{100 * measure(values):.1f} ({100 * low:.1f} to {100 * high:.1f})"


def accuracy(values: list[list[Scored]]) -> float:
    """Return the share of correct best options."""
    return float(np.mean([each.is_right for pair in values for each in pair]))


def error(values: list[list[Scored]]) -> float:
    """Return the calibration error over both orders."""
    flat = [each for pair in values for each in pair]
    return calibration_error(
        np.array([each.confidence for each in flat]), np.array([each.is_right for each in flat])
    )


def flips(values: list[list[Scored]]) -> float:
    """Return the share of requests whose best option depends on the order."""
    return float(np.mean([pair[0].best != pair[1].best for pair in values]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=Path, default=XLAM, help="JSON lines in xLAM's format")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--minutes", type=float, default=10, help="start no request after this many minutes"
    )
    parser.add_argument("--batch", type=int, default=16, help="requests per batch")
    args = parser.parse_args()
    lm, tokenizer = load_model(ModelConfig(path=args.model))
    records = [record for record in read_xlam(args.records).records if asks_for_one(record)]
    order = np.random.default_rng(0).permutation(len(records)).tolist()
    scored: dict[str, list[list[Scored]]] = defaultdict(list)
    seconds: dict[str, float] = defaultdict(float)
    evidence: list[tuple[float, bool]] = []
    certified: list[float] = []
    sizes: list[int] = []
    started = time.perf_counter()
    for begin in range(0, len(order), args.batch):
        if time.perf_counter() - started > 60 * args.minutes:
            break
        chunk = [records[number] for number in order[begin : begin + args.batch]]
        asks = [prompt_of(record, tokenizer) for record in chunk for _ in range(2)]
        options = [each for record in chunk for each in both_orders(record)]
        prompts = [ask(each) for ask, each in zip(asks, options, strict=True)]
        for prompt in prompts:  # and caches it for all methods
            lm.prefill([lm.encode(prompt)])
        found: dict[str, list[list[float]]] = {}
        for name, ways in (("all spellings", "all"), ("canonical", "canonical")):
            begun = time.process_time()
            choices = smc.choose(lm, prompts, options, spellings=ways)
            seconds[name] += time.process_time() - begun
            found[name] = [list(choice.probabilities) for choice in choices]
            if name == "all spellings":
                certified += [choice.certified for choice in choices]
                says = [choice.log_evidence for choice in choices]
        found |= shortcuts(lm, prompts, options)
        # The result of orders=2: the mean over both orders.
        every = found["all spellings"]
        found["two orders"] = [
            np.mean([shares, every[i ^ 1][::-1]], axis=0).tolist() for i, shares in enumerate(every)
        ]
        for name, rows in found.items():
            results = [score(chunk[i // 2], options[i], row) for i, row in enumerate(rows)]
            scored[name] += [list(pair) for pair in zip(results[::2], results[1::2], strict=True)]
            if name == "all spellings":
                evidence += list(zip(says, [each.is_right for each in results], strict=True))
        sizes += [len(record.tools) for record in chunk]
    count = len(sizes)
    chance = float(np.mean([1 / size for size in sizes]))
    print(f"{count} of {len(records)} requests, {np.mean(sizes):.1f} tools each, chance "
          f"{100 * chance:.1f} %; certified at least {min(certified):.4f}")  # fmt: skip
    print(head("method", "accuracy, %", "calibration error, %", "flips, %", "CPU s of a prompt"))
    seconds["two orders"] = 2 * seconds["all spellings"]
    for name in METHODS:
        spent = seconds.get(name)
        print(line(name, *(with_interval(scored[name], m) for m in (accuracy, error, flips)),
                   "" if spent is None else f"{spent / (2 * count):.2f}"))  # fmt: skip
    evidence.sort()
    half = len(evidence) // 2
    low, high = evidence[:half], evidence[half:]
    print(f"\naccuracy of all spellings where the evidence is below / above its median "
          f"({high[0][0]:.1f} nats): {100 * np.mean([r for _, r in low]):.1f} / "
          f"{100 * np.mean([r for _, r in high]):.1f} %")  # fmt: skip


if __name__ == "__main__":
    main()
