"""Hidden Markov models by brute force: tables over every path of hidden states.

These oracles share no code with `hmm`: probabilities are sums over a table with one axis per time.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from hmm import HMM, Dense, LookaheadTable, expect_classes


def transition_matrix(transition: Dense) -> np.ndarray:
    """Return A in double precision."""
    return transition.matrix.double().numpy()


def beta_of(table: LookaheadTable, remaining: int) -> torch.Tensor:
    """Return unscaled beta_r(h, s) of a table (it may underflow), for every state of the batch."""
    level = min(max(remaining, 0), table.max_remaining)
    entry = table.completion.entry[level][table.number].long()
    assert bool((entry >= 0).all()), "some of it was left out"
    return table.completion.b[entry].double() * table.completion.log_scale[entry].exp()[..., None]


def log_completed(
    table: LookaheadTable, predicted: torch.Tensor, states: torch.Tensor, remaining: torch.Tensor
) -> torch.Tensor:
    """Return log P(completed within the remaining budget | prefix), 0 for complete texts.

    This isn't an oracle: it adds up the library's sums over the next token.
    """
    total = expect_classes(table, predicted, states, remaining).log_joint.logsumexp(dim=1)
    complete = (states >= 0) & table.batch.is_final[states.clamp(min=0)]
    return torch.where(complete, 0.0, total)


def parameters(hmm: HMM) -> list[torch.Tensor]:
    return [hmm.initial, *hmm.transition.factors, hmm.emission]


def joint(hmm: HMM, tokens: list[int | None]) -> np.ndarray:
    """Return P(h_1 .. h_T, x) with one axis per time; a token that is None is unobserved."""
    A = transition_matrix(hmm.transition)
    emission = hmm.emission.double().numpy()
    table = hmm.initial.double().numpy()
    for t, token in enumerate(tokens):
        if t:
            table = table[..., None] * A
        if token is not None:
            table = table * emission[token]
    return table


def over(table: np.ndarray, *times: int) -> np.ndarray:
    """Sum the table over all times except these."""
    return table.sum(axis=tuple(t for t in range(table.ndim) if t not in times))


def all_strings(num_tokens: int, length: int) -> torch.Tensor:
    """Return every sequence of `length` tokens, one per row."""
    return torch.tensor(list(itertools.product(range(num_tokens), repeat=length)))


def tiny(seed: int = 0, num_tokens: int = 3, **options) -> HMM:
    """Make an HMM with three states in float64."""
    generator = torch.Generator().manual_seed(seed)
    options = {"dtype": torch.float64, "concentration": 0.7, **options}
    return HMM.random(3, num_tokens, generator=generator, **options)


def sparse(seed: int, num_states: int = 4, num_tokens: int = 3) -> HMM:
    """Make an HMM with many zeros, so that some sequences and transitions are impossible."""
    random = np.random.default_rng(seed)

    def distributions(*shape: int) -> torch.Tensor:
        weights = random.random(shape) * (random.random(shape) < 0.5)
        weights[..., 0] += weights.sum(axis=-1) == 0
        return torch.from_numpy(weights / weights.sum(axis=-1, keepdims=True))

    return HMM(
        distributions(num_states),
        Dense(distributions(num_states, num_states)),
        distributions(num_states, num_tokens).T.contiguous(),
    )


class Recipe(NamedTuple):
    """Parameters of a random model, which are short to print when an example fails."""

    seed: int
    states: int
    num_tokens: int
    concentration: float

    def model(self) -> HMM:
        return HMM.random(
            self.states,
            self.num_tokens,
            generator=torch.Generator().manual_seed(self.seed),
            dtype=torch.float64,
            concentration=self.concentration,
        )


def recipes(max_tokens: int = 4) -> st.SearchStrategy[Recipe]:
    """Models from nearly deterministic to nearly uniform."""
    return st.builds(
        Recipe,
        seed=st.integers(0, 2**31),
        states=st.integers(1, 9),
        num_tokens=st.integers(1, max_tokens),
        concentration=st.sampled_from([0.1, 1.0, 10.0]),
    )


def batch(
    seed: int, lengths: list[int], num_tokens: int, rubbish: int = -1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random tokens with garbage after each sequence's end, and the lengths."""
    random = np.random.default_rng(seed)
    width = max(lengths, default=0)
    tokens = random.integers(num_tokens, size=(len(lengths), width))
    tokens[np.arange(width) >= np.array(lengths)[:, None]] = rubbish
    return torch.from_numpy(tokens), torch.tensor(lengths)
