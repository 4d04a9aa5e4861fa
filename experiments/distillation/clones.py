"""Cloned HMM made from visited prefixes without EM: each state emits mainly one token.

A state belongs to a token, so the HMM is at least a bigram model. Several states (clones) belong to
the same token and differ in the continuations they expect. HMMs with these sparse emissions are
called cloned HMMs (Dedieu et al., "Learning higher-order sequential structure with cloned HMMs",
arXiv 1905.00507, who train them by EM). Here each prefix is assigned to a state first.

    kinds      one per frequent token, one for all other tokens, one for the ends of a text
    clones     of a kind: weighted k-means of the prefixes that end in it, by the logits of the
               next distribution, projected at random (Johnson and Lindenstrauss 1984)

Logits are linear in the model's hidden state. They also distinguish prefixes after which the model
is certain of the same next token.

The number of clones of a kind follows from quantization theory: k clusters in d dimensions leave a
distortion of about S k^(-2/d) (Zador 1982), so another cluster gains S k^(-1 - 2/d). Each state is
assigned to the kind with the largest gain, where S is the scatter of a kind's prefixes and d = 4.

Every prefix then has a state, and the parameters are weighted averages over a state's prefixes:

    A(s, s') = P(kind | s) · [ n(s, s') + m P(s' | kind) ] / [ n(s, kind) + m ]

Here, `kind` is the kind of state s', and n counts visited children. P(kind | s) is the mean of the
model's *distributions*, not of samples. So a continuation that is missing from ten thousand samples
still has a positive probability, which matters if a constraint or a tight budget forces it. Only
the choice among a kind's clones is estimated by counts, with m pseudo-counts distributed as these
clones are overall. A state whose prefixes all ended has the average transitions.

Cost: k-means, and passes over the distributions; seconds for a thousand states.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from experiments.distillation.prefixes import TopTokenPrefixes
from experiments.tasks import derive_seed
from hmm import HMM, Dense

FEWEST_STATES = 2
"""One state for all tokens, and one for the ends of a text."""

_ITERATIONS = 15
_POINTS = 256  # sampled points per cluster for k-means
_DECAY = 1.5  # 1 + 2/d
_COVERED = 0.995  # share of all tokens that tokens with their own kind cover
_CLONE_PRIOR = 1.0  # m
_TOKEN_PRIOR = 5.0  # pseudo-counts of a state over the tokens of its kind
_NOTHING = 1e-12  # share of the average, for states that were never read


def clone(
    visited: TopTokenPrefixes,
    num_states: int,
    *,
    eos_ids: tuple[int, ...],
    own: float = 0.25,
    seed: int = 0,
) -> HMM:
    """Make the HMM of these prefixes, in float32.

    Args:
        visited: prefixes; an answer begins at a root.
        num_states: maximum number of states; fewer are made for fewer distinct prefixes.
        eos_ids: tokens that end a text.
        own: maximum number of frequent tokens that have separate kinds, as a share of the states.
        seed: seed of k-means.

    Raises:
        ValueError: `num_states` is less than two.
    """
    if num_states < FEWEST_STATES:
        raise ValueError(
            f"expected at least {FEWEST_STATES} states for a cloned HMM (one for tokens, and one "
            f"for the ends of a text), got {num_states}"
        )
    ends = torch.isin(torch.arange(visited.num_tokens), torch.tensor(eos_ids).long())
    expected = visited.sum_by_group(torch.zeros_like(visited.token), 1)[0]
    kind = _kinds(expected, ends, int(own * num_states))
    states, kind_of = _states(visited, kind, ends, num_states, seed)
    # The roots have an extra row, which becomes the initial distribution.
    step = _transition(visited, states, kind, kind_of).float()
    root = len(kind_of)
    emission = _emission(visited, states, kind, kind_of, expected)
    return HMM(step[root].clone(), Dense(step[:root].clone()), emission)


def _kinds(
    expected: Float64[Tensor, "V"], ends: Bool[Tensor, "V"], most: int
) -> Int64[Tensor, "V"]:
    """Return the kind of each token, numbered from zero.

    The first kinds have one token each: at most `most` tokens, the one with the largest expected
    count first. One kind has all other tokens except ends of a text, and the last one has the ends.
    """
    ranked = torch.where(ends, -1.0, expected).argsort(descending=True, stable=True)
    mass = torch.where(ends, 0.0, expected)[ranked].cumsum(0)
    needed = int((mass < _COVERED * mass[-1]).sum()) + 1
    own = ranked[: min(needed, most, int((~ends).sum()))]
    kind = torch.full((len(expected),), len(own))
    kind[own] = torch.arange(len(own))
    kind[ends] = len(own) + 1
    return torch.unique(kind, return_inverse=True)[1]  # drop empty kinds


def _states(
    visited: TopTokenPrefixes,
    kind: Int64[Tensor, "V"],
    ends: Bool[Tensor, "V"],
    num_states: int,
    seed: int,
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "H"]]:
    """Return the state of each prefix, and the kind of each state.

    Roots have the number H. Prefixes of the maximum length don't have a state, and get -1.
    """
    generator = torch.Generator().manual_seed(derive_seed("clones", seed))
    points = visited.top_tokens.sketch.float()
    inner = visited.parent[visited.read] >= 0
    at, points = visited.read[inner], points[inner]
    # Square roots, so that the many improbable prefixes influence the clones.
    weight = visited.weight[at].float().sqrt()
    kinds = kind[visited.token[at]]
    num_kinds = int(kind.max()) + 1
    clones = _share_out(points, weight, kinds, num_kinds, num_states)

    states = torch.full_like(visited.token, -1)
    first = []  # first state of each kind
    made: list[int] = []  # kind of each state
    for k in range(num_kinds):
        first.append(len(made))
        rows = (kinds == k).nonzero().squeeze(1)
        cluster = _k_means(points[rows], weight[rows], int(clones[k]), generator)
        found, cluster = torch.unique(cluster, return_inverse=True)
        states[at[rows]] = len(made) + cluster
        made += [k] * max(1, len(found))
    token = visited.token.clamp(min=0)
    ended = ends[token] & (visited.token >= 0)
    states[ended] = torch.tensor(first)[kind[token[ended]]]
    states[visited.token < 0] = len(made)
    return states, torch.tensor(made)


def _share_out(
    points: Float32[Tensor, "n D"],
    weight: Float32[Tensor, "n"],
    kinds: Int64[Tensor, "n"],
    num_kinds: int,
    num_states: int,
) -> Int64[Tensor, "K"]:
    """Return the number of clones of each kind: from one to the number of the kind's prefixes."""
    total = torch.zeros(num_kinds).index_add_(0, kinds, weight)
    first = torch.zeros(num_kinds, points.shape[1]).index_add_(0, kinds, points * weight[:, None])
    second = torch.zeros(num_kinds).index_add_(0, kinds, points.square().sum(dim=1) * weight)
    scatter = (second - first.square().sum(dim=1) / total.clamp(min=1e-30)).clamp(min=0).double()
    available = torch.bincount(kinds, minlength=num_kinds)
    clones = torch.ones(num_kinds, dtype=torch.int64)
    for _ in range(num_states - num_kinds):
        gain = torch.where(clones < available, scatter / clones.double() ** _DECAY, 0.0)
        best = int(gain.argmax())
        if not gain[best] > 0:
            break
        clones[best] += 1
    return clones


def _k_means(
    points: Float32[Tensor, "n D"],
    weight: Float32[Tensor, "n"],
    num_clusters: int,
    generator: torch.Generator,
) -> Int64[Tensor, "n"]:
    """Return the group of each point by weighted k-means (Lloyd's algorithm with random starts).

    Groups may be empty.
    """
    if num_clusters == 1:
        return torch.zeros(len(points), dtype=torch.int64)
    order = torch.randperm(len(points), generator=generator)[: _POINTS * num_clusters]
    some, heavy = points[order], weight[order, None]
    means = some[:num_clusters].clone()
    for _ in range(_ITERATIONS):
        nearest = _nearest(some, means)
        total = torch.zeros(num_clusters, 1).index_add_(0, nearest, heavy)
        sums = torch.zeros_like(means).index_add_(0, nearest, heavy * some)
        means = torch.where(total > 0, sums / total.clamp(min=1e-30), means)
    return _nearest(points, means)


def _nearest(points: Float32[Tensor, "n D"], means: Float32[Tensor, "k D"]) -> Int64[Tensor, "n"]:
    return (0.5 * means.square().sum(dim=1) - points @ means.T).argmin(dim=1)


def _counts(visited: TopTokenPrefixes, prefixes: Int64[Tensor, "c"]) -> Float64[Tensor, "c"]:
    """Return the weights of prefixes as counts of sequences."""
    return visited.weight[prefixes] * visited.num_sequences


def _with_state(states: Int64[Tensor, "n"], kind_of: Int64[Tensor, "H"]) -> Int64[Tensor, "c"]:
    """Return the prefixes with a state: neither roots nor of the maximum length."""
    return ((states >= 0) & (states < len(kind_of))).nonzero().squeeze(1)


def _transition(
    visited: TopTokenPrefixes,
    states: Int64[Tensor, "n"],
    kind: Int64[Tensor, "V"],
    kind_of: Int64[Tensor, "H"],
) -> Float64[Tensor, "H1 H"]:
    """Return P(next state | state), with the roots' distribution in the last row."""
    num_states, num_kinds = len(kind_of), int(kind.max()) + 1
    # Prefixes without a state weren't read, so they aren't in the sums.
    expected = visited.sum_by_group(states, num_states + 1)
    by_kind = expected.new_zeros(num_states + 1, num_kinds).index_add_(1, kind, expected)
    by_kind += _NOTHING * by_kind.sum(dim=0)
    by_kind /= by_kind.sum(dim=1, keepdim=True)

    child = _with_state(states, kind_of)
    count = by_kind.new_zeros(num_states + 1, num_states).index_put_(
        (states[visited.parent[child]], states[child]), _counts(visited, child), accumulate=True
    )
    at_large = _within_kinds(count.sum(dim=0, keepdim=True) + 1e-6, kind_of, num_kinds)
    clone = _within_kinds(count + _CLONE_PRIOR * at_large, kind_of, num_kinds)
    step = by_kind[:, kind_of] * clone
    return step / step.sum(dim=1, keepdim=True)


def _within_kinds(
    values: Float64[Tensor, "n H"], kind_of: Int64[Tensor, "H"], num_kinds: int
) -> Float64[Tensor, "n H"]:
    """Normalize each row within each kind of states, which gives P(state | kind)."""
    sums = values.new_zeros(len(values), num_kinds).index_add_(1, kind_of, values)
    return values / sums[:, kind_of]


def _emission(
    visited: TopTokenPrefixes,
    states: Int64[Tensor, "n"],
    kind: Int64[Tensor, "V"],
    kind_of: Int64[Tensor, "H"],
    expected: Float64[Tensor, "V"],
) -> Float32[Tensor, "V H"]:
    """Return P(token | state) over the tokens of the state's kind, from counts and expectations."""
    share = expected + _NOTHING * expected.sum()
    share = share / torch.zeros_like(share).index_add_(0, kind, share)[kind]
    emission = (kind[:, None] == kind_of) * (_TOKEN_PRIOR * share.float()[:, None])
    child = _with_state(states, kind_of)
    emission.index_put_(
        (visited.token[child], states[child]), _counts(visited, child).float(), accumulate=True
    )
    return emission / emission.sum(dim=0)
