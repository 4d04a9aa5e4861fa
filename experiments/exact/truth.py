"""Exact evidence, posterior and laws of single samples, by sums over all prefixes.

The tree has all token prefixes that can be completed under a constraint and a budget. There may be
few texts and a large tree, because every tokenization of a text is a separate path. The prefixes
are counted without building them: with r tokens left in state s,

    count_r(s) = 1 + sum over tokens v of  count_{r-1}(delta(s, v)),    0 if steps_to_accept(s) > r

where ended texts count as zero. This takes O(budget · pairs of states), so a tree that is too large
is refused before a language model is called.

The probability of a token sequence is a product along its path, that of a text the sum over its
tokenizations, and the evidence is their total:

    p_lm(C within n) = sum over ended x of p_lm(x),     posterior(y) = sum over spellings x of y
                                                                        p_lm(x) / p_lm(C within n)

A single sample of LCD or GCD is drawn by a product of q(v) = p_lm(v) g(v) / Z along the path. Its
law over texts follows without sampling; the mass missing to one is the probability of no answer.
(LCD only requires that a text can be completed at some length.)

**Distance.** "No answer" is an outcome with posterior probability zero. The total variation between
a law over answers and the posterior is therefore half of (sum of absolute differences + missing
mass), which is 1 for a method that never answers. The empirical law of N exact draws also has a
distance. Its expectation is a sum of mean absolute deviations of binomials, each in closed form (de
Moivre 1730): with k = floor(N p) + 1,

    E|X - N p| = 2 k (1 - p) P(X = k),      X ~ Binomial(N, p)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy import sparse
from torch import Tensor

from experiments.exact.cached import CachedLM
from gcd import TokenAutomaton


def count_prefixes(automaton: TokenAutomaton, budget: int) -> float:
    """Count the token prefixes, including the empty one, that can be completed within the budget.

    Ended texts aren't counted. Exact up to 2^53, a float beyond.
    """
    final, steps = automaton.final, automaton.steps_to_accept
    source, symbol = np.nonzero(automaton.delta[:final] >= 0)
    target = automaton.delta[source, symbol]
    weight = automaton.tokens_per_class[symbol].astype(float)
    inner = target != final
    moves = sparse.csr_matrix(
        (weight[inner], (source[inner], target[inner])), shape=(final + 1, final + 1)
    )
    count = np.zeros(final + 1)
    farthest = int(steps.max())
    for remaining in range(1, budget + 1):
        alive = steps <= remaining
        alive[final] = False
        # `count` of the previous round counts a child; it is zero if the child wasn't alive.
        before, count = count, np.where(alive, 1 + moves @ count, 0.0)
        if remaining >= farthest and np.array_equal(before, count):
            break  # no state becomes alive any more, so the count is final
    return float(count[automaton.initial])


class Level(NamedTuple):
    """All prefixes of one length that can be completed within the budget, and their tokens.

    Attributes:
        nodes: nodes of the cached model.
        at_any_length: tokens after which a text can be completed at some length (LCD).
        in_time: tokens after which a text can be completed within the budget (GCD).
        going: rows and tokens of the next level's prefixes, in order.
        ended: rows and tokens that end a text.
        texts: the text of each of `ended`.
    """

    nodes: Int64[Tensor, "R"]
    at_any_length: Tensor
    in_time: Tensor
    going: tuple[Tensor, Tensor]
    ended: tuple[Tensor, Tensor]
    texts: list[bytes]


def levels_of(lm: CachedLM, automaton: TokenAutomaton, budget: int) -> list[Level]:
    """Add all prefixes to a cached model, without computing distributions."""
    tokens = automaton.vocabulary.token_bytes
    states, nodes, spelled = np.array([automaton.initial]), torch.zeros(1, dtype=torch.int64), [b""]
    found: list[Level] = []
    for remaining in range(budget, 0, -1):
        after = automaton.delta[states][:, automaton.class_of]
        allowed = after >= 0
        in_time = allowed & (automaton.steps_to_accept[after] < remaining)
        ends = in_time & (after == automaton.final)
        row, token = np.nonzero(in_time & ~ends)
        ended = torch.from_numpy(ends).nonzero(as_tuple=True)
        going = torch.from_numpy(row), torch.from_numpy(token)
        found.append(Level(
            nodes, torch.from_numpy(allowed), torch.from_numpy(in_time), going,
            (ended[0], ended[1]), [spelled[i] for i in ended[0].tolist()],
        ))  # fmt: skip
        if not len(row):
            break
        states, nodes = after[row, token], lm.step(nodes[going[0]], going[1])
        spelled = [
            spelled[r] + tokens[t] for r, t in zip(row.tolist(), token.tolist(), strict=True)
        ]
    return found


@dataclass(frozen=True)
class Truth:
    """Exact solution of a problem.

    Attributes:
        texts: the answers.
        log_evidence: log p_lm(C within n).
        posterior: posterior probability of each text.
        laws: probability of each text in a single sample of LCD and of GCD, by method.
    """

    texts: Sequence[bytes]
    log_evidence: float
    posterior: Float64[np.ndarray, "texts"]
    laws: dict[str, Float64[np.ndarray, "texts"]]


def solve(lm: CachedLM, levels: Sequence[Level], texts: Sequence[bytes] | None = None) -> Truth:
    """Compute the exact solution of a problem; `texts` are the answers in order, if known.

    Raises:
        ValueError: every text has probability zero under the model.
    """
    total = torch.zeros(1, 3, dtype=torch.float64)  # of the path under p_lm, LCD and GCD
    spelled: list[bytes] = []
    parts = [total[:0]]
    for level in levels:
        log_p = lm.log_p(level.nodes)
        log_z = torch.zeros(len(log_p), 3, dtype=torch.float64)
        for column, mask in enumerate((level.at_any_length, level.in_time), 1):
            log_z[:, column] = log_p.masked_fill(~mask, -torch.inf).logsumexp(dim=1)
        log_z.clamp_(min=-1e300)  # no token has a probability, so neither has the path
        total = total - log_z
        spelled += level.texts
        parts.append(total[level.ended[0]] + log_p[level.ended].unsqueeze(1))
        total = total[level.going[0]] + log_p[level.going].unsqueeze(1)
    log_paths = torch.cat(parts)
    largest = float(log_paths[:, 0].max())
    if largest == -torch.inf:
        raise ValueError(
            "expected an answer with positive probability within the budget, but the language "
            "model gives all of them probability zero; give other strings, or another prompt"
        )
    log_paths[:, 0] -= largest  # so that small probabilities don't underflow
    texts = sorted(set(spelled)) if texts is None else list(texts)
    number = {text: i for i, text in enumerate(texts)}
    sums = np.zeros((len(texts), 3))
    np.add.at(sums, [number[text] for text in spelled], log_paths.exp().numpy())
    mass = float(sums[:, 0].sum())
    laws = {"lcd": sums[:, 1], "gcd": sums[:, 2]}
    return Truth(texts, largest + math.log(mass), sums[:, 0] / mass, laws)


def total_variation(
    laws: Float64[np.ndarray, "*B K"], exact: Float64[np.ndarray, "K"]
) -> Float64[np.ndarray, "*B"]:
    """Compute the total variation of each law to an exact distribution.

    The mass that a law lacks to one is the probability of "no answer", which is never correct.
    """
    missing = np.maximum(0.0, 1.0 - laws.sum(axis=-1))
    return np.asarray(0.5 * (np.abs(laws - exact).sum(axis=-1) + missing))
