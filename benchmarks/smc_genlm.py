"""The ways in which `benchmarks/smc.py` has `genlm-control` sample; this module needs that package.

The language model and its weights are ours in every case. What differs is who runs them:

* on its own backend, as the package is used: `PromptedLLM` over `AsyncTransformer`. Told to, that
  keeps the keys and values of the prompt, and reads every prefix anew from there on; left as it
  comes ("uncached"), it reads the prompt with every prefix;
* on our forward passes (`benchmarks.genlm_potentials`), which read one token of each
  distinct prefix.

The constraint is the package's own automaton where it has one for the language (a regular
expression, on its own backend), else ours, which is asked about one prefix at a time.
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
"""Does for a seed what is not timed, and gives what is: a run, whose results are the log evidence
and the number of tokens of all particles, EOS included."""


class TokenCondition(ConditionPotential):
    """The condition over the package's own tokens instead of their ids."""

    async def prefix(self, context: list[Any]) -> float:
        return await super().prefix([token.token_id for token in context])

    async def complete(self, context: list[Any]) -> float:
        return await super().complete([token.token_id for token in context])


class MaskedCondition(ConditionPotential):
    """LCD's condition of all next tokens at once, which direct sampling asks for."""

    def __init__(self, automaton: gcd.TokenAutomaton, tables: Any) -> None:
        super().__init__(automaton, None, tables)
        self._classes = automaton.class_of[[*tables.vocab_eos[:-1], self._eos]]

    async def logw_next(self, context: list[Any]) -> Any:
        allowed = self._automaton.delta[self._state(tuple(context))] >= 0
        return self.make_lazy_weights(np.where(allowed, 0.0, -np.inf)[self._classes])


def on_our_passes(
    lm: smc.TransformersLM,
    prompt: Sequence[int],
    automaton: gcd.TokenAutomaton,
    budget: int,
    particles: int,
) -> dict[str, Prepare]:
    """AWRS under LCD's and under GCD's condition, and direct sampling under LCD's."""
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
    """AWRS as the package is used, its backend told to keep the prompt or left as it comes.

    Of a pattern it takes its own automaton, and there is direct sampling, too.
    """
    # As many queries as there are particles make a batch, so that none waits for a timer.
    backend = AsyncTransformer(lm.model, lm.tokenizer, batch_size=particles)
    ends = [backend.byte_vocab[token].byte_string for token in lm.vocabulary.eos_ids]
    model = PromptedLLM(backend, prompt_ids=list(prompt), eos_byte_strings=ends)

    def afresh(keeps: bool = True) -> None:
        # Of what a run has read only the prompt stays, as on our side.
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
    asyncio.run(condition.prefix([]))  # it computes what lasts

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
    """Sequential Monte Carlo with a fresh sampler of tokens for each seed."""

    def prepare(seed: int) -> Callable[[], tuple[float, int]]:
        made = sampler(seed)

        def run() -> tuple[float, int]:
            found = sequential(made, budget=budget, particles=particles, seed=seed)
            return float(found.log_ml), sum(len(context) for context in found.contexts)

        return run

    return prepare
