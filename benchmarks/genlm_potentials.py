"""Language models and constraints of this project as potentials of the package `genlm-control`.

This module imports that package. Tokens are token ids; all EOS ids together are the package's
single end of sequence.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from genlm.control import AWRS, EOS, SMC, Potential
from genlm.control.potential.autobatch import autobatched
from jaxtyping import Float
from torch import Tensor

from gcd import TokenAutomaton, Vocabulary
from smc import LanguageModel, Rows

Context = tuple[int, ...]
_NEVER = -math.inf


class ModelPotential(Potential):
    """A language model after a prompt, which computes each distinct prefix once.

    Args:
        lm: the language model.
        prompt: token ids.
        tables: tables of the vocabulary, `tables_of(lm.vocabulary)`.
    """

    def __init__(self, lm: LanguageModel, prompt: Sequence[int], tables: Any) -> None:
        super().__init__(tables.vocab_eos[:-1], tables=tables)
        self._lm, self._prompt = lm, list(prompt)
        self._ids = torch.tensor(self.vocab, device=lm.device)
        self._eos = torch.tensor(list(lm.vocabulary.eos_ids), device=lm.device)
        self._rows: Rows | None = None
        self._known: dict[Context, Tensor] = {}  # prefixes of one length, in the order of rows

    async def prefix(self, context: list[Any]) -> float:
        """Return the weight of the empty prefix; particles are weighed token by token."""
        if context:
            raise ValueError("the language model weighs next tokens, not whole prefixes")
        return 0.0

    async def complete(self, context: list[Any]) -> float:
        """Return the weight of ending here, which is that of EOS."""
        return await self.logw_eos(context)

    async def logw_eos(self, context: list[Any]) -> float:
        """Return log p(EOS | context), batched with other particles."""
        return float((await autobatched(self).logw_next(context))[EOS])

    async def logw_next(self, context: list[Any]) -> Any:
        """Return log p(next token | context)."""
        weights = await self.batch_logw_next([context])
        return self.make_lazy_weights(weights.weights[0])

    async def batch_logw_next(self, contexts: list[list[Any]]) -> Any:
        """Return `logw_next` for prefixes of one length, in one forward pass."""
        wanted = [tuple(context) for context in contexts]
        new = list(dict.fromkeys(context for context in wanted if context not in self._known))
        if new:
            self._read(new)
        return self.make_lazy_weights(torch.stack([self._known[context] for context in wanted]))

    def _read(self, contexts: list[Context]) -> None:
        """Compute prefixes whose parents were computed last."""
        log_p: Float[Tensor, "R V"]
        if self._rows is None:
            self._rows, log_p = self._lm.prefill([self._prompt])
        else:
            row = {context: number for number, context in enumerate(self._known)}
            device = self._lm.device
            parents = torch.tensor([row[context[:-1]] for context in contexts], device=device)
            last = torch.tensor([[context[-1]] for context in contexts], device=device)
            self._rows.reorder(parents)
            log_p = self._rows.extend(last, torch.ones_like(parents))[:, 0]
        log_p = log_p.double().log_softmax(dim=1)
        eos = log_p[:, self._eos].logsumexp(dim=1, keepdim=True)
        weights = torch.cat([log_p[:, self._ids], eos], dim=1)
        self._known = dict(zip(contexts, weights, strict=True))


class ConditionPotential(Potential):
    """Indicator of prefixes that can be completed, at some length or within the budget.

    Args:
        constraint: the constraint.
        budget: maximum number of tokens, EOS included; None for no budget.
        tables: tables of the vocabulary.
    """

    def __init__(self, automaton: TokenAutomaton, budget: int | None, tables: Any) -> None:
        super().__init__(tables.vocab_eos[:-1], tables=tables)
        self._automaton, self._budget = automaton, budget
        self._eos = int(automaton.vocabulary.eos_ids[0])
        self._states: dict[Context, int] = {(): int(automaton.initial)}

    async def prefix(self, context: list[Any]) -> float:
        """Return 0 if the prefix can be completed, else -inf."""
        state = self._state(tuple(context))
        if state < 0:
            return _NEVER
        if self._budget is None:
            return 0.0
        needed = int(self._automaton.steps_to_accept[state])
        return 0.0 if needed <= self._budget - len(context) else _NEVER

    async def complete(self, context: list[Any]) -> float:
        """Return 0 if the text may end, else -inf."""
        state = self._state(tuple(context))
        ends = state >= 0 and self._automaton.step(state, self._eos) >= 0
        return 0.0 if ends else _NEVER

    def _state(self, context: Context) -> int:
        """Return the state after a prefix; -1 if the constraint excludes it."""
        if context not in self._states:
            before = self._state(context[:-1])
            after = -1 if before < 0 else int(self._automaton.step(before, context[-1]))
            self._states[context] = after
        return self._states[context]


def tables_of(vocabulary: Vocabulary) -> Any:
    """Make the package's tables of a vocabulary, shared by all its potentials."""
    ends = set(vocabulary.eos_ids)
    return Potential.build_tables([token for token in range(vocabulary.size) if token not in ends])


def awrs(model: ModelPotential, condition: ConditionPotential, seed: int) -> AWRS:
    """Make the package's token sampler for one prompt, with new potentials."""
    # Conditions are lookups, so batching them would cost more than it saves.
    return AWRS(autobatched(model), condition, seed=seed, autobatch=False)


def sequential(sampler: Any, *, budget: int, particles: int, seed: int) -> Any:
    """Run the package's sequential Monte Carlo with one of its token samplers.

    All particles are resampled together, as with `strata="none"`. The package uses the global
    generators of numpy and torch, which are restored.

    Args:
        sampler: token sampler of the package.
        budget: maximum number of tokens, EOS included.
        particles: N.
        seed: seed of all random numbers.
    """
    work = SMC(sampler)(
        n_particles=particles,
        ess_threshold=0.5,
        max_tokens=budget,
        resampling_method="systematic",
    )
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return asyncio.run(work)
    finally:
        np.random.set_state(before)  # noqa: NPY002
