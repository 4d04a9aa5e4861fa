"""Initialization of an HMM for EM, from a language model's hidden states.

EM finds a local optimum, which is poor if it starts from random parameters: with hundreds of
states, many become nearly equal. **Latent variable distillation** (Liu, Zhang & Van den Broeck,
"Scaling up probabilistic circuits by latent variable distillation", ICLR 2023) starts from a
language model's representation of the prefix. Each position of each sequence has a vector, the
model's hidden state. k-means divides the vectors into groups, and the group of a vector becomes the
HMM's state at this position. As the states are then known, one M-step on their counts gives the
parameters, with a pseudo-count c:

    initial(h) ∝ c + #{h_1 = h},   A(i, j) ∝ c + #{h_t = i, h_{t+1} = j},
    emission(v, h) ∝ c + #{x_t = v, h_t = h}

**Choice of the vector.** The HMM's state h_t emits token x_t and determines the distribution of
later tokens. The language model's hidden state *after* x_t depends on this token and predicts later
tokens. This module and Ctrl-G (arXiv 2406.13892) therefore use the vector after the token:
`vectors[b, t]` is computed after `tokens[b, t]`. The vector one position earlier would predict the
token, but not include it.

**EOS.** After EOS a language model's predictions are meaningless. So EOS has a separate state,
which is the last one, and k-means divides the other positions into H - 1 groups.

Cost: k-means through faiss, O(iterations · vectors · H · dimension) on at most 256 vectors per
group, then one assignment of all vectors to their group.
"""

from __future__ import annotations

import logging

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gcd._arguments import check_indices, check_shapes
from gcd._support.optional import missing
from hmm._em import PseudoCounts, Statistics, maximize
from hmm._model import HMM

SMOOTHING = PseudoCounts(initial=0.01, transition=0.01, emission=0.001)
"""Default pseudo-counts, which give every event a positive probability.

They are small compared with a single observation.
"""

ITERATIONS = 25
"""Iterations of Lloyd's algorithm (k-means)."""
POINTS = 256
"""Maximum number of vectors per group on which k-means is trained; a random sample."""


def cluster(
    vectors: Float[Tensor, "N D"],
    num_clusters: int,
    *,
    restarts: int = 1,
    seed: int = 0,
) -> Int64[Tensor, "N"]:
    """Divide vectors into groups by k-means (faiss), and return the group of each vector."""
    try:
        import faiss
    except ImportError as error:
        raise missing("faiss", "distillation", "latent variable distillation") from error
    if vectors.shape[0] < num_clusters or num_clusters < 1:
        raise ValueError(
            f"expected at least {num_clusters} vectors for {num_clusters} clusters, got "
            f"{vectors.shape[0]}; add sequences, or use fewer hidden states"
        )
    # Suppress a message about the way in which faiss was compiled.
    logging.getLogger("faiss").setLevel(logging.WARNING)
    points = np.ascontiguousarray(vectors.detach().to("cpu", torch.float32).numpy())
    if not np.isfinite(points).all():
        raise ValueError(
            "expected finite vectors for k-means, got NaN or infinity; check the language model's "
            "hidden states"
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
    dtype: torch.dtype = torch.float32,
) -> Statistics:
    """Count the statistics of EM for sequences whose hidden states are known."""
    check_shapes(
        (states, tuple(tokens.shape), "`states` (one per token)"),
        (lengths, tuple(tokens.shape[:1]), "`lengths` (one per sequence)"),
    )
    check_indices(tokens[:0], 0)  # without values, only the type is checked
    device = tokens.device
    inside = torch.arange(tokens.shape[1], device=device) < lengths.unsqueeze(1)
    for name, values, size in (("states", states, num_states), ("tokens", tokens, num_tokens)):
        kept = values[inside]
        if kept.numel() and not 0 <= int(kept.min()) <= int(kept.max()) < size:
            raise ValueError(
                f"expected {name} from 0 to {size - 1}, got {name} from {int(kept.min())} to "
                f"{int(kept.max())}"
            )

    def count(shape: tuple[int, ...], *indices: Int64[Tensor, "n"]) -> Float[Tensor, "..."]:
        """Return the number of times that each tuple of indices occurs."""
        flat = torch.zeros_like(indices[0])
        for size, index in zip(shape, indices, strict=True):
            flat = flat * size + index
        counted = torch.bincount(flat, minlength=int(np.prod(shape)))
        return counted.reshape(shape).to(dtype)

    pair = inside[:, 1:]
    before, after = states[:, :-1][pair], states[:, 1:][pair]
    # The log-likelihood is set to zero, because it depends on a model.
    scalars = (0.0, float((lengths > 0).sum()), float(inside.sum()))
    return Statistics(
        count((num_states,), states[:, 0][inside[:, 0]]),
        (count((num_states, num_states), before, after),),
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
    restarts: int = 1,
    seed: int = 0,
) -> HMM:
    """Make an HMM from a language model's hidden states, by latent variable distillation.

    Args:
        vectors: the language model's hidden state after each token, one row per token, sequence
            after sequence. There are n = lengths.sum() rows, such as `hidden[inside]` of a (B, T,
            D) array.
        tokens: generated tokens; values after a sequence's end are ignored.
        lengths: number of tokens of each sequence, including EOS.
        num_states: H.
        num_tokens: V, the width of the language model's logits.
        eos_ids: EOS tokens, which share the HMM's last state. If empty, no state is reserved for
            EOS.
        smoothing: pseudo-counts.
        restarts, seed: for k-means; see `cluster`.

    Raises:
        ValueError: sizes are inconsistent, or there are too few vectors.
    """
    inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(1)
    if vectors.shape[0] != int(lengths.sum()):
        raise ValueError(
            f"expected {int(lengths.sum())} vectors, one per token of all sequences, including "
            f"EOS, got {vectors.shape[0]}"
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
    counts = counts_of_states(states, tokens, lengths, num_states, num_tokens)
    return maximize(counts, smoothing)
