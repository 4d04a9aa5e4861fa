"""Initialization of an HMM for EM, from a language model's hidden states.

EM finds a local optimum, which is poor from random parameters: with hundreds of states, many become
nearly equal. **Latent variable distillation** (Liu, Zhang & Van den Broeck, "Scaling up
probabilistic circuits by latent variable distillation", ICLR 2023) starts from a language model's
representation of the prefix. Each position of each sequence has a vector, the model's hidden state.
k-means groups the vectors, and the group of a vector is used as the HMM's state. States are then
observed, so one M-step on their smoothed counts gives the parameters:

    initial(h) ∝ c + #{h_1 = h},   A(i, j) ∝ c + #{h_t = i, h_{t+1} = j},
    emission(v, h) ∝ c + #{x_t = v, h_t = h}

**Choice of the vector.** State h_t emits token x_t and determines what follows. The LM's hidden
state *after* x_t depends on the token and predicts what follows. This is the convention of Ctrl-G
(arXiv 2406.13892) and of this module: `vectors[b, t]` comes after `tokens[b, t]`. (The vector one
position earlier predicts the token but doesn't include it; any vectors are accepted.)

**End.** After EOS a language model's predictions are meaningless. So EOS has a separate state, the
last one, and k-means groups the other positions into H - 1 groups.

Cost: k-means O(iterations · vectors · H · dimension) through faiss, on at most 256 vectors per
group, then one assignment of all.
"""

from __future__ import annotations

import logging

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gcd._support.indices import check_indices, check_shape
from gcd._support.optional import missing
from hmm._em import PseudoCounts, Statistics, maximize
from hmm._model import HMM
from hmm._transition import factor_shapes

SMOOTHING = PseudoCounts(initial=0.01, transition=0.01, emission=0.001)
"""Pseudo-counts per entry: large enough to make everything possible, small beside one observation.
"""

ITERATIONS = 25
"""Iterations of Lloyd's algorithm."""
POINTS = 256
"""Most vectors per group that k-means is trained on; drawn with the seed."""


def cluster(
    vectors: Float[Tensor, "N D"],
    num_clusters: int,
    *,
    restarts: int = 1,
    seed: int = 0,
) -> Int64[Tensor, "N"]:
    """Group vectors by k-means (faiss) and return the group of each.

    Args:
        vectors: points, on any device, in any type.
        num_clusters: number of groups.
        restarts: number of runs; the result with the tightest groups is returned. With few
            well-separated groups, a single run often merges two of them.
        seed: seed of faiss. The same seed and data give the same groups.

    Raises:
        ImportError: if faiss is not installed (extra `distillation`).
        ValueError: if there are fewer vectors than groups, or some are not finite.
    """
    try:
        import faiss
    except ImportError as error:
        raise missing("faiss", "distillation", "latent variable distillation") from error
    if vectors.shape[0] < num_clusters or num_clusters < 1:
        raise ValueError(
            f"expected at least {num_clusters} vectors, one per cluster, got {vectors.shape[0]}; "
            "add sequences, or use fewer hidden states"
        )
    # Suppresses a message about faiss's compilation.
    logging.getLogger("faiss").setLevel(logging.WARNING)
    points = np.ascontiguousarray(vectors.detach().to("cpu", torch.float32).numpy())
    if not np.isfinite(points).all():
        raise ValueError(
            "expected finite vectors for k-means, got NaN or infinity; check the hidden states"
        )
    means = faiss.Kmeans(
        points.shape[1],
        num_clusters,
        niter=ITERATIONS,
        nredo=restarts,
        seed=seed % 2**31,  # faiss has 32-bit seeds
        min_points_per_centroid=1,
        max_points_per_centroid=POINTS,
    )
    means.train(points)
    _, nearest = means.index.search(points, 1)
    return torch.from_numpy(nearest[:, 0].astype(np.int64)).to(vectors.device)


def counts_of_states(
    states: Int64[Tensor, "B T"],
    tokens: Int64[Tensor, "B T"],
    lengths: Int64[Tensor, "B"],
    num_states: int,
    num_tokens: int,
    *,
    monarch: bool | int = False,
    dtype: torch.dtype = torch.float32,
) -> Statistics:
    """Count the statistics of EM for sequences whose hidden states are known.

    Args:
        states: the state that emitted each token; values after a sequence's end are ignored.
        tokens: the tokens; values after a sequence's end are ignored.
        lengths: number of tokens of each sequence.
        num_states: H.
        num_tokens: V.
        monarch: kind of transition, as in `HMM.random`.
        dtype: type of the counts.

    Raises:
        ValueError: if a state or token is out of range.
    """
    check_shape(states, tuple(tokens.shape), "states, one for each token")
    check_shape(lengths, tuple(tokens.shape[:1]), "lengths, one for each sequence")
    check_indices(tokens[:0], 0)  # checks only the type
    device = tokens.device
    inside = torch.arange(tokens.shape[1], device=device) < lengths.unsqueeze(1)
    for name, values, size in (("states", states, num_states), ("tokens", tokens, num_tokens)):
        kept = values[inside]
        if kept.numel() and not 0 <= int(kept.min()) <= int(kept.max()) < size:
            raise ValueError(
                f"expected {name} in 0..{size - 1}, got {int(kept.min())} to {int(kept.max())}"
            )

    def count(shape: tuple[int, ...], *indices: Int64[Tensor, "n"]) -> Float[Tensor, "..."]:
        """Return how often each tuple of indices occurs."""
        flat = torch.zeros_like(indices[0])
        for size, index in zip(shape, indices, strict=True):
            flat = flat * size + index
        counted = torch.bincount(flat, minlength=int(np.prod(shape)))
        return counted.reshape(shape).to(dtype)

    pair = inside[:, 1:]
    before, after = states[:, :-1][pair], states[:, 1:][pair]
    shapes = factor_shapes(num_states, monarch)
    if len(shapes) == 1:
        transitions: tuple[Tensor, ...] = (count(shapes[0], before, after),)
    else:  # (k, m) -> (k', m') uses first[k, m, m'] and second[m', k, k']
        inner = shapes[0][1]
        k, m, next_k, next_m = before // inner, before % inner, after // inner, after % inner
        transitions = count(shapes[0], k, m, next_m), count(shapes[1], next_m, k, next_k)
    # No model was used, so there is no log-likelihood.
    scalars = (0.0, float((lengths > 0).sum()), float(inside.sum()))
    return Statistics(
        count((num_states,), states[:, 0][inside[:, 0]]),
        transitions,
        count((num_tokens, num_states), tokens[inside], states[inside]),
        *(torch.tensor(value, dtype=torch.float64, device=device) for value in scalars),
    )


def distilled(
    vectors: Float[Tensor, "n D"],
    tokens: Int64[Tensor, "B T"],
    lengths: Int64[Tensor, "B"],
    num_states: int,
    num_tokens: int,
    *,
    eos_ids: tuple[int, ...] = (),
    smoothing: PseudoCounts = SMOOTHING,
    monarch: bool | int = False,
    restarts: int = 1,
    seed: int = 0,
) -> HMM:
    """Make an HMM from a language model's hidden states by latent variable distillation.

    Args:
        vectors: the LM's hidden state after each token, one row per token, sequence after sequence;
            n = lengths.sum() rows, such as `hidden[inside]` of a (B, T, D) array.
        tokens: generated tokens; values after a sequence's end are ignored.
        lengths: number of tokens of each sequence, EOS included.
        num_states: H.
        num_tokens: V, the width of the LM's logits.
        eos_ids: tokens that share the last state; if empty, no state is reserved.
        smoothing: pseudo-count added to each event.
        monarch: as in `HMM.random`. States are in k-means' order, so neighbors in a block are not
            especially similar.
        restarts, seed: of k-means, see `cluster`.

    Raises:
        ValueError: for inconsistent sizes, or too few vectors.
    """
    inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(1)
    if vectors.shape[0] != int(lengths.sum()):
        raise ValueError(
            f"expected {int(lengths.sum())} vectors, one for each token inside a sequence, EOS "
            f"included, got {vectors.shape[0]}"
        )
    seen = tokens[inside]
    ends = torch.isin(seen, torch.tensor(eos_ids, dtype=seen.dtype, device=seen.device))
    assigned = torch.full_like(seen, num_states - 1)
    assigned[~ends] = cluster(
        vectors[~ends.to(vectors.device)],
        num_states - bool(eos_ids),
        restarts=restarts,
        seed=seed,
    ).to(seen.device)
    states = torch.zeros_like(tokens)
    states[inside] = assigned
    counts = counts_of_states(states, tokens, lengths, num_states, num_tokens, monarch=monarch)
    return maximize(counts, smoothing)
