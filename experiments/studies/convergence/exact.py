"""Exact evidence, posterior and laws of single samples, in one pass over a tree.

The probability of a token sequence is a product along its path, that of a text the sum over its
tokenizations, and the evidence is their total:

    p_lm(C within n) = sum over ended x of p_lm(x),     posterior(y) = sum over spellings x of y
                                                                        p_lm(x) / p_lm(C within n)

A single sample of a proposal is drawn by a product of q(v) = p_lm(v) g(v) / Z along the path. Its
law over texts follows without sampling; the mass missing to one is the probability of no answer.

**Distance.** "No answer" is an outcome with posterior probability zero. The total variation between
a law over answers and the posterior is therefore half of (sum of absolute differences + missing
mass), which is 1 for a method that never answers. The empirical law of N exact draws also has a
distance. Its expectation is a sum of mean absolute deviations of binomials, each in closed form (de
Moivre 1730): with k = floor(N p) + 1,

    E|X - N p| = 2 k (1 - p) P(X = k),      X ~ Binomial(N, p)

Cost: O(slots of the tree).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from experiments.studies.convergence.tree import Tree
from smc._vocabulary.mixture import sums_by


class Exact(NamedTuple):
    """Exact solution of a problem.

    Attributes:
        log_evidence: log p_lm(C within n).
        posterior: posterior probability of each text.
    """

    log_evidence: float
    posterior: Float64[Tensor, "texts"]


class Law(NamedTuple):
    """Law of one sample over the texts.

    Attributes:
        probabilities: probability of each text; the mass missing to one is "no answer".
        share_valid: sum of the probabilities.
        total_variation: total variation to the posterior.
    """

    probabilities: Float64[Tensor, "texts"]
    share_valid: float
    total_variation: float


def exact(tree: Tree) -> Exact:
    """Compute the exact evidence and posterior of a problem.

    Raises:
        ValueError: every text has probability zero under the model.
    """
    log_law = log_sum_of_paths(tree, tree["log_p"])
    log_evidence = float(log_law.logsumexp(dim=0))
    if log_evidence == -np.inf:
        raise ValueError(
            "expected an answer with positive probability within the budget, but the language "
            "model gives all of them probability zero; give other strings, or another prompt"
        )
    return Exact(log_evidence, (log_law - log_evidence).exp())


def total_variation(
    laws: Float64[np.ndarray, "*B K"], exact: Float64[np.ndarray, "K"]
) -> Float64[np.ndarray, "*B"]:
    """Compute the total variation of each law to an exact distribution.

    The mass that a law lacks to one is the probability of "no answer", which is never correct.
    """
    missing = np.maximum(0.0, 1.0 - laws.sum(axis=-1))
    return np.asarray(0.5 * (np.abs(laws - exact).sum(axis=-1) + missing))


def floor_of_draws(posterior: Float64[Tensor, "texts"], draws: int) -> float:
    """Compute the expected total variation between `draws` exact samples and the posterior."""
    from scipy import stats  # slow to import

    p = posterior.numpy()
    p = p[(p > 0) & (p < 1)]
    k = np.floor(draws * p) + 1
    deviations = 2 * k * (1 - p) * stats.binom.pmf(k, draws, p)
    return float(deviations.sum()) / (2 * draws)


def log_sum_of_paths(tree: Tree, log_step: Float64[Tensor, "slots"]) -> Float64[Tensor, "texts"]:
    """Compute for each text the log of the sum over tokenizations of the product of steps."""
    total = torch.zeros(tree.num_exact, dtype=torch.float64)
    parent, slot = tree["parent"], tree["slot"]
    for first, end in tree.levels()[1:]:
        total[first:end] = total[parent[first:end]] + log_step[slot[first:end]]
    text = tree["text"][: tree.num_exact]
    ended = text >= 0
    return sums_by(total[ended], text[ended], len(tree.texts))
