"""Unbiased selection of at most N of many weighted candidates, without replacement.

A candidate with score s is kept with probability pi = min(1, s / c), where the threshold c solves

    sum over all candidates of min(1, s / c) = N

(docs/design.md, section 6). Candidates with s > c are kept with certainty. The remaining N -
#certain slots are filled by systematic sampling: with a single uniform number u, the points u, u +
1, u + 2, … select candidates by the cumulative sums of pi. If scores are equal to weights, this is
the unbiased selection with the smallest mean squared error of the weights (Fearnhead and Clifford,
J. R. Statist. Soc. B 65, 2003).

**The threshold.** Let the scores be in descending order, and T_k the sum of all scores but the k
largest. Then c = T_k / (N - k) for the smallest k with s_{k+1} <= T_k / (N - k). T_k is summed from
the smallest score in log space, because the scores of one step span about 30 orders of magnitude.

There are two passes over the vocabulary (`smc._vocabulary`), in which each prefix is a row. One
finds the N largest scores of each row and the sum of the others. The other finds the selected
candidates in the rows that have some. Cost: O(R V) memory traffic, and O(N^2) for the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc._forward.reader import count_of
from smc._vocabulary.draw import Breaks
from smc._vocabulary.factors import Factors
from smc._vocabulary.passes import Best, Known, VocabularyPass, inclusion_probabilities, pass_of


class Selection(NamedTuple):
    """The kept candidates. Those of example b are in slots b·N to (b + 1)·N - 1.

    Attributes:
        kept: whether the slot has a candidate.
        row: the prefix that the candidate extends; 0 for an empty slot.
        token: the candidate's next token; 0 for an empty slot.
        log_pi: log of the probability with which the candidate was kept.
        dropped: for each example, whether some candidate had a probability below one.
    """

    kept: Bool[Tensor, "P"]
    row: Int64[Tensor, "P"]
    token: Int64[Tensor, "P"]
    log_pi: Float64[Tensor, "P"]
    dropped: Bool[Tensor, "B"]


class FinishedScores(NamedTuple):
    """Log scores of finished answers, which only affect the threshold.

    Attributes:
        top: the N largest scores of each example; -inf if there are fewer.
        rest: log of the sum of the other scores.
    """

    top: Float64[Tensor, "B N"]
    rest: Float64[Tensor, "B"]


class Kept(NamedTuple):
    """Which candidates are kept with certainty, whatever their scores: the most probable ones.

    Attributes:
        number: how many candidates of each example, at most.
        shift: for each row, what is added to a log score to get the log-probability of the
            candidate (times its g).
        least: for each example, the log-probability below which no candidate is kept this way.
    """

    number: int
    shift: Float64[Tensor, "R"]
    least: Float64[Tensor, "B"]


WITHIN = 3.0
"""Nats below the most probable candidate up to which `Kept` applies (a heuristic)."""


class Group(NamedTuple):
    """Assignment of R rows (prefixes) to B examples; the prefixes of an example compete.

    Attributes:
        example: the example of each row, in ascending order.
        num_examples: B.
        width: the largest number of rows of an example, or a larger number.
    """

    example: Int64[Tensor, "R"]
    num_examples: int
    width: int

    @classmethod
    def of(cls, example: Int64[Tensor, "R"], num_examples: int) -> Group:
        """Return the assignment with the exact `width`; this takes a host synchronization."""
        rows = count_of(example, num_examples)
        return cls(example, num_examples, max(1, int(rows.max())))

    @property
    def first(self) -> Int64[Tensor, "B"]:
        """Index of each example's first row; if it has no rows, the next example's first row."""
        every = torch.arange(self.num_examples, device=self.example.device)
        return torch.searchsorted(self.example, every)

    @property
    def rank(self) -> Int64[Tensor, "R"]:
        """The index of each row among the rows of its example."""
        first = torch.searchsorted(self.example, self.example)
        return torch.arange(len(self.example), device=self.example.device) - first


def select(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    group: Group,
    slots: int,
    uniform: Callable[[Breaks], Float64[Tensor, "B"]],
    *,
    vocabulary_pass: VocabularyPass | None = None,
    indices: Callable[[Tensor], Tensor] | None = None,
    floor: float = 0.0,
    finished: FinishedScores | None = None,
    always: Kept | None = None,
) -> Selection:
    """Keep at most N candidates of each example, sorted by row and token.

    Args:
        factors: log s - log p of each candidate; -inf for tokens that aren't candidates.
        vocabulary_pass: implementation of the passes over the vocabulary; by default the device's.
        indices: function that returns the indices of a mask to process
            (`smc._forward.reader.Reader.indices`); by default those where the mask is True.

    Returns:
        The kept candidates. Without a floor and finished scores, all candidates with a positive
        score are kept if there are at most N.
    """
    (_, V), N, B = log_p.shape, slots, group.num_examples
    vocabulary_pass = vocabulary_pass or pass_of("auto", log_p.device)
    best = vocabulary_pass.best(log_p, factors, min(N, V))
    rest, left, first = best, N, None
    if always is not None:
        first = _most_probable(best, group, always)
        rest = best._replace(log_score=best.log_score.masked_fill(first, -torch.inf))
        left = N - always.number
    log_c = thresholds(rest, group, left, floor, finished)
    of_row = log_c[group.example]
    sure = rest.log_score > of_row.unsqueeze(1)
    sure = sure if first is None else sure | first
    certain = sure.sum(dim=1)
    slots_are_known = floor == 0 and finished is None and always is None
    slots_left = N - count_of(group.example, B, certain) if slots_are_known else None
    spread = sum_pi(best, sure, group, log_c, slots_left)
    dropped = spread.by_row.sum(dim=1) > 0
    if not left:  # no slot is random, so all other candidates are dropped
        others = best.log_score.masked_fill(sure, -torch.inf).amax(dim=1)
        lost = ~torch.maximum(others, best.log_rest).isneginf()
        dropped = count_of(group.example, B, lost.long()) > 0
    known = Known(best.tokens, certain)

    def changes() -> Float64[Tensor, "B M"]:
        every = breaks(log_p, factors, known, log_c, spread, group)
        return torch.where(dropped.unsqueeze(1), every, 0.0)

    column, target, inside = points(spread.ends, uniform(changes), N)
    row = (group.first.unsqueeze(1) + column).clamp(max=len(log_p) - 1).flatten()
    hit = (inside & dropped.unsqueeze(1)).flatten()
    hits = hit.nonzero().squeeze(1) if indices is None else indices(hit)
    token, log_pi = torch.full_like(row, -1), torch.zeros_like(target).flatten()
    if len(hits):
        at = row[hits]
        located = vocabulary_pass.locate(log_p, factors, known, of_row, at, target.flatten()[hits])
        token = token.index_copy(0, hits, located)
        chosen = located.clamp(min=0)
        log_s = log_p[at, chosen] + factors.at(at, chosen)
        log_pi = log_pi.index_copy(0, hits, (log_s - of_row[at]).clamp(max=0).double())
    hit &= token >= 0
    names = (row * V + token).view(B, N)
    return _in_order(best, sure, group, names, hit.view(B, N), log_pi, V, dropped)


def _in_order(
    best: Best,
    sure: Bool[Tensor, "R K"],
    group: Group,
    name: Int64[Tensor, "B N"],
    hit: Bool[Tensor, "B N"],
    log_pi: Float64[Tensor, "P"],
    V: int,
    dropped: Bool[Tensor, "B"],
) -> Selection:
    """Write the kept candidates to the slots of their examples.

    Rounding may yield N + 1 candidates. The last one is then dropped.
    """
    (R, K), (B, N) = best.tokens.shape, name.shape
    nothing = R * V
    row = torch.arange(R, device=name.device).unsqueeze(1)
    names = name.new_full((B, group.width, K), nothing)
    names[group.example, group.rank] = torch.where(sure, row * V + best.tokens, nothing)
    every = torch.cat([names.flatten(1), torch.where(hit, name, nothing)], dim=1)
    pi = torch.nn.functional.pad(log_pi.view(B, N), (every.shape[1] - N, 0))
    first, order = every.topk(min(N, every.shape[1]), dim=1, largest=False)
    first = torch.nn.functional.pad(first, (0, N - first.shape[1]), value=nothing).flatten()
    pi = torch.nn.functional.pad(pi.gather(1, order), (0, N - order.shape[1])).flatten()
    kept = first < nothing
    return Selection(
        kept=kept,
        row=torch.where(kept, first // V, 0),
        token=torch.where(kept, first % V, 0),
        log_pi=torch.where(kept, pi, 0.0),
        dropped=dropped,
    )


def _most_probable(best: Best, group: Group, always: Kept) -> Bool[Tensor, "R K"]:
    """Return which candidates are kept with certainty: in each row, the first ones of `best`."""
    B, K = group.num_examples, best.log_score.shape[1]
    key = best.log_score.new_full((B, group.width, K), -torch.inf)
    key[group.example, group.rank] = best.log_score + always.shift.unsqueeze(1)
    top, at = key.flatten(1).topk(min(always.number, group.width * K), dim=1)
    least = torch.maximum(top[:, 0] - WITHIN, always.least)
    good = (top >= least.unsqueeze(1)) & ~top.isneginf()
    # Of equal candidates in one row, the first ones are kept, as the passes expect.
    count = torch.zeros_like(key[:, :, 0], dtype=torch.int64).scatter_add(1, at // K, good.long())
    of_row = count[group.example, group.rank].unsqueeze(1)
    return torch.arange(K, device=key.device) < of_row


def _solve(
    top: Float64[Tensor, "B M"], log_tail: Float64[Tensor, "B"], slots: int
) -> Float64[Tensor, "B"]:
    """Return log c with sum of min(1, s / c) = N; -inf if at most N scores are positive.

    `top` has the logs of the N largest scores in descending order, and `log_tail` the log of the
    sum of the others.
    """
    top = torch.nn.functional.pad(top, (0, slots - top.shape[1]), value=-torch.inf)
    # T_k for k = N, N - 1, …, 0, summed from the smallest score to the largest.
    upwards = torch.cat([log_tail.unsqueeze(1), top.flip(1)], dim=1).logcumsumexp(dim=1)
    slots_left = slots - torch.arange(slots, device=top.device)
    log_c = upwards.flip(1)[:, :slots] - slots_left.double().log()
    first = (top <= log_c).int().argmax(dim=1, keepdim=True)
    return torch.where(log_tail.isneginf(), -torch.inf, log_c.gather(1, first).squeeze(1))


def _total(log_values: Float64[Tensor, "*B M"]) -> Float64[Tensor, "*B"]:
    """Return the log of the sum over the last axis, added sequentially.

    The result therefore doesn't depend on padding with zeros, which depends on the batch.
    """
    return log_values.logcumsumexp(dim=-1)[..., -1]


def select_without_replacement(
    log_score: Float64[Tensor, "M"],
    slots: int,
    uniform: Callable[[Callable[[], Tensor]], float],
) -> tuple[Int64[Tensor, "K"], Float64[Tensor, "K"]]:
    """Keep at most N items; return their indices, and log pi of each."""
    device, values = log_score.device, log_score.cpu().unsqueeze(0)
    row = torch.zeros(1, dtype=torch.int64, device="cpu")
    factors = Factors.dense(torch.zeros_like(values))

    def number(breaks: Breaks) -> Float64[Tensor, "1"]:
        return torch.tensor([uniform(breaks)], dtype=torch.float64, device="cpu")

    found = select(values, factors, Group(row, 1, 1), slots, number)
    return found.token[found.kept].to(device), found.log_pi[found.kept].to(device)


def thresholds(
    best: Best,
    group: Group,
    slots: int,
    floor: float,
    finished: FinishedScores | None,
) -> Float64[Tensor, "B"]:
    """Return the log of each example's threshold c, above which scores are kept with certainty."""
    B, K, rank = group.num_examples, best.log_score.shape[1], group.rank
    rows = group.width
    if not slots:
        return best.log_rest.new_full((B,), torch.inf)
    padded = best.log_score.new_full((B, rows, K), -torch.inf)
    padded[group.example, rank] = best.log_score
    rests = padded.new_full((B, rows), -torch.inf)
    rests[group.example, rank] = best.log_rest
    scores, rest = padded.flatten(1), _total(rests)
    if finished is not None:
        scores = torch.cat([scores, finished.top], dim=1)
        rest = torch.logaddexp(rest, finished.rest)
    top, index = scores.topk(min(slots, scores.shape[1]), dim=1)
    others = scores.scatter(1, index, -torch.inf)
    tail = torch.logaddexp(_total(_total(others[:, : rows * K].view(B, rows, K))), rest)
    if finished is not None:
        tail = torch.logaddexp(tail, _total(others[:, rows * K :]))
    log_c = _solve(top, tail, slots)
    if floor > 0:
        everything = torch.logaddexp(_total(top), tail)
        log_c = torch.maximum(log_c, everything + math.log(floor))
    return log_c


class SpreadPi(NamedTuple):
    """Sums of the probabilities pi over the candidates that are not kept with certainty.

    Attributes:
        by_row: sum of pi over the candidates of each row that are not kept with certainty.
        ends: cumulative sums of `by_row` over the rows of each example.
    """

    by_row: Float64[Tensor, "B N"]
    ends: Float64[Tensor, "B N"]


def sum_pi(
    best: Best,
    sure: Bool[Tensor, "R K"],
    group: Group,
    log_c: Float64[Tensor, "B"],
    slots_left: Int64[Tensor, "B"] | None,
) -> SpreadPi:
    """Sum pi over the candidates of each row that are not kept with certainty.

    If the number of free slots is known, the cumulative sums are scaled to it, which removes
    rounding errors.
    """
    others = _total(best.log_score.masked_fill(sure, -torch.inf))
    log_score = torch.logaddexp(others, best.log_rest)
    of_row = log_c[group.example]
    each = torch.where(log_score.isneginf(), 0.0, (log_score - of_row).exp())
    by_row = each.new_zeros(group.num_examples, group.width)
    by_row[group.example, group.rank] = each
    ends = by_row.cumsum(dim=1)
    if slots_left is not None:
        # After scaling, the number of points is exactly the number of free slots.
        total = ends[:, -1:]
        whole = torch.where(total > 0, slots_left.unsqueeze(1).double(), 0.0)
        ends = ends * (whole / torch.where(total > 0, total, 1.0))
        column = torch.arange(group.width, device=ends.device)
        last = torch.where(by_row > 0, column, -1).amax(dim=1, keepdim=True)
        ends = torch.where(column >= last, whole, ends)
    return SpreadPi(by_row, ends)


def points(
    ends: Float64[Tensor, "b N"], u: Float64[Tensor, "b"], most: int
) -> tuple[Int64[Tensor, "b M"], Float64[Tensor, "b M"], Bool[Tensor, "b M"]]:
    """Find the rows that systematic sampling selects with the points u, u + 1, u + 2 and so on.

    The cumulative sums of pi divide a line into one range for each row. A point selects the row in
    whose range it lies.

    Returns:
        For each point, the index of its row in the example, the distance of the point from the
        beginning of the row's range, and whether the point is valid. A point is valid if it is less
        than the sum of pi over all rows. The valid points of each example come first.
    """
    point = u.unsqueeze(1) + torch.arange(most, dtype=torch.float64, device=u.device)
    column = torch.searchsorted(ends, point, right=True).clamp(max=ends.shape[1] - 1)
    before = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1]], dim=1).gather(1, column)
    return column, point - before, point < ends[:, -1:]


def breaks(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[Tensor, "B"],
    spread: SpreadPi,
    group: Group,
) -> Float64[Tensor, "B M"]:
    """Return the uniform numbers u in (0, 1) at which the selection of each example changes."""
    pi = inclusion_probabilities(log_p, factors, known, log_c[group.example])
    before = torch.cat([torch.zeros_like(spread.ends[:, :1]), spread.ends[:, :-1]], dim=1)
    inner = pi.cumsum(dim=1) + before[group.example, group.rank].unsqueeze(1)
    ends = inner.new_zeros(group.num_examples, spread.ends.shape[1], inner.shape[1])
    ends[group.example, group.rank] = inner
    return torch.cat([ends.flatten(1), spread.ends], dim=1).frac()
