"""Selection keeps N of many weighted candidates, each at most once, without bias.

Fearnhead and Clifford (J. R. Statist. Soc. B 65, 2003) keep a candidate of score s with probability

    pi = min(1, s / c),        where c solves      sum over all candidates of min(1, s / c) = N,

and divide its weight by pi. Candidates with s >= c are kept for certain, and unchanged; of the
others so many are drawn as there are places left, systematically: with one uniform number u, those
in whose stretch of the running sum of pi the points u, u + 1, u + 2, … fall. With s = w that is the
unbiased selection of the least mean square error in the weights.

**The threshold** comes from suffix sums. With scores in falling order and T_k the sum of all but
the k greatest, c = T_k / (N - k) for the least k with s_{k+1} <= T_k / (N - k). T_k is summed up
from the smallest score, in log space: as the total minus the greatest, it would be what rounding
leaves of it (candidates of one step span some 30 orders of magnitude).

**N x V candidates are never sorted.** At most N - 1 of them have s > c, and they are among the N
greatest of their prefix. One pass over each row of log-probabilities finds these N and sums up the
others anew (`weigh`); a second pass, over rows in which a point falls, finds the candidate there
(`locate`). Both are compiled on the CPU (`smc.kernels.selection`), and a few tensor operations
elsewhere. Cost: O(R V) memory traffic, O(N^2) for the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd.support.threads import shared_out
from gcd.tokens.batch import TokenClasses
from smc import guide
from smc.guide import Factors, unsigned
from smc.kernels import selection as kernels
from smc.tying import FEW, exponentials

_WHOLE = 1e-9
"""How far a sum of probabilities may be from a whole number by rounding."""


class Weighed(NamedTuple):
    """R rows of candidates: the K of the greatest score, and the sum of the others.

    Attributes:
        tokens: the K greatest, in falling order; token 0 where there are fewer.
        log_score: theirs; -inf where there are fewer.
        log_rest: log of the sum of all other scores of the row.
    """

    tokens: Int64[Tensor, "R K"]
    log_score: Float64[Tensor, "R K"]
    log_rest: Float64[Tensor, "R"]


class Selection(NamedTuple):
    """The candidates that were kept, in the order of rows and tokens.

    Attributes:
        row: the prefix of each.
        token: its next token.
        log_pi: log of the probability with which it was kept.
        dropped: for each example, whether there was a choice.
    """

    row: Int64[Tensor, "M"]
    token: Int64[Tensor, "M"]
    log_pi: Float64[Tensor, "M"]
    dropped: Bool[Tensor, "B"]


class Fixed(NamedTuple):
    """Log scores that take places without being chosen from.

    Attributes:
        top: the N greatest of each example; -inf where there are fewer.
        rest: log of the sum of the others.
    """

    top: Float64[Tensor, "B N"]
    rest: Float64[Tensor, "B"]


class Group(NamedTuple):
    """Which rows compete with each other: those of one example, which are consecutive.

    Attributes:
        example: of each row, in rising order.
        num_examples: B.
    """

    example: Int64[Tensor, "R"]
    num_examples: int

    @property
    def place(self) -> Int64[Tensor, "R"]:
        """The number of each row among those of its example."""
        first = torch.searchsorted(self.example, self.example)
        return torch.arange(len(self.example), device=self.example.device) - first


def select(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    group: Group,
    slots: int,
    uniform: Callable[[Int64[Tensor, "b"], Callable[[], Tensor]], Float64[Tensor, "b"]],
    *,
    floor: float = 0.0,
    fixed: Fixed | None = None,
) -> Selection:
    """Keeps at most N candidates of each example.

    Args:
        log_p: log-probabilities of the next token.
        factors: log s - log p of each candidate; -inf where there is none.
        group: which rows compete.
        slots: N.
        uniform: uniform numbers for these examples, one each; it may ask for the points of (0, 1)
            at which the outcome of each changes.
        floor: c is at least this part of the sum of all scores, so that fewer are kept where few
            matter.
        fixed: what takes part in the threshold, and is kept without being chosen from.

    Returns:
        All candidates of positive score, where they are at most N and there is no floor.
    """
    weighed = weigh(log_p, factors, slots)
    log_c = _thresholds(weighed, group, slots, floor, fixed)
    of_row = log_c[group.example].unsqueeze(1)
    sure = (weighed.log_score >= of_row) & ~weighed.log_score.isneginf()
    rows, column = sure.nonzero(as_tuple=True)
    tokens = weighed.tokens[rows, column]
    log_pi = torch.zeros_like(weighed.log_score[rows, column])

    plan = _plan(weighed, sure, group, log_c, whole=floor == 0 and fixed is None)
    dropped = plan.mass.sum(dim=1) > 0
    due = dropped.nonzero().squeeze(1)
    if len(due):
        u = uniform(due, lambda: _breaks(log_p, factors, weighed, sure, log_c, plan, group)[due])
        row, target = _points(plan, group, due, u)
        known = Known(weighed.tokens, sure.sum(dim=1))
        found = locate(log_p, factors, known, log_c[group.example], row, target)
        row, found = row[found >= 0], found[found >= 0]
        rows, tokens = torch.cat([rows, row]), torch.cat([tokens, found])
        log_s = log_p[row, found] + factors.at(row, found)
        log_pi = torch.cat([log_pi, (log_s - log_c[group.example[row]]).clamp(max=0)])
    order = torch.argsort(rows * log_p.shape[1] + tokens)
    return Selection(rows[order], tokens[order], log_pi[order], dropped)


def threshold(
    log_score: Float64[Tensor, "B M"], log_rest: Float64[Tensor, "B"], slots: int
) -> Float64[Tensor, "B"]:
    """Returns log c, such that the sum of min(1, s / c) is N; -inf where N or fewer have s > 0.

    Args:
        log_score: scores, the N greatest among them.
        log_rest: log of the sum of all other scores.
        slots: N.
    """
    if log_score.shape[1] < slots:
        short = slots - log_score.shape[1]
        log_score = torch.nn.functional.pad(log_score, (0, short), value=-torch.inf)
    top, place = log_score.topk(slots, dim=1)
    others = log_score.scatter(1, place, -torch.inf)
    tail = torch.logaddexp(others.logsumexp(dim=1), log_rest)
    # T_k for k = N, N - 1, …, 0: from the smallest score to the greatest.
    upwards = torch.cat([tail.unsqueeze(1), top.flip(1)], dim=1).logcumsumexp(dim=1)
    places_left = slots - torch.arange(slots, device=top.device)
    log_c = upwards.flip(1)[:, :slots] - places_left.double().log()
    first = (top <= log_c).int().argmax(dim=1, keepdim=True)
    return torch.where(tail.isneginf(), -torch.inf, log_c.gather(1, first).squeeze(1))


def systematic(
    log_score: Float64[Tensor, "M"],
    slots: int,
    uniform: Callable[[Callable[[], Tensor]], float],
) -> tuple[Int64[Tensor, "K"], Float64[Tensor, "K"]]:
    """Keeps at most N of these; returns which, and log pi of each.

    Args:
        log_score: of each.
        slots: N.
        uniform: gives a uniform number; it may ask for the points of (0, 1) at which the choice
            changes, Float64["1 M"].
    """
    row, values = torch.zeros(1, dtype=torch.int64), log_score.unsqueeze(0)
    classes = TokenClasses.singletons(len(log_score))
    factors = guide.by_class_alone(torch.zeros_like(values), classes, row)

    def number(_: Tensor, breaks: Callable[[], Tensor]) -> Float64[Tensor, "1"]:
        return torch.tensor([uniform(breaks)], dtype=torch.float64)

    found = select(values, factors, Group(row, 1), slots, number)
    return found.token, found.log_pi


def _thresholds(
    weighed: Weighed,
    group: Group,
    slots: int,
    floor: float,
    fixed: Fixed | None,
) -> Float64[Tensor, "B"]:
    """log c of each example."""
    K = weighed.log_score.shape[1]
    # As wide as rows can be, so that sums are added in one order whatever else is in the batch.
    padded = weighed.log_score.new_full((group.num_examples, slots, K), -torch.inf)
    padded[group.example, group.place] = weighed.log_score
    rests = padded.new_full((group.num_examples, slots), -torch.inf)
    rests[group.example, group.place] = weighed.log_rest
    scores, log_rest = padded.flatten(1), rests.logsumexp(dim=1)
    if fixed is not None:
        scores = torch.cat([scores, fixed.top], dim=1)
        log_rest = torch.logaddexp(log_rest, fixed.rest)
    log_c = threshold(scores, log_rest, slots)
    if floor > 0:
        everything = torch.logaddexp(scores.logsumexp(dim=1), log_rest)
        log_c = torch.maximum(log_c, everything + math.log(floor))
    return log_c


class _Plan(NamedTuple):
    """How probability is spread over the rows of each example, in units of one kept candidate.

    Attributes:
        mass: sum of pi over the candidates of each row that are not sure.
        ends: running sums of it.
    """

    mass: Float64[Tensor, "B N"]
    ends: Float64[Tensor, "B N"]


def _plan(
    weighed: Weighed,
    sure: Bool[Tensor, "R K"],
    group: Group,
    log_c: Float64[Tensor, "B"],
    *,
    whole: bool,
) -> _Plan:
    """Sums of pi; `whole` says that each example's is a whole number but for rounding."""
    unsure = weighed.log_score.masked_fill(sure, -torch.inf).logsumexp(dim=1)
    log_mass = torch.logaddexp(unsure, weighed.log_rest)
    of_row = log_c[group.example]
    each = torch.where(log_mass.isneginf(), 0.0, (log_mass - of_row).exp())
    width = int(group.place.max()) + 1 if len(each) else 1
    mass = each.new_zeros(group.num_examples, width)
    mass[group.example, group.place] = each
    ends = mass.cumsum(dim=1)
    total = ends[:, -1:]
    rounded = total.round()
    if whole:
        assert bool(((total - rounded).abs() <= _WHOLE * rounded.clamp(min=1)).all()), (
            "inclusion probabilities sum to the places that are left"
        )
        ends = ends * torch.where(total > 0, rounded / torch.where(total > 0, total, 1.0), 1.0)
        ends[:, -1:] = rounded
    return _Plan(mass, ends)


def _points(
    plan: _Plan, group: Group, due: Int64[Tensor, "b"], u: Float64[Tensor, "b"]
) -> tuple[Int64[Tensor, "M"], Float64[Tensor, "M"]]:
    """The row in which each point u, u + 1, … falls, and how far into the row's mass."""
    ends = plan.ends[due]
    most = int(ends[:, -1].max().ceil())
    steps = torch.arange(most, dtype=torch.float64, device=u.device)
    points = u.unsqueeze(1) + steps
    inside = points < ends[:, -1:]
    column = torch.searchsorted(ends, points, right=True).clamp(max=ends.shape[1] - 1)
    before = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1]], dim=1).gather(1, column)
    first = torch.searchsorted(group.example, due)
    row = first.unsqueeze(1) + column
    return row[inside], (points - before)[inside]


def _breaks(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    weighed: Weighed,
    sure: Bool[Tensor, "R K"],
    log_c: Float64[Tensor, "B"],
    plan: _Plan,
    group: Group,
) -> Float64[Tensor, "B M"]:
    """The points of (0, 1) at which the choice of each example changes."""
    pi = _unsure(log_p, factors, Known(weighed.tokens, sure.sum(dim=1)), log_c[group.example])
    before = torch.cat([torch.zeros_like(plan.ends[:, :1]), plan.ends[:, :-1]], dim=1)
    inner = pi.cumsum(dim=1) + before[group.example, group.place].unsqueeze(1)
    ends = inner.new_zeros(group.num_examples, plan.ends.shape[1], inner.shape[1])
    ends[group.example, group.place] = inner
    return torch.cat([ends.flatten(1), plan.ends], dim=1).frac()


class Known(NamedTuple):
    """The candidates of each row that are kept for certain.

    Attributes:
        tokens: candidates in falling order of score.
        kept: how many of them, from the first.
    """

    tokens: Int64[Tensor, "R K"]
    kept: Int64[Tensor, "R"]


def _unsure(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[Tensor, "R"],
) -> Float64[Tensor, "R V"]:
    """pi of every candidate that is not sure; zero for all others."""
    log_pi = factors.applied(log_p) - torch.where(log_c.isneginf(), 0.0, log_c).unsqueeze(1)
    columns = torch.arange(known.tokens.shape[1], device=log_p.device)
    sure = columns < known.kept.unsqueeze(1)
    hidden = torch.zeros_like(log_pi, dtype=torch.int8)
    hidden.scatter_reduce_(1, known.tokens, sure.to(torch.int8), "amax")
    return log_pi.masked_fill(hidden.bool() | log_c.isneginf().unsqueeze(1), -torch.inf).exp()


def weigh(log_p: Float[Tensor, "R V"], factors: Factors, most: int) -> Weighed:
    """Finds the K candidates of the greatest score in each row, and sums up the others.

    Args:
        log_p: log-probabilities of the next token.
        factors: log s - log p; -inf where a token is no candidate.
        most: K; less where the vocabulary is smaller.
    """
    R, V = log_p.shape
    K = min(most, V)
    if log_p.device.type in guide.COMPILED:
        tokens = torch.empty(R, K, dtype=torch.int64)
        log_score, log_rest = (torch.empty(shape, dtype=torch.float64) for shape in ((R, K), (R,)))
        out = (tokens.numpy(), log_score.numpy(), log_rest.numpy())
        shared_out(_weigh_rows, R, log_p.numpy(), factors, *out)
        return Weighed(tokens, log_score, log_rest)
    log_s = factors.applied(log_p)
    log_score, tokens = log_s.topk(K, dim=1)
    rest = log_s.scatter(1, tokens, -torch.inf).logsumexp(dim=1)
    return Weighed(torch.where(log_score.isneginf(), 0, tokens), log_score, rest)


def locate(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[Tensor, "R"],
    rows: Int64[Tensor, "M"],
    targets: Float64[Tensor, "M"],
) -> Int64[Tensor, "M"]:
    """Finds the candidate of a row in whose stretch of the running sum of pi each target lies.

    Args:
        log_p, factors: as for `weigh`.
        known: candidates that take no part.
        log_c: of each row.
        rows: the row of each target, in rising order.
        targets: in rising order within a row, one apart.

    Returns:
        Tokens, in the order of the targets; no token twice in a row. Where rounding leaves a target
        beyond the last candidate, it is the last one, and -1 where that has been taken.
    """
    if log_p.device.type in guide.COMPILED:
        hit, count = torch.unique_consecutive(rows, return_counts=True)
        starts = torch.cat([count.new_zeros(1), count.cumsum(dim=0)])
        out = torch.empty_like(rows)
        shared_out(
            _locate_rows,
            len(hit),
            log_p.numpy(),
            factors,
            known,
            log_c.numpy(),
            (hit.numpy(), starts.numpy(), targets.numpy()),
            out.numpy(),
        )
        return out
    hit, which = torch.unique_consecutive(rows, return_inverse=True)
    some = factors._replace(
        by_class=factors.by_class[hit],
        tokens=factors.tokens[hit],
        by_token=factors.by_token[hit],
        which=factors.which[hit],
    )
    pi = _unsure(log_p[hit], some, Known(known.tokens[hit], known.kept[hit]), log_c[hit])
    ends = pi.cumsum(dim=1)
    V = log_p.shape[1]
    index = torch.arange(V, device=rows.device)
    last = torch.where(pi > 0, index, -1).amax(dim=1)
    # The first candidate whose stretch ends beyond the target; those of probability zero are none.
    point = torch.searchsorted(ends[which], targets.unsqueeze(1), right=True).squeeze(1)
    found = torch.minimum(point, last[which])
    same = torch.zeros_like(found, dtype=torch.bool)
    same[1:] = (found[1:] == found[:-1]) & (rows[1:] == rows[:-1])
    return torch.where(same, -1, found)


def _weigh_rows(
    first: int,
    last: int,
    log_p: Float[np.ndarray, "R V"],
    factors: Factors,
    tokens: np.ndarray,
    log_score: np.ndarray,
    log_rest: np.ndarray,
) -> None:
    """Does the work of `weigh` for the rows first .. last - 1, on the CPU."""
    V = log_p.shape[1]
    share, marked = np.empty(V, log_p.dtype), np.zeros(V, np.bool_)
    for row in range(first, last):
        line = _Line.of(factors, row)
        p, out = log_p[row], (tokens[row], log_score[row])
        if line.is_few(V):
            log_rest[row] = kernels.weigh_few(p, *line.arguments, line.listed, line.start,
                                              marked, *out)  # fmt: skip
            continue
        top = p.max()
        if top == -np.inf:  # nothing can follow
            tokens[row], log_score[row], log_rest[row] = 0, -np.inf, -np.inf
            continue
        exponentials(p, top, share)
        log_rest[row] = kernels.weigh_all(p, share, float(top), *line.arguments, marked, *out)


def _locate_rows(
    first: int,
    last: int,
    log_p: Float[np.ndarray, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[np.ndarray, "R"],
    points: tuple[np.ndarray, np.ndarray, np.ndarray],
    out: Int64[np.ndarray, "M"],
) -> None:
    """Does the work of `locate` for some of the rows that are hit, on the CPU."""
    V = log_p.shape[1]
    rows, starts, targets = points
    share, hidden = np.empty(V, log_p.dtype), np.zeros(V, np.bool_)
    for number in range(first, last):
        row, begin, end = int(rows[number]), starts[number], starts[number + 1]
        line = _Line.of(factors, row)
        p, sure = log_p[row], known.tokens.numpy()[row, : int(known.kept[row])]
        top = -np.inf
        if not line.is_few(V):
            top = float(p.max())
            if top > -np.inf:
                exponentials(p, p.dtype.type(top), share)
        hidden[sure] = True
        kernels.locate(p, share, top, *line.arguments, hidden, log_c[row],
                       targets[begin:end], out[begin:end])  # fmt: skip
        hidden[sure] = False


class _Line(NamedTuple):
    """The factors of one row, as compiled loops take them."""

    klass: np.ndarray
    by_class: np.ndarray
    tokens: np.ndarray
    by_token: np.ndarray
    listed: np.ndarray
    start: np.ndarray

    @classmethod
    def of(cls, factors: Factors, row: int) -> _Line:
        number = int(factors.which[row])
        classes = factors.classes
        return cls(
            unsigned(classes.of)[number],
            factors.by_class.numpy()[row],
            factors.tokens.numpy()[row],
            factors.by_token.numpy()[row],
            classes.tokens.numpy()[number],
            classes.start.numpy()[number],
        )

    @property
    def arguments(self) -> tuple[np.ndarray, ...]:
        return self[:4]

    def is_few(self, size: int) -> bool:
        """Whether so few tokens are candidates that they are looked up one by one."""
        alive = ~np.isneginf(self.by_class)
        return bool(np.diff(self.start)[: len(alive)][alive].sum() < size // FEW)
