"""Timing of single runs, after prefilling the prompt and capturing the graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from omegaconf import DictConfig

import gcd
import smc.captured
from experiments.arms import ALGORITHMS
from experiments.studies.latency.models import SCHEMA, Scripted, draw_tokens
from hmm import HMM
from smc import TransformersLM
from smc._inference.captured import check_room

UNCOMPILED = "lm:uncompiled"
"""The method without a constraint and without `torch.compile`, beside the compiled ones."""
PROPOSALS: dict[str, Callable[[], smc.Proposal]] = {
    "lm": smc.LM, UNCOMPILED: smc.LM, "lcd": smc.LCD, "gcd": smc.GCD, "discrete": smc.GCD,
}  # fmt: skip


class Bench:
    """A model, a constraint and the tokens of one text to time.

    Attributes:
        automaton_seconds: time from the schema to the automaton over tokens.
        table_seconds: time of the table of completion probabilities, by method.
    """

    def __init__(self, lm: TransformersLM, config: DictConfig) -> None:
        self.lm, self.config = lm, config
        self._compiled = (
            TransformersLM(lm.model, lm.tokenizer, lm.vocabulary, compile=True)
            if config.task.compile
            else lm
        )
        self.table_seconds: dict[str, float] = {}
        self._proposals: dict[str, smc.Proposal] = {}
        started = time.perf_counter()
        self.constraint = gcd.lift(gcd.json_schema(SCHEMA), self.lm.vocabulary)
        self.automaton_seconds = time.perf_counter() - started
        least = self.constraint.fewest_tokens
        if self.config.task.tokens < least:
            raise ValueError(
                f"expected task.tokens to be at least {least}, the length of the constraint's "
                f"shortest text in the model's tokens, got {self.config.task.tokens}"
            )
        self.tokens = draw_tokens(self.constraint, self.config.task.tokens)
        if "discrete" in self.config.task.kinds:
            # Refuses too many prefixes before anything is timed.
            automata = gcd.AutomatonBatch([self.constraint])
            check_room(automata, self.config.task.batch, len(self.tokens))

    @property
    def prompt(self) -> list[int]:
        """The prompt: distinguishable tokens with arbitrary meaning."""
        size = self.lm.vocabulary.size
        return [(7 * i) % (size - 1) for i in range(self.config.task.prompt_tokens)]

    def seconds_per_token(self, method: str, seed: int) -> float:
        """Return the seconds per token of one run of a method, without the time to start it."""
        if method == "generate":
            return self._generate(seed) / len(self.tokens)
        algorithm: smc.SMC | smc.Discrete = ALGORITHMS["smc"].make(self.config)
        base = self.lm if method == UNCOMPILED else self._compiled
        lm: smc.LanguageModel = Scripted(base, self.tokens)
        if method == "discrete":
            # All particles run until the end of the budget.
            algorithm = smc.Discrete(count_finished=False, floor=0.0)
            lm = base
        (found,) = smc.captured.sample(
            lm,
            [self.prompt],
            self.constraint,
            max_tokens=len(self.tokens),
            particles=self.config.task.batch,
            proposal=self._proposal(method),
            temperature=self.config.smc.temperature,
            seed=seed,
            algorithm=algorithm,
        )
        how = found.diagnostics
        if method != "discrete":
            taken = {list(particle.ids) == self.tokens for particle in found.particles}
            assert taken == {True}, "particles take the fixed tokens"
        return (how.seconds - how.start_seconds) / len(how.running)

    def _proposal(self, method: str) -> smc.Proposal:
        """Return the proposal of this name; its table is made and timed once."""
        if method not in self._proposals:
            kind, _, hidden = method.partition(":H")
            if kind != "pgcd":
                self._proposals[method] = PROPOSALS[kind]()
            else:
                self._proposals[method] = self._pgcd(int(hidden), method)
        return self._proposals[method]

    def _pgcd(self, hidden: int, method: str) -> smc.Proposal:
        device = self.lm.device
        # The values don't affect the time.
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
        tokens = len(self.tokens)
        proposal.check([self.constraint], [tokens])
        self.table_seconds[method] = table_seconds(proposal, self.constraint, tokens, device)
        return proposal

    def _generate(self, seed: int) -> float:
        """Time `transformers.generate` with sampling, for the same number of tokens and rows."""
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
            first = seconds_of(lambda: run(1), device)  # prefills the prompt, as above
            return max(seconds_of(lambda: run(count + 1), device) - first, 0.0)


def methods_of(kinds: Sequence[str], hidden: Sequence[int], *, compile: bool = False) -> list[str]:
    """Return the methods to time: each of `kinds`, but pgcd once for each HMM size.

    With `compile`, all steps are compiled by torch.compile, and lm is also timed without it.
    """
    each = {kind: [kind] for kind in kinds} | {"pgcd": [f"pgcd:H{size}" for size in hidden]}
    if compile:
        each["lm"] = [UNCOMPILED, "lm"]
    return [name for kind in kinds for name in each[kind]]


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds until the work is done, including work on the device."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    started = now()
    work()
    return now() - started


def table_seconds(
    proposal: smc.Proposal, constraint: gcd.TokenAutomaton, budget: int, device: torch.device
) -> float:
    """Return the seconds in which a proposal makes its table.

    The proposal caches the table, so this must be called first. A small table is made before and
    discarded, to load or compile the kernels.
    """
    automata = gcd.AutomatonBatch([constraint], device=device)
    shortest = constraint.fewest_tokens
    small, whole = (
        smc.Batch(automata, torch.tensor([tokens], device=device)) for tokens in (shortest, budget)
    )
    proposal.start(small)
    proposal.free()
    return round(seconds_of(lambda: proposal.start(whole), device), 5)
