"""Recursion for beta, from one remaining budget r to the next, for the states that need it.

    u_r(h, s)    = sum over edges (s, t) of  mass[set, h] · beta_{r-1}(h, t)
    beta_r(h, s) = sum over h' of  A(h, h') u_r(h', s)

`hmm._product` explains the equations; this module decides which values to compute. All pairs (r, s)
with the same r are a *level*. A row has beta of the H hidden states, and `entry[r, s]` is the row
of the pair (r, s). Several pairs can share a row, and some don't have one:

* **Zero.** beta is zero if more than r tokens lead to the end (steps_to_accept[s] > r).
* **Not needed.** If the budgets are known, pairs that no text reaches don't have a row. With a
  budget of n tokens, state s has r tokens left only if n - r tokens lead to s from the start, along
  states from which the end stays within reach.
* **Reused.** A pair uses the row of (r - 1, s) if beta hasn't changed. If all successors of s
  reused their rows, the sum would be bitwise the same, so it isn't computed. A computed row is
  discarded if no entry differs from the state's current row by more than a fraction `tolerance`.

**Error.** Every reused row is within a factor of 1 ± tolerance of the row that was computed. Sums
of products of positive numbers don't increase relative errors. So beta_r is exact up to a factor of
(1 + tolerance)^r, which is a relative error of 1.3e-4 for r = 128 and a tolerance of 1e-6. Usually
the error is much smaller. With tolerance 0, beta equals the result of the full recursion.

**Cost.** Each computed row takes O(H) per edge, and one row of a matrix product, 2 H² operations.
The host decides which rows to compute. After each level, a host synchronization transfers which
rows changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int32, Int64
from torch import Tensor

from hmm._edges import Edges
from hmm._kernels import recursion as kernels
from hmm._kernels.recursion import CERTAIN, COMPUTED, LEFT_OUT, NOTHING
from hmm._model import HMM
from hmm._threads import in_turn, share_out

_AT_ONCE = {"cpu": 1 << 20}  # numbers in a block of rows; on the CPU a block fits into the cache
_ELSEWHERE = 1 << 25  # numbers in a block of rows on other devices
_TOGETHER = 256  # rows that one thread computes at a time, in all steps from sum to scale
_COMPILED = ("cpu",)  # devices on which the compiled loops of `hmm._kernels` run


class Completion(NamedTuple):
    """Table of beta: beta_r(h, s) = exp(log_scale[e]) · b[e, h] with e = entry[r, s].

    Attributes:
        entry: row of each remaining budget and state; -1 for pairs that aren't needed.
        b: scaled rows, with a maximum of 1 unless the row is zero.
        log_scale: log of the scale of each row; -inf for a zero row.
        settled: whether the rows of the largest remaining budget in the table are also correct for
            all larger budgets.
    """

    entry: Int32[Tensor, "levels S"]
    b: Float[Tensor, "rows H"]
    log_scale: Float64[Tensor, "rows"]
    settled: bool


class Scratch(NamedTuple):
    """Temporary memory for computing rows on the CPU.

    Attributes:
        u: blocks of rows before the transition, one for each thread. They are reused, so that they
            stay in the CPU's cache.
        rows: rows after the transition.
        arrays: the arrays that the compiled loops use, including `rows`.
    """

    u: list[Float[Tensor, "together H"]]
    rows: Float[Tensor, "n H"]
    arrays: kernels.Arrays

    @classmethod
    def of(
        cls,
        n: int,
        hmm: HMM,
        edges: Edges,
        b: Float[Tensor, "all H"],
        log_scale: Float64[Tensor, "all"],
    ) -> Scratch:
        """Allocate memory for computing up to n rows at once."""
        H, blocks = hmm.num_states, min(torch.get_num_threads(), -(-n // _TOGETHER))
        rows = _empty(n, H, hmm)
        return cls(
            u=[_empty(min(n, _TOGETHER), H, hmm) for _ in range(blocks)],
            rows=rows,
            arrays=kernels.Arrays(
                edges.start,
                edges.target,
                edges.set_of,
                edges.mass.numpy(),
                edges.log_mass.numpy(),
                b.numpy(),
                log_scale.numpy(),
                np.empty(n),
                rows.numpy(),
                np.empty(n),
            ),
        )


class Level(NamedTuple):
    """The rows of beta with r - 1 tokens left, from which those with r are computed.

    Attributes:
        before: row of each state at the previous level.
        b, log_scale: all rows so far.
        scratch: temporary memory; None except on the CPU.
    """

    before: Int64[np.ndarray, "S"]
    b: Float[Tensor, "rows H"]
    log_scale: Float64[Tensor, "rows"]
    scratch: Scratch | None = None


class Start(NamedTuple):
    """Automaton state in which a text begins, and the maximum number of the text's tokens."""

    state: int
    budget: int


def find_needed(
    edges: Edges, max_remaining: int, starts: Sequence[Start] | None
) -> Bool[np.ndarray, "levels S"]:
    """Find the pairs (r, s), r = 0 .. max_remaining, whose beta_r(., s) has to be computed.

    Pairs with a known beta of zero or one are excluded.

    Args:
        starts: initial state and budget of the texts to consider; None for texts that begin in any
            state with any budget.
    """
    if starts is None:
        levels = np.arange(max_remaining + 1)[:, None]
        needed = edges.steps_to_accept[None, :] <= levels
    else:
        ordered = sorted(starts, key=lambda start: -start.budget)
        needed = np.zeros((max(max_remaining + 1, ordered[0].budget), edges.num_states), np.bool_)
        kernels.mark_needed(
            edges.source,
            edges.target,
            edges.steps_to_accept,
            np.array([start.budget for start in ordered]),
            np.array([start.state for start in ordered]),
            needed,
        )
        needed = needed[: max_remaining + 1]
    needed[:, edges.final] = False
    return needed


@torch.no_grad()
def completion(
    hmm: HMM, edges: Edges, needed: Bool[np.ndarray, "levels S"], tolerance: float
) -> Completion:
    """Compute the table of beta for all needed pairs of a remaining budget and a state.

    The module docstring explains the recursion and its error.

    Args:
        tolerance: relative change up to which a row counts as unchanged.
    """
    rows, H = COMPUTED + int(needed.sum()), hmm.num_states
    b = _empty(rows, H, hmm)
    b[NOTHING], b[CERTAIN] = 0, 1
    log_scale = torch.empty(rows, dtype=torch.float64, device=hmm.device)
    log_scale[NOTHING], log_scale[CERTAIN] = -torch.inf, 0
    levels = len(needed)
    alive = edges.steps_to_accept[None, :] <= np.arange(levels)[:, None]
    entry = np.where(alive, LEFT_OUT, NOTHING)
    entry[:, edges.final] = CERTAIN

    whole = bool((needed.sum(axis=1) + len(edges.final) == alive.sum(axis=1)).all())
    at_once = rows_at_once(hmm)
    compiled = hmm.device.type in _COMPILED
    room = min(at_once, edges.num_states)
    scratch = Scratch.of(room, hmm, edges, b, log_scale) if compiled else None
    todo = np.empty(edges.num_states, np.int64)
    used, settled = COMPUTED, False
    for r in range(1, levels):
        states, now = np.flatnonzero(needed[r]), entry[r - 1]
        earlier = entry[r - 2] if r > 1 else np.full_like(now, LEFT_OUT)
        count = kernels.pending(states, edges.start, edges.target, now, earlier, entry[r], todo)
        level, first_new = Level(now, b, log_scale, scratch), used
        for first in range(0, count, at_once):
            some = todo[first : min(first + at_once, count)]
            moved = rows_of(hmm, edges, level, some, used, tolerance)
            entry[r, some] = now[some]
            entry[r, some[moved]] = np.arange(used, used + moved.sum())
            used += int(moved.sum())
        # No row changed at this level, so none will change later. (Up to the longest distance to
        # the end, each level has new states.)
        if whole and used == first_new:
            entry, settled = entry[: r + 1], True
            break
    b, log_scale = b[:used], log_scale[:used]
    if hmm.device.type != "cpu" and used < rows:  # copied, so that the unused rows are freed
        b, log_scale = b.clone(), log_scale.clone()
    return Completion(
        entry=torch.tensor(entry, dtype=torch.int32, device=hmm.device),
        b=b,
        log_scale=log_scale,
        settled=settled,
    )


def rows_at_once(hmm: HMM) -> int:
    """Return the number of rows of beta that are computed at once on the HMM's device."""
    return max(1, _AT_ONCE.get(hmm.device.type, _ELSEWHERE) // hmm.num_states)


def _empty(rows: int, H: int, hmm: HMM) -> Float[Tensor, "rows H"]:
    """Allocate rows without writing to them; unwritten rows take no memory on the CPU.

    PyTorch allocates them instead of numpy, because numpy requests large memory pages. Large pages
    are faster to write for the first time if memory is available (454 MiB in 0.08 s, with small
    pages 0.34 s). But on a virtual machine whose host had reclaimed free memory, they took 1.4 to
    2.1 s.
    """
    return hmm.initial.new_empty(rows, H, dtype=hmm.dtype)


def rows_of(
    hmm: HMM,
    edges: Edges,
    level: Level,
    states: Int64[np.ndarray, "n"],
    used: int,
    tolerance: float,
) -> Bool[np.ndarray, "n"]:
    """Compute the rows of beta of some states, and append those that changed to the table.

    Args:
        tolerance: relative change up to which a row counts as unchanged.

    Returns:
        True for each state whose row changed.
    """
    if hmm.device.type in _COMPILED:
        return _rows_compiled(hmm, level, states, used, tolerance)
    u, log_u = _sum_in_layers(edges, level, states)
    room = slice(used, used + len(states))
    rows, log_rows = level.b[room], level.log_scale[room]
    hmm.transition.backward(u, out=rows)
    moved = _rescale(level, states, log_u, tolerance, rows, log_rows)
    if not moved.all():
        kept = torch.from_numpy(moved).to(hmm.device)
        some = slice(used, used + int(moved.sum()))
        level.b[some], level.log_scale[some] = rows[kept], log_rows[kept]
    return moved


# -- for the CPU -----------------------------------------------------------------------------


def _rows_compiled(
    hmm: HMM,
    level: Level,
    states: Int64[np.ndarray, "n"],
    used: int,
    tolerance: float,
) -> Bool[np.ndarray, "n"]:
    """Do the same as `rows_of` on the CPU, with all steps for a few rows at a time.

    Rows are computed in memory that is reused, and only rows that changed are copied to the table,
    because the first write to new memory is slow.
    """
    n = len(states)
    assert level.scratch is not None
    free, rows, arrays = level.scratch
    moved = np.empty(n, np.bool_)
    before = level.before

    def some_rows(number: int) -> None:
        first, last = number * _TOGETHER, min((number + 1) * _TOGETHER, n)
        u = free.pop()
        kernels.sum_edges(arrays, first, last, states, before, u.numpy())
        hmm.transition.backward(u[: last - first], out=rows[first:last])
        free.append(u)
        kernels.rescale(arrays, first, last, states, before, tolerance, moved)

    in_turn(some_rows, -(-n // _TOGETHER))
    kept = np.flatnonzero(moved)
    share_out(kernels.store, len(kept), arrays, kept, used)
    return moved


# -- for any device --------------------------------------------------------------------------


def _sum_in_layers(
    edges: Edges, level: Level, states: Int64[np.ndarray, "n"]
) -> tuple[Float[Tensor, "n H"], Float64[Tensor, "n"]]:
    """Compute u (the sum over a state's edges) of some states, on any device.

    It returns u divided by its scale, and the log of the scale, like `kernels.sum_edges`. The k-th
    edges of all states are added at once. States are ordered by decreasing number of edges, so that
    the states with a k-th edge come first. Therefore no scatter operation is needed, and the result
    is the same on every device.
    """
    device = level.b.device
    degree = edges.start[states + 1] - edges.start[states]
    order = np.argsort(-degree, kind="stable")
    begin, degree = edges.start[states[order]], degree[order]
    layers = [int(np.count_nonzero(degree > k)) for k in range(degree.max(initial=0))]
    edge = np.concatenate([begin[:size] + k for k, size in enumerate(layers)])
    source = np.concatenate([np.arange(size) for size in layers])

    def put(array: np.ndarray) -> Tensor:
        return torch.tensor(array, dtype=torch.int64, device=device)

    row, ranked = put(level.before[edges.target[edge]]), put(source)
    edge_set = put(edges.set_of[edge])
    log_edge = level.log_scale[row] + edges.log_mass[edge_set]
    log_u = log_edge.new_full((len(states),), -torch.inf)
    log_u = log_u.scatter_reduce(0, ranked, log_edge, "amax")
    share = (log_edge - torch.where(log_u.isneginf(), 0.0, log_u)[ranked]).exp()
    share = share.to(level.b.dtype).unsqueeze(1)
    u = level.b.new_zeros(len(states), level.b.shape[1])
    first = 0
    for size in layers:
        some = slice(first, first + size)
        after = level.b.index_select(0, row[some]).mul_(share[some])
        u[:size].addcmul_(after, edges.mass.index_select(0, edge_set[some]))
        first += size
    back = put(np.argsort(order))
    return u[back], log_u[back]


def _rescale(
    level: Level,
    states: Int64[np.ndarray, "n"],
    log_u: Float64[Tensor, "n"],
    tolerance: float,
    rows: Float[Tensor, "n H"],
    log_rows: Float64[Tensor, "n"],
) -> Bool[np.ndarray, "n"]:
    """Scale new rows of beta to a maximum of one, and return which states' rows changed.

    It is equivalent to `kernels.rescale`, on any device, with a host synchronization.
    """
    top = rows.amax(dim=1)
    rows /= torch.where(top > 0, top, 1).unsqueeze(1)
    log_rows.copy_(log_u + top.double().log())
    at = torch.tensor(level.before[states], device=rows.device)
    old, log_old = level.b[at.clamp(min=0)], level.log_scale[at.clamp(min=0)]
    none, none_before = log_rows.isneginf(), log_old.isneginf()
    rise = torch.where(none | none_before, 0.0, log_rows - log_old)
    factor = rise.exp().to(rows.dtype).unsqueeze(1)
    far = ((rows * factor - old).abs() > tolerance * rows * factor).any(dim=1)
    far |= (rise.abs() > 1) | ((rise != 0) if tolerance == 0 else False)
    moved = torch.where(none | none_before, none != none_before, far) | (at < COMPUTED)
    return moved.cpu().numpy()
