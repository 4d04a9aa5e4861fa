"""Held-out likelihood of HMMs by hidden states and data, beside n-grams of the same answers.

    python -m benchmarks.large_hmm train.tsv --runs 512 1024 4096 16384 evidence

SmolLM2 with its CommonGen adapter answers compact prompts. Half of them name no concept, a quarter
all but one, and a quarter all. A twentieth of the prompts is for choices (discounts of n-grams,
pseudo-counts and the number of EM steps of HMMs), a twentieth for the reported numbers. HMMs start
from clusters of the model's hidden states. On a GPU, products are in TF32.

`evidence` among the runs compares P-GCD with GCD on concept sets whose prompt names none.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

import gcd
import hmm
import smc
from benchmarks.corpus import Corpus, cluster, sample
from benchmarks.ngrams import Grams, KneserNey
from experiments.commongen.prompts import build_prompt
from experiments.commongen.records import read_file
from experiments.commongen.task import EMBEDDED
from experiments.commongen.training import prompt_of, read_training
from experiments.distillation.lumping import Lumping
from experiments.harness.config import ModelConfig
from experiments.harness.models import ROOT, encode, load_model
from hmm._em import PseudoCounts, maximize, step_size
from hmm._initialize import counts_of_states

TOLD = ("none", "some", "none", "all")
LENGTH, BUDGET, PARTICLES, SEEDS = 48, 24, 16, 3
BATCHES = 8
"""Mini-batches of a pass of stepwise EM."""
LOSS = 0.05
"""Loss of validation likelihood at which EM stops, in nats per token."""
HELD_OUT = 0.05
"""Share of the prompts for choices, and for the reported numbers."""


class Part(NamedTuple):
    """Answers on the device, with tokens as classes; `untold` if their prompt names no concept."""

    tokens: Int64[Tensor, "B T"]
    lengths: Int64[Tensor, "B"]
    untold: Bool[Tensor, "B"]

    def first(self, count: int) -> Part:
        """Return the first `count` answers."""
        return Part(*(each[:count] for each in self))

    def grams(self, size: int, order: int) -> Grams:
        """Return the n-grams of this part's answers."""
        inside = torch.arange(LENGTH, device=self.lengths.device) < self.lengths.unsqueeze(1)
        return Grams.of(self.tokens, inside, size, order)

    def batches(self, rows: Int64[Tensor, "b"], states: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield answers of similar length together, in batches that fit into memory."""
        size = max(64, min(1 << 14, (1 << 25) // states))
        for some in rows[self.lengths[rows].argsort()].split(size):
            yield self.tokens[some, : int(self.lengths[some].max())], self.lengths[some]

    def nats(self, log_p: Float64[Tensor, "B"]) -> list[float]:
        """Return the means per token, of all answers and of those to untold prompts."""
        parts = (slice(None), self.untold)
        return [round(float(log_p[p].sum() / self.lengths[p].sum()), 4) for p in parts]


@contextmanager
def exact_products() -> Iterator[None]:
    """Compute products of float32 numbers in float32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = True


def main() -> None:
    """Sample, train and compare; print each result as a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", type=Path, help="CommonGen's training sentences")
    parser.add_argument("--prompts", type=int, default=1 << 20, help="at most")
    parser.add_argument("--answers", type=int, default=8, help="to each prompt")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--sampling-seconds", type=float, default=90)
    parser.add_argument(
        "--runs", nargs="+", default=["512", "1024", "4096"], metavar="STATES[@SHARE]",
        help="HMMs, of all answers or a share; `evidence` compares P-GCD with those before it",
    )  # fmt: skip
    parser.add_argument(
        "--priors", nargs="+", default=["20,2"], metavar="TRANSITION,EMISSION",
        help="pseudo-counts of a state, distributed as all states and tokens are",
    )  # fmt: skip
    parser.add_argument("--tuned", type=int, default=1024, help="states up to which all are tried")
    parser.add_argument("--passes", type=int, default=6, help="of EM over the answers")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which EM stops")
    parser.add_argument("--sets", type=int, default=12, help="of concepts, for P-GCD")
    parser.add_argument("--out", type=Path, help="file for the lines of JSON")
    Run(parser.parse_args())()


class Run:
    """One run with its settings, model and answers."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.begun = given, time.perf_counter()
        torch.backends.cuda.matmul.allow_tf32 = True
        settings = ModelConfig(adapter=str(ROOT / "models" / "smollm2-commongen"), prompt="compact")
        self.lm, self.tokenizer = load_model(settings)
        self.generator = torch.Generator(self.lm.device).manual_seed(0)
        self.most, self.compared = 0, set[int]()
        self.found: dict[int, tuple[float, str, hmm.HMM]] = {}  # by states: value, prior, HMM

    def say(self, **values: Any) -> None:
        """Print a result, and append it to the file."""
        text = json.dumps({"at": round(time.perf_counter() - self.begun, 1), **values})
        print(text, flush=True)
        if self.given.out:
            with self.given.out.open("a") as file:
                file.write(f"{text}\n")

    def __call__(self) -> None:
        """Sample, train and compare."""
        corpus, told = self.answers()
        training, rows = self.split(corpus, told)
        runs = [each.partition("@") for each in self.given.runs]
        for share in sorted({float(share or 1) for _, _, share in runs}, reverse=True):
            self.compare_ngrams(training.first(round(share * len(rows))))
        for states, _, share in runs:
            if states == "evidence":
                self.compare_evidence()
            elif time.perf_counter() - self.begun < self.given.seconds:
                count = round(float(share or 1) * len(rows))
                self.train_all(corpus, training.first(count), rows[:count], int(states))

    def train_all(
        self, corpus: Corpus, training: Part, rows: Int64[Tensor, "n"], states: int
    ) -> None:
        """Train HMMs of one size with each prior, or only with the best one so far."""
        known = sorted(self.found.values(), key=lambda each: each[0])
        alone = known and (states > self.given.tuned or len(rows) < self.most)
        self.most = max(self.most, len(rows))
        kinds = self.kinds(corpus, rows, states)
        for prior in [known[-1][1]] if alone else self.given.priors:
            if time.perf_counter() - self.begun < self.given.seconds:
                self.train(kinds, training, states, prior)
        if len(rows) == self.most:
            with exact_products():
                test = self.test.nats(self.log_p(self.found[states][2], self.test))
            self.say(model=f"HMM of {states} states, the best", precision="float32", test=test)

    def answers(self) -> tuple[Corpus, Int64[Tensor, "B"]]:
        """Sample answers, with the index in `TOLD` of what each prompt names."""
        rng = random.Random(0)
        sets = read_training([self.given.records])
        some = rng.sample(sets, min(self.given.prompts, len(sets)))
        texts = [prompt_of(each, rng, kind) for each, kind in zip(some, cycle(TOLD))]
        prompts = [list(encode(text, "compact", self.tokenizer)) for text in texts]
        model = copy.deepcopy(self.lm.model)
        if self.lm.device.type == "cuda":
            for weight in model.parameters():  # rotary frequencies stay in float32
                weight.data = weight.data.bfloat16()
        self.say(prompts=len(prompts))
        corpus = sample(
            model, prompts, self.given.answers, eos=min(self.lm.vocabulary.eos_ids), length=LENGTH,
            batch=self.given.batch, seconds=self.given.sampling_seconds, generator=self.generator,
        )  # fmt: skip
        told = torch.tensor([TOLD.index(TOLD[n % len(TOLD)]) for n in range(len(prompts))])
        self.say(answers=len(corpus.lengths), tokens=int(corpus.lengths.sum()))
        return corpus, told.to(self.lm.device)[corpus.prompt]

    def split(self, corpus: Corpus, told: Int64[Tensor, "B"]) -> tuple[Part, Int64[Tensor, "n"]]:
        """Set answers apart for validation and test; return the other ones, and their rows.

        Answers to the same prompt stay together, except if the prompt names no concept.
        """
        # Prompts that name nothing are one text, so their answers are divided one by one.
        untold, each = told == TOLD.index("none"), torch.arange(len(told), device=told.device)
        group = torch.where(untold, each, corpus.prompt + len(told)).unique(return_inverse=True)[1]
        number = torch.rand(int(group.max()) + 1, generator=self.generator, device=told.device)
        seen = torch.bincount(corpus.tokens.flatten(), minlength=self.lm.vocabulary.size) > 0
        self.lumping = Lumping.all_but(seen.cpu())
        classes = self.lumping.class_of.to(told.device)[corpus.tokens]
        parts = []
        for low, high in ((0, HELD_OUT), (1 - HELD_OUT, 1), (HELD_OUT, 1 - HELD_OUT)):
            rows = ((number[group] >= low) & (number[group] < high)).nonzero()[:, 0]
            order = torch.randperm(len(rows), generator=self.generator, device=rows.device)
            rows = rows[order]
            parts.append((Part(classes[rows], corpus.lengths[rows], untold[rows]), rows))
        (self.valid, _), (self.test, tested), training = parts
        self.say(
            model="language model, reading the prompt", test=self.test.nats(corpus.log_p[tested]),
            tokens=int(self.test.lengths.sum()), classes=self.lumping.num_classes,
        )  # fmt: skip
        return training

    def compare_ngrams(self, training: Part) -> None:
        """Print the likelihood of unigrams, bigrams and trigrams."""
        size = self.lumping.num_classes
        for order in (1, 2, 3):
            model = KneserNey(training.grams(size, order))
            discounts = model.fitted(self.valid.grams(size, order))
            test = self.test.grams(size, order)
            log_p = torch.zeros(
                self.test.tokens.shape, dtype=torch.float64, device=test.token.device
            )
            inside = torch.arange(LENGTH, device=log_p.device) < self.test.lengths.unsqueeze(1)
            log_p[inside] = model.probability(test, discounts).log()
            self.say(
                model=f"{order}-gram", tokens=int(training.lengths.sum()), discounts=discounts,
                test=self.test.nats(log_p.sum(dim=1)),
            )  # fmt: skip

    def kinds(self, corpus: Corpus, rows: Int64[Tensor, "n"], states: int) -> Int64[Tensor, "n T"]:
        """Return a state for each token: its vector's cluster; the last one for EOS."""
        number = torch.full_like(corpus.lengths, -1)
        number[rows] = torch.arange(len(rows), device=rows.device)
        row = number[corpus.position // LENGTH]
        chosen = row >= 0
        found = torch.full((len(rows), LENGTH), states - 1, device=rows.device)
        group = cluster(corpus.vectors[chosen], states - 1, self.generator)
        found[row[chosen], corpus.position[chosen] % LENGTH] = group
        self.say(states=states, clustered=int(chosen.sum()))
        return found

    def train(self, kinds: Int64[Tensor, "n T"], training: Part, states: int, prior: str) -> None:
        """Fit an HMM by EM, full passes first and last, and print its likelihoods."""
        size, count = self.lumping.num_classes, len(training.lengths)
        counts = counts_of_states(kinds, training.tokens, training.lengths, states, size)
        following, emitted = map(float, prior.split(","))
        often, tokens = counts.emission.sum(dim=0) + 0.5, counts.emission.sum(dim=1) + 0.5
        transition = following * (0.9 * often / often.sum() + 0.1 / states)  # of each next state
        pseudo = PseudoCounts(1 / states, cast(float, transition), emitted * tokens / tokens.sum())
        step, best = hmm.Step(maximize(counts, pseudo)), -1e9
        del counts
        for epoch in range(self.given.passes + 1):
            began = time.perf_counter()
            full = epoch in (1, self.given.passes)
            order = torch.randperm(count, generator=self.generator, device=kinds.device)
            for rows in order.chunk(1 if full else BATCHES) if epoch else ():
                step = hmm.em_step(
                    step, training.batches(rows, states), pseudo_counts=pseudo,
                    step_size=1.0 if full else step_size(step.step), num_sequences=count,
                )  # fmt: skip
            valid = self.valid.nats(self.log_p(step.hmm, self.valid))
            self.say(
                model=f"HMM of {states} states", tokens=int(training.lengths.sum()), prior=prior,
                epoch=epoch, training=round(step.log_likelihood, 4), valid=valid,
                test=self.test.nats(self.log_p(step.hmm, self.test)),
                seconds=round(time.perf_counter() - began, 2),
            )  # fmt: skip
            if valid[0] > self.found.get(states, (-1e9,))[0]:
                self.found[states] = valid[0], prior, step.hmm
            spent = time.perf_counter() - began
            late = time.perf_counter() + spent - self.begun > self.given.seconds
            if late or valid[0] < best - LOSS:
                break
            best = max(best, valid[0])

    def log_p(self, model: hmm.HMM, part: Part) -> Float64[Tensor, "B"]:
        """Compute the log-likelihood of each answer."""
        rows = torch.arange(len(part.lengths), device=part.lengths.device)
        order = rows[part.lengths.argsort()]
        found = [hmm.log_likelihood(model, *b) for b in part.batches(rows, model.num_states)]
        return torch.empty(len(rows), dtype=torch.float64, device=rows.device).scatter_(
            0, order, torch.cat(found).double()
        )

    def compare_evidence(self) -> None:
        """Print log evidence and effective sample sizes by concept set, for each seed."""
        records = read_file(EMBEDDED).records[: self.given.sets]
        rules = [gcd.lift(gcd.keywords(r.inflections), self.lm.vocabulary) for r in records]
        prompts = [build_prompt(r, told="none", kind="compact") for r in records]
        for states in sorted({0, *self.found} - self.compared):
            self.compared.add(states)
            proposal: smc.Proposal[Any] = smc.GCD()
            if states:
                model = self.lumping.spread(self.found[states][2])
                proposal = smc.PGCD(model, lookahead=1.0, max_bytes=1 << 36)
            began = time.perf_counter()
            for seed in range(SEEDS):
                with exact_products():
                    found = smc.sample(
                        self.lm, prompts, rules, budget=BUDGET, particles=PARTICLES, seed=seed,
                        proposal=proposal, algorithm="smc", max_rows=1 << 12,
                    )  # fmt: skip
                self.say(
                    proposal=f"P-GCD, {states} states" if states else "GCD", seed=seed,
                    log_evidence=[round(each.log_evidence or -1e9, 3) for each in found],
                    ess=[round(each.ess, 2) for each in found],
                    seconds=round(time.perf_counter() - began, 1), text=str(found[0].majority),
                )  # fmt: skip


if __name__ == "__main__":
    with torch.inference_mode():
        main()
