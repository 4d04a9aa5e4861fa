"""Probability that a text is completed at any length: beta without a budget.

    beta_unbounded(h, s) = the limit of beta_r(h, s) as r grows
                         = sum over h' of  A(h, h') u_unbounded(h', s)
    u_unbounded(h, s)    = sum over edges (s, t) of  mass[set, h] beta_unbounded(h, t)

This is a single system of linear equations, instead of one level for each r. The states are divided
into strongly connected components (by scipy). Components are solved from the end of the automaton
backward, in layers of components that don't depend on each other. A state that isn't on a cycle is
computed once, after its successors.

**Cycles** arise from the characters of a string, digits, and repeated items. Some states, the
*cuts*, are chosen such that every cycle contains one: usually the state inside the string, or
between two items. Let x be beta of the cuts. One *sweep*, from the cuts backward, computes beta of
the other states from x, and then a new x. So the equation is x = M x + c, where c is the
probability of completion without reaching a cut again. At the end of a sweep, cuts with an edge to
a cut, such as the state inside a string, are computed `REPEATS` more times. Sweeps that start from
x = 0 converge slowly if the probability of leaving a cycle is small: a long string would take
thousands of sweeps.

**Extrapolation.** Therefore x is extrapolated after each sweep by Anderson mixing, which for linear
equations equals GMRES except for restarts (Walker and Ni, SIAM J. Numer. Anal. 49, 2011). Anderson
mixing chooses a linear combination of the last `WINDOW` results: the one for which a further sweep
would give the smallest sum of squared relative changes. JSON schemas then take 4 to 10 sweeps. An
extrapolated x is rejected if an entry isn't positive, or if the next sweep changes it more than the
previous sweep changed the previous x. Plain sweeps then continue from the last result.

**Error.** The iteration stops when a sweep and the extrapolation change every entry by at most a
fraction d <= `tolerance`, or when d no longer decreases. Because M is positive, the relative error
is at most d / p, up to rounding, where p is the smallest ratio c / x. Without extrapolation, errors
are as large as this bound. With extrapolation, errors on JSON schemas in float32 were 3e-7 to 2e-5.
For five strings with a very small probability of leaving, the error was 2e-4, whereas 10,000 sweeps
from x = 0 had an error of 3e-1. Rounding always changes rows by a few machine epsilons, so a
`tolerance` below `_ROUNDING` machine epsilons is raised to this value. After `MAX_ROUNDS` sweeps
the current values are used.

Cost: each sweep computes one row per state, in O(H²), and sums over `WINDOW` rows per cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from hmm import _recursion as recursion
from hmm._edges import Edges
from hmm._kernels import eventual as kernels
from hmm._kernels.recursion import CERTAIN, COMPUTED, NOTHING
from hmm._model import HMM
from hmm._recursion import Completion

MAX_ROUNDS = 10_000  # maximum number of sweeps
WINDOW = 10  # number of earlier sweeps that an extrapolation combines
REPEATS = 8  # computations of a cut per sweep; fastest on JSON strings among 4, 8 and 16
_ROUNDING = 32  # smallest tolerance, in machine epsilons
_INDEPENDENT = 1e-14  # relative cutoff of singular values in the least-squares problem


@torch.no_grad()
def eventually(hmm: HMM, edges: Edges, tolerance: float) -> Completion:
    """Compute the probability of completion without a budget.

    The result is a table of beta over hidden states and automaton states, with a single level that
    is used for every remaining budget.
    """
    S = edges.num_states
    tolerance = max(tolerance, _ROUNDING * torch.finfo(hmm.dtype).eps)
    parts = Components.of(edges)
    table = _BetaRows(hmm, edges, np.concatenate([*parts.layers, edges.final]))
    for layer in parts.layers:
        first = int(np.count_nonzero(~parts.cyclic[layer]))
        table.compute(layer[:first], in_place=True)
        if first < len(layer):
            _settle(table, parts, layer[first:], tolerance)
    b, log_scale = table.rows(np.arange(S))
    b[edges.final], log_scale[edges.final] = 1, 0
    return Completion(
        entry=torch.arange(S, dtype=torch.int32, device=hmm.device).unsqueeze(0),
        b=b,
        log_scale=log_scale,
        settled=True,
    )


class Components(NamedTuple):
    """Strongly connected components of the states, in an order in which they can be solved.

    Attributes:
        layers: all states except final ones. Edges lead to earlier layers, or stay in a component.
            In a layer, states that aren't on a cycle come first, followed by the others in the
            order of `depth`.
        component: the component of each state.
        cyclic: whether each state is on a cycle.
        cut: whether each state is one of the cuts, without which there are no cycles.
        loops: whether each state is a cut with an edge to a cut of the same component, usually
            itself.
        depth: number such that edges inside a component lead to a smaller depth, or to a cut.
    """

    layers: list[Int64[np.ndarray, "states"]]
    component: Int64[np.ndarray, "S"]
    cyclic: Bool[np.ndarray, "S"]
    cut: Bool[np.ndarray, "S"]
    loops: Bool[np.ndarray, "S"]
    depth: Int64[np.ndarray, "S"]

    @classmethod
    def of(cls, edges: Edges) -> Components:
        """Find the components of the graph of automaton states and edges."""
        S, source, target = edges.num_states, edges.source, edges.target
        # scipy is imported here because the import takes half a second and is rarely needed.
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        graph = csr_array((np.ones(len(source), np.int8), (source, target)), (S, S))
        count, component = connected_components(graph, directed=True, connection="strong")
        component = component.astype(np.int64)
        before, after = component[source], component[target]
        inside = before == after
        height = kernels.depths(count, before[~inside], after[~inside])[component]
        # States with many incoming edges are likely to be on many cycles, so they are the first
        # candidates for cuts.
        entering = np.bincount(target[inside], minlength=S)
        roots = np.argsort(-entering, kind="stable")
        cut = kernels.cuts(roots, edges.start, target, component)
        open_ = inside & ~cut[target]
        depth = kernels.depths(S, source[open_], target[open_])
        cyclic = np.isin(component, before[inside])
        order = np.lexsort((cut, depth, cyclic, height))
        order = order[~np.isin(order, edges.final)]
        return cls(
            layers=np.split(order, np.flatnonzero(np.diff(height[order])) + 1),
            component=component,
            cyclic=cyclic,
            cut=cut,
            loops=np.isin(np.arange(S), source[inside & cut[source] & cut[target]]),
            depth=depth,
        )


class _BetaRows:
    """Rows of beta (completion probabilities), one per state, with memory to recompute them."""

    def __init__(self, hmm: HMM, edges: Edges, order: Int64[np.ndarray, "S"]) -> None:
        S = edges.num_states
        self.hmm, self.edges = hmm, edges
        self.at_once = min(recursion.rows_at_once(hmm), S)
        self.home, self.room = np.empty(S, np.int64), COMPUTED + S
        self.home[order] = np.arange(COMPUTED, self.room)
        b = hmm.initial.new_zeros(self.room + self.at_once, hmm.num_states)
        b[CERTAIN] = 1
        log_scale = torch.full((len(b),), -torch.inf, dtype=torch.float64, device=hmm.device)
        log_scale[CERTAIN] = 0
        row_of = np.full(S, NOTHING)
        row_of[edges.final] = CERTAIN
        scratch = None
        if hmm.device.type == "cpu":
            scratch = recursion.Scratch.of(self.at_once, hmm, edges, b, log_scale)
        self.level = recursion.Level(row_of, b, log_scale, scratch)

    def compute(self, states: Int64[np.ndarray, "n"], *, in_place: bool) -> None:
        """Compute the rows of beta of some states from the rows of their successors.

        Args:
            in_place: whether to write rows directly to their final position. This requires that no
                state has an edge to one of these states, and that the states are adjacent in the
                order.
        """
        for first in range(0, len(states), self.at_once):
            some = states[first : first + self.at_once]
            if in_place:
                self.level.before[some] = NOTHING
            at = int(self.home[some[0]]) if in_place else self.room
            moved = recursion.rows_of(self.hmm, self.edges, self.level, some, at, 0.0)
            if in_place:
                self.level.before[some] = self.home[some]
            else:
                new = slice(self.room, self.room + int(moved.sum()))
                self.put(some[moved], self.level.b[new].clone(), self.level.log_scale[new].clone())

    def rows(
        self, states: Int64[np.ndarray, "n"]
    ) -> tuple[Float[Tensor, "n H"], Float64[Tensor, "n"]]:
        """Return copies of the rows of beta of these states, and the logs of their scales."""
        at = torch.tensor(self.home[states], device=self.hmm.device)
        return self.level.b.index_select(0, at), self.level.log_scale.index_select(0, at)

    def put(
        self,
        states: Int64[np.ndarray, "n"],
        b: Float[Tensor, "n H"],
        log_scale: Float64[Tensor, "n"],
    ) -> None:
        """Store new rows of beta for some states, in place of their old ones."""
        at = torch.tensor(self.home[states], device=self.hmm.device)
        self.level.b.index_copy_(0, at, b)
        self.level.log_scale.index_copy_(0, at, log_scale)
        self.level.before[states] = self.home[states]


def _settle(
    table: _BetaRows, parts: Components, states: Int64[np.ndarray, "n"], tolerance: float
) -> None:
    """Solve the equations for beta of some states, by sweeps; their cycles have no other states.

    Solved components are excluded from further sweeps, so that their result doesn't depend on the
    other components.
    """
    start, component = _Rows.of(*table.rows(states)), parts.component[states]
    cycles = []
    for number in np.unique(component):
        own = (component == number) & parts.cut[states]
        cycles.append((states[own], _Mixing(start.some(own), tolerance)))
    changed = True
    for _ in range(MAX_ROUNDS):
        if changed:
            open_ = [int(parts.component[cut[0]]) for cut, _ in cycles]
            swept = _steps(table, parts, states[np.isin(component, open_)])
            cuts = np.concatenate([cut for cut, _ in cycles])
        for some, in_place in swept:
            table.compute(some, in_place=in_place)
        rows, first = _Rows.of(*table.rows(cuts)), 0
        for cut, mixing in cycles:
            x = mixing.next(rows.some(slice(first, first + len(cut))))
            first += len(cut)
            if x is not None:
                table.put(cut, *x.tensors(table.hmm.device))
        remaining = [cycle for cycle in cycles if not cycle[1].settled]
        changed, cycles = len(remaining) < len(cycles), remaining
        if not cycles:
            break


def _steps(
    table: _BetaRows, parts: Components, states: Int64[np.ndarray, "n"]
) -> list[tuple[Int64[np.ndarray, "some"], bool]]:
    """Plan a sweep as steps: the states of each step, and whether their rows are written in place.

    Cuts with an edge to a cut are computed `REPEATS` more times at the end.
    """
    key = 2 * parts.depth[states] + parts.cut[states]
    steps = np.split(states, np.flatnonzero(np.diff(key)) + 1)
    cut = states[parts.cut[states]]
    steps += [cut[parts.loops[cut]]] * REPEATS
    return [
        (some, bool(not parts.cut[some[0]] and (np.diff(table.home[some]) == 1).all()))
        for some in steps
        if some.size
    ]


class _Rows(NamedTuple):
    """Rows of beta for some states, as beta = exp(log_scale) · b."""

    b: Float[np.ndarray, "n H"]
    log_scale: Float64[np.ndarray, "n"]

    @classmethod
    def of(cls, b: Float[Tensor, "n H"], log_scale: Float64[Tensor, "n"]) -> _Rows:
        return cls(b.cpu().numpy(), log_scale.cpu().numpy())

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.b).to(device), torch.from_numpy(self.log_scale).to(device)

    def some(self, index: Any) -> _Rows:
        return _Rows(self.b[index], self.log_scale[index])

    def times(self, factor: Float64[np.ndarray, "n H"]) -> _Rows:
        b = self.b * factor
        top = b.max(axis=1)
        top[top == 0] = 1
        return _Rows((b / top[:, None]).astype(self.b.dtype), self.log_scale + np.log(top))


def _ratios(rows: Sequence[_Rows], last: _Rows) -> Float64[np.ndarray, "rows n H"]:
    """Divide several sets of rows of beta by the set `last`, entry by entry; x / 0 is 0."""
    log_scale = np.stack([row.log_scale for row in rows])
    none = np.isneginf(last.log_scale)
    rise = np.where(none, -np.inf, log_scale - np.where(none, 0.0, last.log_scale))
    inverse = np.zeros(last.b.shape)
    np.divide(1.0, last.b, out=inverse, where=last.b > 0)
    return np.stack([row.b for row in rows]) * (np.exp(rise)[:, :, None] * inverse)


class _Mixing:
    """Anderson mixing: computes the next x for the equation x = M x + c from the latest sweeps.

    All entries are expressed as ratios to the result of the last sweep. They then have equal
    weight, even if their magnitudes differ between states or hidden states.
    """

    def __init__(self, x: _Rows, tolerance: float) -> None:
        self.tolerance = tolerance
        self.x = x
        self.before: list[_Rows] = []  # inputs of the sweeps
        self.after: list[_Rows] = []  # results of the sweeps
        self.farthest = self.length = np.inf
        self.mixed = self.settled = False

    def next(self, swept: _Rows) -> _Rows | None:
        """Return the x for the next sweep, given the result `swept` of the last one.

        None means that the next sweep continues from `swept` without extrapolation.
        """
        present = swept.b > 0
        before = [*self.before[-WINDOW:], self.x]
        after = [*self.after[-WINDOW:], swept]
        ratios = _ratios([*before, *after], swept)
        result = ratios[len(before) :]
        moves = result - ratios[: len(before)]
        farthest, length = float(np.abs(moves[-1]).max()), float(np.linalg.norm(moves[-1]))
        near = farthest <= self.tolerance
        # The extrapolation made x worse, so continue from the sweep before it.
        if self.mixed and length > self.length and not near:
            self.x = self.after[-1]
            self.before, self.after, self.mixed = [], [], False
            return self.x
        self.before, self.after = before, after
        change = _mix(moves.reshape(len(after), -1), result.reshape(len(after), -1))
        change = change.reshape(present.shape)
        asked = np.abs(change).max() if len(after) > 1 else np.inf
        self.settled = near and (asked <= self.tolerance or farthest >= self.farthest)
        self.farthest, self.length = farthest, length
        positive = bool((np.isfinite(change) & (change > -1)).all())
        self.mixed = len(after) > 1 and positive and not self.settled
        self.x = swept.times(1 + change) if self.mixed else swept
        return self.x if self.mixed else None


def _mix(
    moves: Float64[np.ndarray, "n x"], results: Float64[np.ndarray, "n x"]
) -> Float64[np.ndarray, "x"]:
    """Return the change from the last result to the combination that a sweep changes least."""
    steps = np.diff(moves, axis=0)
    size = np.linalg.norm(steps, axis=1)
    size[size == 0] = 1
    steps /= size[:, None]
    weights = np.linalg.lstsq(steps @ steps.T, steps @ moves[-1], rcond=_INDEPENDENT)[0] / size
    return -(weights @ np.diff(results, axis=0))
