"""Every answer of a small constraint, and its exact probability, by a model of transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

import gcd


@dataclass
class Oracle:
    """Exact log-probabilities of tokens after a prompt, under a model on the CPU.

    Args:
        folder: directory of the model.
        automaton: the constraint.
        prompt: tokens of the prompt.
        temperature: of the model.
    """

    folder: str
    automaton: gcd.TokenAutomaton
    prompt: tuple[int, ...]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        self._after = cache(self._after)

    @torch.inference_mode()
    def _after(self, ids: tuple[int, ...]) -> torch.Tensor:
        """Log-probabilities of the next token."""
        logits = model(self.folder)(torch.tensor([[*self.prompt, *ids]])).logits[0, -1]
        return (logits.double() / self.temperature).log_softmax(-1)

    def log_p_after(self, ids: tuple[int, ...]) -> torch.Tensor:
        """Log-probabilities of all tokens after these."""
        return self._after(ids)

    def allowed(self, ids: tuple[int, ...], budget: int) -> list[int]:
        """The tokens that GCD allows next."""
        automaton, state = self.automaton, self.automaton.initial
        for token in ids:
            state = automaton.step(state, token)
        left = budget - len(ids) - 1
        after = [(v, automaton.step(state, v)) for v in range(automaton.vocabulary.size)]
        return [v for v, s in after if s >= 0 and automaton.steps_to_accept[s] <= left]

    def log_p(self, ids: tuple[int, ...]) -> list[float]:
        """Log p of each token of an answer."""
        return [float(self._after(ids[:t])[token]) for t, token in enumerate(ids)]

    def log_z(self, ids: tuple[int, ...], budget: int) -> list[float]:
        """Log of the probability that GCD's mask leaves at each token of an answer."""
        return [
            float(self._after(ids[:t])[self.allowed(ids[:t], budget)].logsumexp(0))
            for t in range(len(ids))
        ]

    def answers(
        self, budget: int, ids: tuple[int, ...] = (), log_p: float = 0.0
    ) -> dict[Any, float]:
        """Log p of every complete token sequence within the budget."""
        eos, found = self.automaton.vocabulary.eos_ids, {}
        after = self._after(ids)
        for token in self.allowed(ids, budget):
            more, value = (*ids, token), log_p + float(after[token])
            if token in eos:
                found[more] = value
            else:
                found |= self.answers(budget, more, value)
        return found


@cache
def model(folder: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def log_sum(values: Any) -> float:
    """The log of a sum of exponentials."""
    values = list(values)
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))
