"""Ways to sample with `genlm-control` in `benchmarks/smc.py`; this module imports that package.

Language model and weights are this project's. The ways differ in who runs the model:

* the package's own backend, as it is normally used: `PromptedLLM` over `AsyncTransformer`. With
  prompt caching it keeps the prompt's keys and values and computes every prefix from there; by
  default ("uncached") it computes the prompt with every prefix;
* this project's forward passes (`benchmarks.genlm_potentials`), which compute one token per
  distinct prefix.

The constraint is the package's own automaton if it supports the language (a regular expression, on
its own backend), otherwise this project's, which is called for one prefix at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from genlm.backend.llm import AsyncTransformer
from genlm.control import AWRS, BoolFSA, PromptedLLM
from genlm.control.potential.autobatch import autobatched
from genlm.control.sampler import DirectTokenSampler

import gcd
import smc
from benchmarks.genlm_potentials import (
    ConditionPotential,
    ModelPotential,
    awrs,
    sequential,
    tables_of,
)

Prepare = Callable[[int], Callable[[], tuple[float, int]]]
"""Function of a seed that does untimed preparation and returns the timed run, whose results are the
log evidence and the number of tokens of all particles, EOS included."""


class TokenCondition(ConditionPotential):
    """A constraint as a potential over the package's tokens instead of token ids."""

    async def prefix(self, context: list[Any]) -> float:
        """Return the weight of a prefix."""
        return await super().prefix([token.token_id for token in context])

    async def complete(self, context: list[Any]) -> float:
        """Return the weight of a complete text."""
        return await super().complete([token.token_id for token in context])


class MaskedCondition(ConditionPotential):
    """LCD's condition for all next tokens at once, for direct sampling."""

    def __init__(self, automaton: gcd.TokenAutomaton, tables: Any) -> None:
        super().__init__(automaton, None, tables)
        self._classes = automaton.class_of[[*tables.vocab_eos[:-1], self._eos]]

    async def logw_next(self, context: list[Any]) -> Any:
        """Return the weights of all next tokens."""
        allowed = self._automaton.delta[self._state(tuple(context))] >= 0
        return self.make_lazy_weights(np.where(allowed, 0.0, -np.inf)[self._classes])


def on_our_passes(
    lm: smc.TransformersLM,
    prompt: Sequence[int],
    automaton: gcd.TokenAutomaton,
    budget: int,
    particles: int,
) -> dict[str, Prepare]:
    """Return AWRS under LCD's and GCD's condition, and direct sampling under LCD's."""
    tables = tables_of(lm.vocabulary)

    def model() -> ModelPotential:
        return ModelPotential(lm, prompt, tables)

    def drawing(limit: int | None) -> Callable[[int], Any]:
        return lambda seed: awrs(model(), ConditionPotential(automaton, limit, tables), seed)

    def direct(_: int) -> DirectTokenSampler:
        return DirectTokenSampler(model() * MaskedCondition(automaton, tables))

    samplers = {"lcd": drawing(None), "gcd": drawing(budget), "direct": direct}
    return {name: _run_of(made, budget, particles) for name, made in samplers.items()}


def on_its_backend(
    lm: smc.TransformersLM,
    prompt: Sequence[int],
    automaton: gcd.TokenAutomaton,
    budget: int,
    particles: int,
    pattern: str | None,
) -> dict[str, Prepare]:
    """Return ways with AWRS on the package's backend, with prompt caching and with its default.

    For a regular expression they use the package's automaton, and there is also direct sampling.
    """
    # A batch size equal to the number of particles avoids waiting for a timer.
    backend = AsyncTransformer(lm.model, lm.tokenizer, batch_size=particles)
    ends = [backend.byte_vocab[token].byte_string for token in lm.vocabulary.eos_ids]
    model = PromptedLLM(backend, prompt_ids=list(prompt), eos_byte_strings=ends)

    def afresh(keeps: bool = True) -> None:
        # Only the prompt stays cached between runs, as in this project.
        backend.clear_cache()
        if keeps:
            backend.cache_kv(list(prompt))

    if pattern is None:

        def asking(seed: int, keeps: bool = True) -> AWRS:
            afresh(keeps)
            condition = TokenCondition(automaton, None, model.tables)
            return AWRS(autobatched(model), condition, seed=seed, autobatch=False)

        return {
            "awrs": _run_of(asking, budget, particles),
            "uncached": _run_of(partial(asking, keeps=False), budget, particles),
        }

    fsa = BoolFSA.from_regex(pattern)
    condition = fsa.coerce(model, f=b"".join)
    asyncio.run(condition.prefix([]))  # computes cached values

    def own(seed: int, keeps: bool = True) -> AWRS:
        afresh(keeps)
        fsa.clear_cache()
        return AWRS(model, condition, seed=seed)

    def direct(_: int) -> DirectTokenSampler:
        afresh()
        fsa.clear_cache()
        return DirectTokenSampler(model * condition)

    samplers = {"awrs": own, "uncached": partial(own, keeps=False), "direct": direct}
    return {name: _run_of(made, budget, particles) for name, made in samplers.items()}


def _run_of(sampler: Callable[[int], Any], budget: int, particles: int) -> Prepare:
    """Return sequential Monte Carlo with a new token sampler for each seed."""

    def prepare(seed: int) -> Callable[[], tuple[float, int]]:
        made = sampler(seed)

        def run() -> tuple[float, int]:
            found = sequential(made, budget=budget, particles=particles, seed=seed)
            return float(found.log_ml), sum(len(context) for context in found.contexts)

        return run

    return prepare
