"""Stated errors compared with true errors, on problems with a known posterior.

Problems are random models and random patterns over a byte vocabulary, and the same with patterns of
closed fields (numbers, dates, words). Others have SmolLM2 on tool names, dates, numbers and small
JSON objects in canonical tokenization, with the tools in the prompt or not. GCD is the proposal.
For P-GCD, random problems are repeated with an HMM that was distilled from the model's samples, or
with a random HMM. The true posterior of each problem is enumerated, or certified to 0.99 by bounds.
An interval is right if its distance from the truth is at most the truth's own uncertainty. Rows are
appended to a file, and problems in the file are skipped, so the run can be interrupted:

    python -m benchmarks.reliability build/reliability.jsonl --problems 420 --real 32 --pgcd 60
    python -m benchmarks.reliability build/closed.jsonl --problems 0 --real 0 --pgcd 0 --closed 150
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

import gcd
import hmm
import smc
from smc._results.reliability import LABELS, label_of

CERTIFIED = 0.99
LEAST = 0.01
"""Least probability of a text whose interval is checked."""
ROUNDING = 1e-4
"""Nats by which float32 log-probabilities of two runs may differ."""
SEEN = 240
"""Random problems with smaller numbers were used to choose the thresholds of labels."""
SETTINGS = [("smc", 16), ("smc", 64), ("discrete", 16), ("discrete", 64)]
SCALES = (0.15, 0.3, 1.0, 3.0)
HALVES = (
    "chosen on",
    "checked on",
    "closed fields",
    "P-GCD, distilled",
    "P-GCD, random",
    "P-GCD, SmolLM2",
)


class Problem(NamedTuple):
    """A model, a prompt, and a constraint within a budget; and the proposal to sample with."""

    name: str
    lm: smc.LanguageModel
    prompt: str
    constraint: gcd.TokenAutomaton
    budget: int
    proposal: smc.Proposal[Any] = smc.GCD()


def main() -> None:
    """Add rows and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument(
        "--problems", type=int, default=300, help="number of problems with random models"
    )
    parser.add_argument("--real", type=int, default=60, help="number of problems with SmolLM2")
    parser.add_argument("--pgcd", type=int, default=60, help="number of problems with P-GCD")
    parser.add_argument("--closed", type=int, default=0, help="number of problems of closed fields")
    args = parser.parse_args()
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    lines = args.rows.read_text().splitlines() if args.rows.exists() else []
    done = {json.loads(line)["problem"] for line in lines}
    with args.rows.open("a") as file:
        for make, count in (
            (random_problems, args.problems),
            (real_problems, args.real),
            (pgcd_problems, args.pgcd),
            (closed_problems, args.closed),
        ):
            for problem in make(count, done):
                for row in rows_of(problem):
                    file.write(json.dumps(row) + "\n")
                file.flush()
    print_tables([json.loads(line) for line in args.rows.read_text().splitlines()])


def print_tables(rows: list[dict[str, Any]]) -> None:
    """Print how often intervals cover the truth, by label, and what each algorithm costs."""
    print_labels(rows)
    print_costs([row for row in rows if row["known"]])


def print_labels(rows: list[dict[str, Any]]) -> None:
    """Print how often intervals cover the truth, by label."""
    known = [row for row in rows if row["known"]]
    print(f"{len({row['problem'] for row in known})} of {len({r['problem'] for r in rows})} known")
    print("| algorithm | label | problems | runs | evidence covered % | texts covered % | ", end="")
    print("median total variation |\n|---|---|---|---|---|---|---|")
    for algorithm, label, half in product(("smc", "discrete"), LABELS, HALVES):
        runs = [
            row for row in known
            if row["algorithm"] == algorithm and get_label(row) == label
            and half_of(row["problem"]) == half
        ]  # fmt: skip
        if runs:
            texts = [covered for row in runs for covered in texts_covered(row)]
            apart = statistics.median(row["tv"] for row in runs)
            print(f"| {algorithm} | {label} | {half} | {len(runs)} | ", end="")
            print(f"{percent(map(evidence_covered, runs))} | {percent(texts)} | {apart:.4f} |")


def print_costs(known: list[dict[str, Any]]) -> None:
    """Print what each algorithm costs, and its errors."""
    print(
        "\n| problems | algorithm | particles | tokens read, mean | total variation, mean | ",
        end="",
    )
    print("over 0.5 | error of the log evidence, median |\n|---|---|---|---|---|---|---|")
    for kind, (algorithm, particles) in product(("random", "real", "P-GCD"), SETTINGS):
        runs = [
            row for row in known
            if row["problem"].startswith(kind)
            and (row["algorithm"], row["particles"]) == (algorithm, particles)
        ]  # fmt: skip
        if runs:
            wrong = statistics.median(abs(row["log_evidence"] - row["log_truth"]) for row in runs)
            print(
                f"| {len(runs)} {kind} | {algorithm} | {particles} | "
                f"{statistics.mean(row['tokens'] for row in runs):.0f} | "
                f"{statistics.mean(row['tv'] for row in runs):.3f} | "
                f"{sum(row['tv'] > 0.5 for row in runs)} | {wrong:.4f} |"
            )


def half_of(problem: str) -> str:
    """Return the set of a problem: problems on which thresholds were chosen, or other ones."""
    kind, number = problem.rsplit(maxsplit=1)
    if kind == "closed":
        return "closed fields"
    if kind.startswith("P-GCD"):
        return next(half for half in HALVES if kind.startswith(half))
    return "chosen on" if kind == "random" and int(number) < SEEN else "checked on"


def percent(values: Iterable[bool]) -> str:
    """Return the share of values that are true, in percent."""
    some = list(values)
    return f"{100 * statistics.mean(some):.0f}" if some else "–"


def get_label(row: dict[str, Any]) -> str:
    """Return the label of a run."""
    if row["enumerated"]:
        return "certified"
    drawn = row["algorithm"] == "smc"
    looked_at = math.exp(min(0.0, row["log_evidence"] - row["log_upper"]))
    return label_of(row["ess"], row["certified"], looked_at, row["particles"], drawn=drawn)


def evidence_covered(row: dict[str, Any]) -> bool:
    """Tell whether the stated 90% interval covers the log evidence."""
    low, high = row["log_evidence_interval"]
    return bool(low - row["slack"] <= row["log_truth"] <= high + row["slack"])


def texts_covered(row: dict[str, Any]) -> list[bool]:
    """Tell whether the 90% intervals of texts cover the true probabilities of these texts.

    Only the three most probable texts are checked, and only those with more than 1%.
    """
    covered, slack = [], row["slack"]
    for p, truth, low, high in row["texts"][:3]:
        if max(p, truth) >= LEAST:
            covered.append(low - slack <= truth <= high + slack)
    return covered


def closed_problems(count: int, done: set[str]) -> Iterator[Problem]:
    """Yield problems with random models over bytes, and numbers, dates or words as answers."""
    return random_problems(count, done, "closed")


def random_problems(count: int, done: set[str], kind: str = "random") -> Iterator[Problem]:
    """Yield problems with random models over bytes, and random patterns."""
    tokenizer = byte_tokenizer()
    pattern_of = closed_pattern if kind == "closed" else random_pattern
    for k in range(count):
        name = f"{kind} {k}"
        if name in done:
            continue
        torch.manual_seed(k)
        config = LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=32, max_position_embeddings=128, eos_token_id=0, pad_token_id=1,
            bos_token_id=None, initializer_range=0.5,
        )  # fmt: skip
        model = LlamaForCausalLM(config).eval()
        model.lm_head.weight.data.mul_(SCALES[k % len(SCALES)])
        lm = smc.TransformersLM(model, tokenizer)
        constraint = gcd.lift(gcd.regex(pattern_of(random.Random(k))), lm.vocabulary)
        longest = 12 + k % 20
        if constraint.fewest_tokens > longest:
            continue
        yield Problem(name, lm, "hello", constraint, longest)


def pgcd_problems(count: int, done: set[str]) -> Iterator[Problem]:
    """Yield random problems that thresholds weren't chosen on, with an HMM for P-GCD.

    Every other HMM is random. The random lookahead is worse than none, but keeps the estimates
    unbiased.
    """
    skipped = {f"random {k}" for k in range(SEEN)}
    for problem in random_problems(SEEN + count, skipped):
        number = int(problem.name.split()[1])
        kind = ("distilled", "random")[number % 2]
        name = f"P-GCD, {kind} {number}"
        if name in done:
            continue
        assert isinstance(problem.lm, smc.TransformersLM)
        model = distill_hmm(problem.lm, problem.prompt, number, steps=8 * (number % 2 == 0))
        yield problem._replace(name=name, proposal=smc.PGCD(model))


def distill_hmm(lm: smc.TransformersLM, prompt: str, seed: int, *, steps: int) -> hmm.HMM:
    """Fit an HMM to samples of a language model by EM; with zero steps it stays random."""
    generator = torch.Generator().manual_seed(seed)
    start = hmm.HMM.random(8, lm.vocabulary.size, generator=generator)
    if not steps:
        return start
    torch.manual_seed(seed)
    ids = torch.tensor([lm.encode(prompt)]).repeat(64, 1)
    drawn = lm.model.generate(ids, do_sample=True, top_k=0, max_new_tokens=24)
    drawn = drawn[:, ids.shape[1] :]
    lengths = (drawn != 0).sum(dim=1).add(1).clamp(max=drawn.shape[1])
    state = hmm.Step(start)
    for _ in range(steps):
        state = hmm.em_step(state, [(drawn, lengths)], pseudo_counts=0.01)
    return state.hmm


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    """Return a random regular expression with a finite language."""
    kind = rng.choice("lcr" if depth == 0 else "aasssso" if depth == 3 else "lcrasao")
    if kind == "l":
        return "".join(rng.choices("abcdefgh", k=rng.randint(1, 4)))
    if kind == "c":
        return "[" + "".join(sorted(rng.sample("abcdefgh0123", rng.randint(2, 6)))) + "]"
    if kind == "r":
        low = rng.randint(0, 2)
        return f"[{''.join(sorted(rng.sample('abcd0123', rng.randint(2, 4))))}]{{{low},{low + 2}}}"
    parts = [random_pattern(rng, depth - 1) for _ in range(rng.randint(2, 4))]
    if kind == "a":
        return "(" + "|".join(parts) + ")"
    if kind == "o":
        return f"({''.join(parts)})?"
    return "".join(parts)


def closed_pattern(rng: random.Random) -> str:
    """Return the pattern of a number, a date, or one of about 60 words."""
    words = {"".join(rng.choices("abcde", k=rng.randint(2, 3))) for _ in range(60)}
    return rng.choice(["[1-9]?[0-9]", "2[0-4]-0[0-9]", "|".join(sorted(words))])


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = {"<eos>": 0, "<pad>": 1, **{letter: i + 2 for i, letter in enumerate(letters)}}
    fast = Tokenizer(models.BPE(names, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<eos>", pad_token="<pad>")


def real_problems(count: int, done: set[str]) -> Iterator[Problem]:
    """Yield problems with SmolLM2: tool names, dates and numbers."""
    from experiments.tool_calling.prompts import signature
    from experiments.tool_calling.records import read_xlam

    names = [f"real {k}" for k in range(count)]
    if set(names) <= done:
        return
    lm = load_smollm2()
    records = read_xlam("data/xlam/records_500_599.jsonl").records
    rng = random.Random(0)
    for k, name in enumerate(names):
        record, others = records[k % len(records)], rng.sample(records, 12)
        tools = [tool for each in (record, *others[: rng.randint(2, 12)]) for tool in each.tools]
        labels = sorted({str(tool["name"]) for tool in tools})
        told = "\n".join(signature(tool) for tool in tools) if k % 2 else ""
        language, cue = [
            (gcd.choice(labels), "Tool to call:"),
            (gcd.regex("[1-9][0-9]?"), "The number in the request is"),
            (gcd.regex("(0[1-9]|1[0-2])-[0-3][0-9]"), "Month and day are, as in 12-31,"),
            (
                gcd.json_schema(
                    {
                        "type": "object",
                        "properties": {
                            "tool": {"enum": labels},
                            "urgent": {"type": "boolean"},
                            "score": {"type": "integer", "minimum": 0, "maximum": 9},
                        },
                        "required": ["tool", "urgent", "score"],
                        "additionalProperties": False,
                    }
                ),
                "Answer in JSON:",
            ),
        ][k // 2 % 4]
        if name in done:
            continue
        prompt = f"{told}\nRequest: {record.query}\n{cue} ".lstrip()
        yield Problem(name, lm, prompt, gcd.lift(language, lm.vocabulary, literals="canonical"), 40)


def load_smollm2() -> smc.TransformersLM:
    """Load SmolLM2; it caches prompts, which doesn't affect results or counts of tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from experiments.harness.smollm2 import checkpoint

    path = checkpoint()
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(path),
        AutoTokenizer.from_pretrained(path),
    )
    return smc.TransformersLM(model, tokenizer, prompt_bytes=1 << 30)


def rows_of(problem: Problem) -> Iterator[dict[str, Any]]:
    """Yield a row for each setting; one without figures where the truth isn't known."""
    truth = truth_of(problem)
    if not is_known(truth):
        yield {"problem": problem.name, "known": False, "certified": truth.certified}
        return
    for setting in SETTINGS:
        yield row_of(problem, truth, setting)


def truth_of(problem: Problem, particles: Sequence[int] = ()) -> smc.Posterior:
    """Enumerate a problem's posterior with growing numbers of prefixes, until it is known."""
    usual = (256,) if problem.name.startswith("real") else (256, 4096)
    for number in particles or usual:
        (truth,) = smc.sample(
            problem.lm, [problem.prompt], problem.constraint, max_tokens=problem.budget,
            particles=number, proposal=smc.GCD(), algorithm="discrete", floor=0,
            count_finished=False, max_rows=4096,
        )  # fmt: skip
        if is_known(truth):
            break
    return truth


def is_known(truth: smc.Posterior) -> bool:
    """Tell whether a posterior is known to 1%."""
    return truth.enumerated or (truth.certified or 0.0) >= CERTIFIED


def row_of(
    problem: Problem, truth: smc.Posterior, setting: tuple[str, int], seed: int = 1
) -> dict[str, Any]:
    """Run one setting and compare it with the truth."""
    name, lm, prompt, constraint, budget, proposal = problem
    algorithm, particles = setting
    exact = dict(zip(truth.answers, truth.probabilities, strict=True))
    processor, wall = time.process_time(), time.perf_counter()
    (found,) = smc.sample(
        lm, [prompt], constraint, max_tokens=budget, particles=particles, proposal=proposal,
        algorithm=algorithm, seed=seed,
    )  # fmt: skip
    processor, wall = time.process_time() - processor, time.perf_counter() - wall
    intervals = found.confidence_intervals
    pairs = [
        (p, exact.get(answer, 0.0), *interval)
        for answer, p, interval in zip(found.answers, found.probabilities, intervals, strict=True)
    ][:5]
    apart = sum(
        abs(exact.get(a, 0.0) - p) for a, p in zip(found.answers, found.probabilities, strict=True)
    )
    apart += 1 - sum(exact.get(answer, 0.0) for answer in found.answers)
    return {
        "problem": name, "known": True, "algorithm": algorithm, "particles": particles,
        "answers": len(exact), "log_truth": truth.log_evidence,
        "slack": ROUNDING + (0.0 if truth.enumerated else 1 - truth.certified),
        "log_evidence": found.log_evidence, "tv": apart / 2,
        "log_upper": found.bounds.log_upper,
        "log_evidence_interval": found.log_evidence_interval,
        "old_ess": found.ess, "tokens": found.diagnostics.tokens, "texts": pairs,
        "ess": found.reliability.ess,
        "certified": found.certified,
        "enumerated": found.enumerated, "processor_s": processor, "wall_s": wall,
        "is_best": found.answers[:1] == truth.answers[:1],
    }  # fmt: skip


if __name__ == "__main__":
    logging.set_verbosity_error()
    main()
