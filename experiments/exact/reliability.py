"""Stated errors of single runs compared with true errors (docs/reliability.md).

Problems are random models and random patterns over a byte vocabulary, and the same with patterns of
closed fields (numbers, dates, words). Others have SmolLM2 on tool names, dates, numbers and small
JSON objects in canonical tokenization, with the tools in the prompt or not. GCD is the proposal.
For P-GCD, random problems are repeated with an HMM that was distilled from the model's samples, or
with a random HMM.

Problems have up to millions of prefixes, too many for the sums of `truth`. The posterior is that of
a filter with up to 4,096 prefixes, and counts as known if it is enumerated or certified to 0.99. An
interval is right if its distance from the truth is at most the truth's own uncertainty. Rows are
appended to a file, and problems in the file are skipped, so the run can be interrupted:

    python -m experiments.exact.reliability build/reliability.jsonl --problems 420 --real 32
    python -m experiments.exact.reliability build/closed.jsonl --closed 150
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

import gcd
import hmm
import smc

CERTIFIED = 0.99
LEAST = 0.01
"""Least probability of a text whose interval is checked."""
ROUNDING = 1e-4
"""Nats by which float32 log-probabilities of two runs may differ."""
SEEN = 240
"""Random problems with smaller numbers were used to choose the thresholds of labels."""
SETTINGS = [("smc", 16), ("smc", 64), ("discrete", 16), ("discrete", 64)]
SCALES = (0.15, 0.3, 1.0, 3.0)


class Case(NamedTuple):
    """A model, a prompt, a constraint within a budget, and the proposal to sample with."""

    name: str
    lm: smc.TransformersLM
    prompt: str
    constraint: gcd.TokenAutomaton
    budget: int
    proposal: smc.Proposal[Any] = smc.GCD()


def main() -> None:
    """Add rows and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--problems", type=int, default=0, help="problems with random models")
    parser.add_argument("--real", type=int, default=0, help="problems with SmolLM2")
    parser.add_argument("--pgcd", type=int, default=0, help="problems with P-GCD")
    parser.add_argument("--closed", type=int, default=0, help="problems of closed fields")
    args = parser.parse_args()
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    lines = args.rows.read_text().splitlines() if args.rows.exists() else []
    done = {json.loads(line)["problem"] for line in lines}
    makers: list[tuple[Callable[[int, set[str]], Iterator[Case]], int]] = [
        (random_cases, args.problems), (real_cases, args.real), (pgcd_cases, args.pgcd),
        (partial(random_cases, kind="closed"), args.closed),
    ]  # fmt: skip
    with args.rows.open("a") as file:
        for make, count in makers:
            for case in make(count, done) if count else ():
                file.writelines(json.dumps(row) + "\n" for row in measure(case))
                file.flush()
    print_tables([json.loads(line) for line in args.rows.read_text().splitlines()])


def random_cases(count: int, done: set[str], kind: str = "random") -> Iterator[Case]:
    """Yield problems with random models over bytes, and random patterns."""
    tokenizer = byte_tokenizer()
    pattern_of = pattern_of_field if kind == "closed" else random_pattern
    for k in range(count):
        if f"{kind} {k}" in done:
            continue
        torch.manual_seed(k)
        config = LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=32, max_position_embeddings=128, eos_token_id=0, pad_token_id=1,
            bos_token_id=None, initializer_range=0.5,
        )  # fmt: skip
        model = LlamaForCausalLM(config).eval()
        model.lm_head.weight.data.mul_(SCALES[k % len(SCALES)])
        lm, budget = smc.TransformersLM(model, tokenizer), 12 + k % 20
        constraint = gcd.lift(gcd.regex(pattern_of(random.Random(k))), lm.vocabulary)
        if constraint.fewest_tokens <= budget:
            yield Case(f"{kind} {k}", lm, "hello", constraint, budget)


def pgcd_cases(count: int, done: set[str]) -> Iterator[Case]:
    """Yield random problems that thresholds weren't chosen on, with an HMM for P-GCD.

    Every other HMM is random. The random lookahead is worse than none, but keeps the estimates
    unbiased.
    """
    seen = {f"random {k}" for k in range(SEEN)}
    for case in random_cases(SEEN + count, seen):
        number = int(case.name.split()[1])
        kind = ("distilled", "random")[number % 2]
        name = f"P-GCD, {kind} {number}"
        if name not in done:
            model = distill_hmm(case.lm, number, steps=8 * (number % 2 == 0))
            yield case._replace(name=name, proposal=smc.PGCD(model))


def distill_hmm(lm: smc.TransformersLM, seed: int, *, steps: int) -> hmm.HMM:
    """Fit an HMM to samples of a language model by EM; with zero steps it stays random."""
    generator = torch.Generator().manual_seed(seed)
    state = hmm.Step(hmm.HMM.random(8, lm.vocabulary.size, generator=generator))
    torch.manual_seed(seed)
    ids = torch.tensor([lm.encode("hello")]).repeat(64, 1)
    drawn = lm.model.generate(ids, do_sample=True, top_k=0, max_new_tokens=24)[:, ids.shape[1] :]
    lengths = (drawn != 0).sum(dim=1).add(1).clamp(max=drawn.shape[1])
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
    return {"a": f"({'|'.join(parts)})", "o": f"({''.join(parts)})?", "s": "".join(parts)}[kind]


def pattern_of_field(rng: random.Random) -> str:
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


def real_cases(count: int, done: set[str]) -> Iterator[Case]:
    """Yield problems with SmolLM2: tool names, numbers, dates and JSON objects."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from experiments.models import SMOLLM2, resolve
    from experiments.tool_calling.task import read_xlam, signature

    path = resolve(SMOLLM2)
    model = AutoModelForCausalLM.from_pretrained(path)
    lm = smc.TransformersLM(model, AutoTokenizer.from_pretrained(path))
    records = read_xlam("data/xlam/records_500_599.jsonl").records
    rng = random.Random(0)
    for k in range(count):
        record, others = records[k % len(records)], rng.sample(records, 12)
        tools = [tool for each in (record, *others[: rng.randint(2, 12)]) for tool in each.tools]
        labels = sorted({str(tool["name"]) for tool in tools})
        told = "\n".join(signature(tool) for tool in tools) if k % 2 else ""
        members = {
            "tool": {"enum": labels},
            "urgent": {"type": "boolean"},
            "score": {"type": "integer", "minimum": 0, "maximum": 9},
        }
        schema = {"type": "object", "properties": members, "required": [*members],
                  "additionalProperties": False}  # fmt: skip
        language, cue = [
            (gcd.choice(labels), "Tool to call:"),
            (gcd.regex("[1-9][0-9]?"), "The number in the request is"),
            (gcd.regex("(0[1-9]|1[0-2])-[0-3][0-9]"), "Month and day are, as in 12-31,"),
            (gcd.json_schema(schema), "Answer in JSON:"),
        ][k // 2 % 4]
        prompt = f"{told}\nRequest: {record.query}\n{cue} ".lstrip()
        if f"real {k}" not in done:
            constraint = gcd.lift(language, lm.vocabulary, literals="canonical")
            yield Case(f"real {k}", lm, prompt, constraint, 40)


def measure(case: Case) -> Iterator[dict[str, Any]]:
    """Yield a row for each setting; one without figures if the posterior isn't known."""

    def sample(particles: int, **options: Any) -> smc.Posterior:
        given = {"max_tokens": case.budget, "particles": particles, **options}
        return smc.sample(case.lm, [case.prompt], case.constraint, **given)[0]

    for particles in (256,) if case.name.startswith("real") else (256, 4096):
        truth = sample(
            particles, proposal=smc.GCD(), max_rows=4096,
            algorithm=smc.Discrete(floor=0, count_finished=False),
        )  # fmt: skip
        known = truth.enumerated or (truth.certified or 0.0) >= CERTIFIED
        if known:
            break
    if not known:
        yield {"problem": case.name, "known": False, "certified": truth.certified}
        return
    assert truth.log_evidence is not None
    exact = dict(zip(truth.answers, truth.probabilities, strict=True))
    slack = ROUNDING + (0.0 if truth.enumerated else 1 - (truth.certified or 0.0))
    for algorithm, particles in SETTINGS:
        found = sample(particles, proposal=case.proposal, algorithm=algorithm, seed=1)
        shares = dict(zip(found.answers, found.probabilities, strict=True))
        assert found.confidence_intervals is not None, "GCD has bounds"
        assert found.log_evidence_interval is not None
        assert found.log_evidence is not None
        texts = islice(zip(found.answers, found.confidence_intervals, strict=True), 3)
        low, high = found.log_evidence_interval
        yield {
            "problem": case.name, "known": True, "algorithm": algorithm, "particles": particles,
            "label": "certified" if found.enumerated else found.reliability.label,
            "covered": low - slack <= truth.log_evidence <= high + slack,
            # The three most probable texts, if they have more than 1%.
            "texts_covered": [
                ends[0] - slack <= exact.get(text, 0.0) <= ends[1] + slack
                for text, ends in texts
                if max(shares[text], exact.get(text, 0.0)) >= LEAST
            ],
            "tv": 0.5 * sum(abs(exact.get(text, 0.0) - shares.get(text, 0.0))
                            for text in {*exact, *shares}),
            "error": abs(found.log_evidence - truth.log_evidence),
            "tokens": found.diagnostics.tokens,
        }  # fmt: skip


def kind_of(problem: str) -> str:
    """Return the set of a problem: those that thresholds were chosen on, or others."""
    kind, number = problem.rsplit(maxsplit=1)
    if kind in ("random", "real"):
        return "chosen on" if kind == "random" and int(number) < SEEN else "checked on"
    return kind


def print_tables(rows: list[dict[str, Any]]) -> None:
    """Print how often intervals cover the truth, by label, and what each algorithm costs."""
    import pandas as pd

    from experiments.tables import as_markdown

    frame = pd.DataFrame(rows)
    known = frame[frame["known"]].copy()
    print(f"{known['problem'].nunique()} of {frame['problem'].nunique()} known\n")
    known["set"] = known["problem"].map(kind_of)
    known["particles"] = known["particles"].astype(int)
    known["kind"] = known["problem"].str.extract("^([A-Za-z-]+)")[0]
    table = []
    for names, some in known.groupby(["algorithm", "label", "set"]):
        texts = [covered for row in some["texts_covered"] for covered in row]
        table.append({
            **dict(zip(("algorithm", "label", "problems"), names, strict=True)),
            "runs": len(some),
            "evidence covered %": f"{100 * some['covered'].astype(bool).mean():.0f}",
            "texts covered %": f"{100 * np.mean(texts):.0f}" if texts else "–",
            "total variation, median": f"{some['tv'].median():.4f}",
        })  # fmt: skip
    print(as_markdown(table), "\n")
    print(as_markdown([
        {
            **dict(zip(("problems", "algorithm", "particles"), names, strict=True)),
            "tokens read, mean": f"{some['tokens'].mean():.0f}",
            "total variation, mean": f"{some['tv'].mean():.3f}",
            "over 0.5": int((some["tv"] > 0.5).sum()),
            "error of the log evidence, median": f"{some['error'].median():.4f}",
        }
        for names, some in known.groupby(["kind", "algorithm", "particles"])
    ]))  # fmt: skip


if __name__ == "__main__":
    logging.set_verbosity_error()
    main()
