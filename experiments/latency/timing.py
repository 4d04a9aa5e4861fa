"""This module times one run: the prompt is read and a graph captured beforehand, then all steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from omegaconf import DictConfig

import gcd
import smc
from experiments.harness.methods import warm_up
from experiments.latency.models import SCHEMA, fixed_tokens
from hmm.model import HMM
from smc.draw import CounterDraw
from smc.proposals import Batch
from smc.static import StaticFilter, StaticSampler, StaticTransformer, candidates_of, pass_of
from smc.transformers_lm import TransformersLM

PROPOSALS: dict[str, Callable[[], smc.Proposal]] = {"lm": smc.LM, "lcd": smc.LCD, "gcd": smc.GCD}


@dataclass
class Bench:
    """A model, a constraint and the tokens of one text, on which everything is timed.

    Attributes:
        automaton_seconds: what the constraint took, from the schema to the vocabulary's tokens.
        table_seconds: what the table of completion probabilities took, by method.
    """

    lm: TransformersLM
    config: DictConfig
    constraint: gcd.TokenAutomaton = field(init=False)
    tokens: list[int] = field(init=False)
    automaton_seconds: float = field(init=False)
    table_seconds: dict[str, float] = field(default_factory=dict)
    _proposals: dict[str, smc.Proposal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        started = time.perf_counter()
        self.constraint = gcd.lift(gcd.json_schema(SCHEMA), self.lm.vocabulary)
        self.automaton_seconds = time.perf_counter() - started
        least = int(self.constraint.steps_to_accept[self.constraint.initial])
        if self.config.task.tokens < least:
            raise ValueError(
                f"task.tokens={self.config.task.tokens}, but the shortest text of the constraint "
                f"has {least} tokens of this model's; give at least as many"
            )
        self.tokens = fixed_tokens(self.constraint, self.config.task.tokens)
        if "discrete" in self.config.task.kinds:
            self._filter(self._batch(), 0)  # refuses so many prefixes before anything is timed

    @property
    def prompt(self) -> list[int]:
        """The prompt: tokens that can be told apart, whatever they say."""
        size = self.lm.vocabulary.size
        return [(7 * i) % (size - 1) for i in range(self.config.task.prompt_tokens)]

    def seconds_per_token(self, method: str, seed: int) -> float:
        """Time the steps of one run."""
        if method == "generate":
            return self._generate(seed) / len(self.tokens)
        device, batch = self.lm.device, self._batch()
        loop = (
            self._filter(batch, seed)
            if method == "discrete"
            else self._sampler(method, batch, seed)
        )
        loop.prepare([self.prompt])
        spent = _timed(loop.finish, device)
        outcome = loop.outcome()
        if method != "discrete":
            assert outcome.tokens[0].tolist() == self.tokens, "particles take the fixed tokens"
        return spent / int(loop.slots.step)

    def _batch(self) -> Batch:
        """One example, whose budget is the length of the fixed tokens."""
        device = self.lm.device
        budget = torch.tensor([len(self.tokens)], device=device)
        return Batch(gcd.AutomatonBatch([self.constraint], device=device), budget)

    def _sampler(self, method: str, batch: Batch, seed: int) -> StaticSampler:
        """Particles that take the fixed tokens."""
        options, device = self.config.smc, self.lm.device
        return StaticSampler(
            StaticTransformer(self.lm),
            self._proposal(method, batch),
            batch,
            num_particles=self.config.task.batch,
            resampling=options.resampling,
            ess_threshold=options.ess_threshold,
            strata=options.strata,
            whole_vocabulary=pass_of(self.config.task.whole_vocabulary, device),
            script=torch.tensor([*self.tokens, self.tokens[-1]], device=device),
            **self._shared(seed),
        )

    def _filter(self, batch: Batch, seed: int) -> StaticFilter:
        """The discrete filter, all of whose places are taken up to the end of the budget."""
        return StaticFilter(
            StaticTransformer(self.lm),
            smc.GCD(),
            batch,
            num_particles=self.config.task.batch,
            count_finished=False,
            floor=0.0,
            candidates=candidates_of(self.config.task.whole_vocabulary, self.lm.device),
            **self._shared(seed),
        )

    def _shared(self, seed: int) -> dict[str, Any]:
        """What both loops are told."""
        device, graph = self.lm.device, self.config.task.graph
        return {
            "examples": torch.zeros(1, dtype=torch.int64, device=device),
            "temperature": self.config.smc.temperature,
            "draw": CounterDraw(seed),
            "graph": device.type == "cuda" if graph is None else graph,
        }

    def _proposal(self, method: str, batch: Batch) -> smc.Proposal:
        """The proposal of this name; its table is made here, once, and timed."""
        if method not in self._proposals:
            kind, _, hidden = method.partition(":H")
            if kind != "pgcd":
                self._proposals[method] = PROPOSALS[kind]()
            else:
                self._proposals[method] = self._pgcd(int(hidden), batch, method)
        return self._proposals[method]

    def _pgcd(self, hidden: int, batch: Batch, method: str) -> smc.Proposal:
        device = self.lm.device
        # Its numbers do not matter for the time.
        hmm = HMM.random(
            hidden,
            self.lm.vocabulary.size,
            generator=torch.Generator(device).manual_seed(hidden),
            device=device,
        )
        proposal = smc.PGCD(
            hmm,
            lookahead=self.config.task.lookahead,
            exact_top_k=self.config.task.exact_top_k,
            max_bytes=self.config.task.max_table_mib << 20,
        )
        proposal.check([self.constraint], batch.budgets.tolist())
        warm_up(proposal, self.constraint, device)
        self.table_seconds[method] = _timed(lambda: proposal.start(batch), device)
        return proposal

    def _generate(self, seed: int) -> float:
        """`transformers.generate`, of as many tokens for as many rows, sampled."""
        count, device = len(self.tokens), self.lm.device
        prompts = torch.tensor([self.prompt] * self.config.task.batch, device=device)
        arguments: dict[str, Any] = {
            "input_ids": prompts,
            "attention_mask": torch.ones_like(prompts),
            "do_sample": True,
            "top_k": 0,
            "temperature": float(self.config.smc.temperature),
            "pad_token_id": 0,
        }

        def run(tokens: int) -> None:
            self.lm.model.generate(**arguments, min_new_tokens=tokens, max_new_tokens=tokens)

        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            first = _timed(lambda: run(1), device)  # reads the prompt, as ours does before
            return max(_timed(lambda: run(count + 1), device) - first, 0.0)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds until the work is done, on the device too."""
    _wait(device)
    started = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def methods_of(kinds: Sequence[str], hidden: Sequence[int]) -> list[str]:
    """Give the rows of the table: kinds, and pgcd once for each size of HMM."""
    each = {kind: [kind] for kind in kinds} | {"pgcd": [f"pgcd:H{size}" for size in hidden]}
    return [name for kind in kinds for name in each[kind]]
