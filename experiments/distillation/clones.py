"""This module makes an HMM of visited prefixes: states are clones of tokens, and no EM is needed.

A state names its token, so that the HMM is a bigram at least, and several states name the same
token, told apart by what is expected after it. (HMMs with this sparsity of emissions are cloned
HMMs; Dedieu et al., "Learning higher-order sequential structure with cloned HMMs", arXiv
1905.00507, who train them by EM. Here each prefix is given its state beforehand.)

    kinds      frequent tokens, one each; all others together; the ends of a text together
    clones     of a kind: weighted k-means of the prefixes that end in it, by features of what is
               said after them: square roots of the distributions (distances are then Hellinger's),
               or logits, projected at random (Johnson and Lindenstrauss 1984)

Square roots tell apart what comes next. Logits are linear in the model's hidden state, and tell
apart what else it knows; where the model reads a prompt and is sure of its next token, that is what
matters.

How many clones a kind has: k clusters in d dimensions leave a distortion of about S k^(-2/d)
(Zador 1982), so the next one is worth S k^(-1 - 2/d). States go where that is most, S being the
scatter of the kind's prefixes and d = 4.

All prefixes then have a state, and parameters are averages over those of a state, by weight:

    A(s, s') = P(kind | s) · [ n(s, s') + m P(s' | kind) ] / [ n(s, kind) + m ]

n counts visited children, and P(kind | s) is the mean of what the model *said*, not of what was
drawn: so the rare ways on, which constraints and tight budgets ask for and which a sample of ten
thousand does not contain, have their probabilities. Only which clone of a token comes next is
counted, and falls back on the token's clones at large by m pseudo-counts. A state whose prefixes
were nowhere read goes on as the average does.

Cost: k-means, and passes over the distributions; seconds for a thousand states.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from experiments.harness.results import derived_seed
from hmm.model import HMM
from hmm.transition import from_factors

FEWEST_STATES = 2
"""All tokens together, and the ends of a text."""

_DIMENSIONS = 128  # of square roots
_ITERATIONS = 15
_POINTS = 256  # that k-means sees, for each cluster
_DECAY = 1.5  # 1 + 2/d
_COVERED = 0.995  # of all tokens by those that are kinds of their own
_CLONE_PRIOR = 1.0  # m
_TOKEN_PRIOR = 5.0  # pseudo-counts of a state, over the tokens of its kind
_NOTHING = 1e-12  # a share of the average, for what was never read


@runtime_checkable
class Prefixes(Protocol):
    """Prefixes that sampled texts come by, and what the model said after them.

    Attributes:
        parent: of each prefix, the one that is a token shorter; -1 for the empty ones, the roots.
        token: its last; -1 for a root.
        weight: of each prefix; those of all roots sum to one.
        read: the prefixes after which the model was asked. Others have ended, or were cut there.
    """

    @property
    def parent(self) -> Int64[Tensor, "n"]: ...
    @property
    def token(self) -> Int64[Tensor, "n"]: ...
    @property
    def weight(self) -> Float64[Tensor, "n"]: ...
    @property
    def read(self) -> Int64[Tensor, "m"]: ...

    @property
    def num_tokens(self) -> int:
        """V."""
        ...

    @property
    def num_sequences(self) -> int:
        """How many texts there were."""
        ...

    def expected(self, group: Int64[Tensor, "n"], num_groups: int) -> Float64[Tensor, "G V"]:
        """Sums weight · p over the prefixes of each group that were read; p is what was said."""
        ...

    def features(
        self, dimensions: int, generator: torch.Generator
    ) -> Float32[Tensor, "m dimensions"]:
        """Gives points for the prefixes that were read; near ones are followed by the same."""
        ...


def cloned(
    visited: Prefixes,
    num_states: int,
    *,
    eos_ids: tuple[int, ...],
    own: float = 0.25,
    seed: int = 0,
) -> HMM:
    """Make the HMM of these prefixes, in float32.

    Args:
        visited: prefixes; roots are where an answer begins.
        num_states: at most; fewer where there are fewer different prefixes.
        eos_ids: tokens that end a text.
        own: frequent tokens that are kinds of their own are at most this share of the states.
        seed: of projection and k-means.

    Raises:
        ValueError: fewer than two states.
    """
    if num_states < FEWEST_STATES:
        raise ValueError(
            f"a cloned HMM needs at least {FEWEST_STATES} states (tokens, and the ends of a text), "
            f"got {num_states}"
        )
    ends = torch.isin(torch.arange(visited.num_tokens), torch.tensor(eos_ids).long())
    expected = visited.expected(torch.zeros_like(visited.token), 1)[0]
    kind = _kinds(expected, ends, int(own * num_states))
    states, kind_of = _states(visited, kind, ends, num_states, seed)
    # What a root would be comes behind the states: its row becomes the initial distribution.
    step = _transition(visited, states, kind, kind_of).float()
    root = len(kind_of)
    emission = _emission(visited, states, kind, kind_of, expected)
    return HMM(step[root].clone(), from_factors((step[:root].clone(),)), emission)


def _kinds(
    expected: Float64[Tensor, "V"], ends: Bool[Tensor, "V"], most: int
) -> Int64[Tensor, "V"]:
    """The kind of each token: by falling expectation, then the rare ones', then the ends'.

    At most so many have one of their own.
    """
    ranked = torch.where(ends, -1.0, expected).argsort(descending=True, stable=True)
    mass = torch.where(ends, 0.0, expected)[ranked].cumsum(0)
    needed = int((mass < _COVERED * mass[-1]).sum()) + 1
    own = ranked[: min(needed, most, int((~ends).sum()))]
    kind = torch.full((len(expected),), len(own))
    kind[own] = torch.arange(len(own))
    kind[ends] = len(own) + 1
    return torch.unique(kind, return_inverse=True)[1]  # without kinds that have no tokens


def _states(
    visited: Prefixes,
    kind: Int64[Tensor, "V"],
    ends: Bool[Tensor, "V"],
    num_states: int,
    seed: int,
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "H"]]:
    """The state of each prefix (H for roots, -1 for those of greatest length), and its kind."""
    generator = torch.Generator().manual_seed(derived_seed("clones", seed))
    points = visited.features(_DIMENSIONS, generator)
    inner = visited.parent[visited.read] >= 0
    at, points = visited.read[inner], points[inner]
    # Square roots: improbable prefixes are many, and have a say in what clones there are.
    weight = visited.weight[at].float().sqrt()
    kinds = kind[visited.token[at]]
    num_kinds = int(kind.max()) + 1
    clones = _shared_out(points, weight, kinds, num_kinds, num_states)

    states = torch.full_like(visited.token, -1)
    first = []  # state of each kind
    made: list[int] = []  # the kind of each state
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


def _shared_out(
    points: Float32[Tensor, "n D"],
    weight: Float32[Tensor, "n"],
    kinds: Int64[Tensor, "n"],
    num_kinds: int,
    num_states: int,
) -> Int64[Tensor, "K"]:
    """Clones of each kind: at least one, and no more than it has points."""
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


def random_projection(
    size: int, dimensions: int, generator: torch.Generator
) -> Float32[Tensor, "size dimensions"]:
    """Draw a matrix that nearly keeps distances (Johnson and Lindenstrauss 1984)."""
    return torch.randn(size, dimensions, generator=generator) / dimensions**0.5


def _k_means(
    points: Float32[Tensor, "n D"],
    weight: Float32[Tensor, "n"],
    num_clusters: int,
    generator: torch.Generator,
) -> Int64[Tensor, "n"]:
    """Weighted k-means (Lloyd's algorithm from points drawn at random): the group of each point.

    Some groups may be empty.
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


def _counts(visited: Prefixes, prefixes: Int64[Tensor, "c"]) -> Float64[Tensor, "c"]:
    """Weights of prefixes as counts out of as many sequences as there were."""
    return visited.weight[prefixes] * visited.num_sequences


def _with_state(states: Int64[Tensor, "n"], kind_of: Int64[Tensor, "H"]) -> Int64[Tensor, "c"]:
    """Prefixes that have a state: neither roots nor of the greatest length."""
    return ((states >= 0) & (states < len(kind_of))).nonzero().squeeze(1)


def _transition(
    visited: Prefixes,
    states: Int64[Tensor, "n"],
    kind: Int64[Tensor, "V"],
    kind_of: Int64[Tensor, "H"],
) -> Float64[Tensor, "H1 H"]:
    """P(next state | state), the roots' in the last row."""
    num_states, num_kinds = len(kind_of), int(kind.max()) + 1
    # Prefixes without a state were not read, so none of them is summed up here.
    expected = visited.expected(states, num_states + 1)
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
    """P(state | kind) in each row: positive values, divided by their kind's sum."""
    sums = values.new_zeros(len(values), num_kinds).index_add_(1, kind_of, values)
    return values / sums[:, kind_of]


def _emission(
    visited: Prefixes,
    states: Int64[Tensor, "n"],
    kind: Int64[Tensor, "V"],
    kind_of: Int64[Tensor, "H"],
    expected: Float64[Tensor, "V"],
) -> Float32[Tensor, "V H"]:
    """P(token | state): of the tokens of its kind, by what was seen in it and is expected."""
    share = expected + _NOTHING * expected.sum()
    share = share / torch.zeros_like(share).index_add_(0, kind, share)[kind]
    emission = (kind[:, None] == kind_of) * (_TOKEN_PRIOR * share.float()[:, None])
    child = _with_state(states, kind_of)
    emission.index_put_(
        (visited.token[child], states[child]), _counts(visited, child).float(), accumulate=True
    )
    return emission / emission.sum(dim=0)
