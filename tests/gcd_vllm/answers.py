"""Answers under way, with the values that a processor should store for each of their tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import gcd
import smc
from gcd_vllm import PGCD
from gcd_vllm._particle_request import ParticleRequest
from smc._vocabulary.factors import defend
from tests.gcd_vllm.fakes import SamplingParams, allowed_after, finite, lifted

REGEX = {"regex": "[ab]{1,9}c?"}


def parameters(
    key: str = "", budget: int = 6, temperature: float = 1.0, prefix_tokens: int = 0, **more: Any
) -> SamplingParams:
    """Return what a particle of the constraint is asked with."""
    particle = ParticleRequest(key, prefix_tokens, **more)
    extra = {"gcd": json.dumps(REGEX | {"budget": budget}), "gcd_particle": particle.text()}
    return SamplingParams(
        max_tokens=budget - prefix_tokens, temperature=temperature, extra_args=extra
    )


class Plain:
    """An answer that is not a particle, with the constraint or without one."""

    def __init__(
        self,
        tokens: gcd.Vocabulary,
        budget: int,
        *,
        prefix: Sequence[int] = (),
        masked: bool = True,
    ) -> None:
        self.eos_ids, self.budget = tokens.eos_ids, budget
        self.prompt, self.output = [5, 6, *prefix], list[int]()
        self.params, self.matcher = SamplingParams(max_tokens=budget), None
        if masked:
            self.params.extra_args = {"gcd": json.dumps(REGEX)}
            self.matcher = gcd.Matcher(lifted(json.dumps(REGEX), tokens), budget=budget)
            assert all(map(self.matcher.advance, prefix))

    @property
    def finished(self) -> bool:
        return len(self.output) == self.budget or bool({*self.output[-1:]} & {*self.eos_ids})

    def step(self, before: Tensor, after: Tensor, rng: random.Random) -> None:
        """Check the logits, and draw a token, as the engine does."""
        size, found = len(before), finite(after)
        every = set(range(size))
        assert found == (every if self.matcher is None else allowed_after(self.matcher, [], size))
        token = rng.choice(sorted(found))
        self.check(before, after, token)
        self.output.append(token)
        assert self.matcher is None or self.matcher.advance(token)

    def check(self, before: Tensor, after: Tensor, token: int) -> None:
        """Check that the logits are only masked."""
        kept = torch.isfinite(after)
        assert torch.equal(before[kept], after[kept])


class Particle(Plain):
    """An answer drawn from GCD; its values are log Z and log p."""

    tolerance = 1e-5

    def __init__(
        self, key: str, tokens: gcd.Vocabulary, budget: int, temperature: float = 1.0,
        prefix: Sequence[int] = (), **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(tokens, budget, prefix=prefix)
        self.key, self.temperature = key, temperature
        self.params = parameters(key, budget, temperature, len(prefix), **more)
        self.expected = list[list[float]]()

    def check(self, before: Tensor, after: Tensor, token: int) -> None:
        """Note the values that the token should have."""
        log_p = (before.double() / self.temperature).log_softmax(0)
        log_z = log_p[torch.isfinite(after)].logsumexp(0)
        self.expected.append([float(log_z), float(log_p[token])])

    def check_values(self, found: dict[str, list[list[float]]]) -> None:
        """Compare the stored values with those noted."""
        expected = torch.tensor(self.expected)
        values = torch.tensor(found[self.key])[:, : expected.shape[1]]
        torch.testing.assert_close(values, expected, rtol=1e-5, atol=self.tolerance)


class Twisted(Particle):
    """An answer drawn from P-GCD; its values are log Z, log p and log q."""

    tolerance = 1e-4

    def __init__(
        self, key: str, tokens: gcd.Vocabulary, budget: int, temperature: float = 1.0,
        prefix: Sequence[int] = (), *, pgcd: PGCD,
    ) -> None:  # fmt: skip
        super().__init__(key, tokens, budget, temperature, prefix, proposal="pgcd", pgcd=pgcd)
        self.prefix, self.proposal = prefix, pgcd.proposal(tokens, torch.device("cpu"))
        batch = gcd.AutomatonBatch([lifted(json.dumps(REGEX), tokens)])
        self.start = self.proposal.start(smc.Batch(batch, torch.tensor([budget])))

    def check(self, before: Tensor, after: Tensor, token: int) -> None:
        """Compare the distribution with the proposal's, and note the token's values."""
        log_p = (before / self.temperature).log_softmax(0).unsqueeze(0)
        read = torch.tensor([[*self.prefix, *self.output]], dtype=torch.int64)
        guide = defend(self.proposal.guide(self.proposal.advance(self.start, read), log_p), log_p)
        log_q = (guide.apply(log_p) - guide.log_z.unsqueeze(1))[0]
        sampled = (after / self.temperature).log_softmax(0)
        torch.testing.assert_close(sampled.exp().double(), log_q.exp(), rtol=0, atol=1e-5)
        self.expected.append([float(guide.log_z), float(log_p[0, token]), float(log_q[token])])
