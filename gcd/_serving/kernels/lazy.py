"""Masks of a constraint that is not lifted, computed when a state is first visited.

The states are the states of the byte automaton, and the additional state `final`. The tokens of a
mask are stored in parts (`gcd._serving.kernels.parts`). All tokens of a part lead to states with
the same bound (`gcd._tokens.completions`), so a mask within a budget consists of whole parts.

Inside counted runs (repetitions of a character, for example) the vocabulary is not followed from
each state. The tokens that stay in the run are computed once for all constraints over a vocabulary.
Only tokens that leave the run are followed. Tests compare the masks with the definition and with
the lifted table.
"""

from __future__ import annotations

import cython
import numpy as np

from gcd._tokens.distances import UNREACHABLE
from gcd._tokens.kernels.counted_runs import PHASES, Cells

if cython.compiled:
    from cython.cimports.gcd._serving.kernels.parts import (
        Part,
        TokenTree,
        Unit,
        UnitPhase,
        add,
        again,
        clear,
        parts,
        single,
        walk,
    )
    from cython.cimports.gcd._serving.kernels.steps import Steps
    from cython.cimports.libc.string import memcpy
else:
    from gcd._serving.kernels.parts import (
        Part,
        TokenTree,
        Unit,
        UnitPhase,
        add,
        again,
        clear,
        parts,
        single,
        walk,
    )
    from gcd._serving.kernels.steps import Steps

_PHASES = cython.declare(cython.int, PHASES)
_NONE = cython.declare(cython.int, UNREACHABLE)
_PER_PART = cython.declare(cython.longlong, 200)  # bytes of a part in addition to its tokens


def _steps_of(part: Part) -> int:
    """Return the key that sorts a mask's groups of tokens: their bound on the tokens to the end."""
    return int(part.steps)


@cython.final
@cython.cclass
class LazyTable(Steps):
    """Transitions and masks of a byte automaton over the tokens of a vocabulary.

    Args:
        tree: the vocabulary.
        delta, class_of_byte, accepting: the byte automaton; every index must be in range.
        bounds: upper bound on the tokens from each state to the end, `UNREACHABLE` for states that
            can't be completed; int32.
        cells: the automaton's counted runs, which repeat a small automaton (unit) many times.
        units: the behavior of the vocabulary's tokens in each of these units.
        most_bytes: maximum size of the cached masks in bytes.
    """

    tree: TokenTree
    step: cython.const[cython.int][:, ::1]
    class_of: cython.const[cython.uchar][::1]
    accepts: cython.const[cython.uchar][::1]
    bound: cython.const[cython.int][::1]
    cell: cython.const[cython.int][::1]
    phase: cython.const[cython.int][::1]
    cell_at: cython.const[cython.int][::1]
    after: cython.const[cython.int][::1]
    start: cython.const[cython.int][::1]
    states: cython.const[cython.int][::1]
    unit_of: cython.const[cython.int][::1]
    units: list
    number_of: cython.int[::1]
    rows: dict
    most_bytes: cython.longlong
    num_bytes = cython.declare(cython.longlong, visibility="readonly")

    def __init__(
        self,
        tree: TokenTree,
        delta: np.ndarray,
        class_of_byte: np.ndarray,
        accepting: np.ndarray,
        bounds: np.ndarray,
        cells: Cells,
        units: list,
        most_bytes: int,
    ) -> None:
        super().__init__(delta.shape[0], tree.offsets.shape[0] - 1, tree.num_words)
        self.tree = tree
        self.step, self.class_of = delta, class_of_byte
        self.accepts, self.bound = accepting.view(np.uint8), bounds
        self.cell, self.phase, self.cell_at = cells.cell, cells.phase, cells.cell_at
        self.after, self.start, self.states = cells.after, cells.start, cells.states
        self.unit_of, self.units = cells.unit_of, units
        largest = int(bounds[bounds < UNREACHABLE].max(initial=0))
        self.number_of = np.full(largest + 1, -1, np.int32)
        self.rows = {}
        self.most_bytes, self.num_bytes = most_bytes, 0

    @property
    def num_rows(self) -> int:
        """Number of cached masks."""
        return len(self.rows)

    def forget(self) -> None:
        """Drop the cached masks."""
        self.rows.clear()
        self.num_bytes = 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def next_state(
        self, state: cython.int, remaining: cython.longlong, token: cython.longlong
    ) -> cython.int:
        """Return the state after a token, -1 if the language or the budget refuses it."""
        tree: TokenTree = self.tree
        i: cython.Py_ssize_t
        if state < 0:
            return -1
        if tree.is_end[token]:
            if state == self.final or (self.accepts[state] and remaining > 0):
                return self.final
            return -1
        if state == self.final or tree.offsets[token] == tree.offsets[token + 1]:
            return -1
        for i in range(tree.offsets[token], tree.offsets[token + 1]):
            state = self.step[state, self.class_of[tree.text[i]]]
            if state < 0:
                return -1
        return state if self.bound[state] < remaining else -1

    @cython.cfunc
    def row(self, state: cython.int) -> list:
        """Return a state's mask as groups of tokens (parts), ordered by their bounds.

        A bound limits the tokens to the end. The groups are computed at the first visit.
        """
        found: list | None = self.rows.get(state)
        part: Part
        if found is not None:
            return found
        if state == self.final:
            found = [self.end()]
        elif self.cell[state] >= 0:
            found = self.row_in_run(state)
        else:
            num_nodes: cython.Py_ssize_t = self.tree.byte.shape[0]
            found = self.group(walk(self.tree, state, 0, num_nodes, self.step, self.class_of, 0))
        if state < self.final and self.accepts[state]:
            found.append(self.end())
        found.sort(key=_steps_of)
        for part in found:
            self.num_bytes += _PER_PART + (4 * part.ids.shape[0] if not part.is_wide else 0)
        if self.num_bytes > self.most_bytes:
            self.forget()
        self.rows[state] = found
        return found

    @cython.cfunc
    def end(self) -> Part:
        """Return the EOS ids as a part of a mask."""
        part: Part = Part()
        part.ids = self.tree.ends
        part.size = self.tree.ends.shape[0]
        return part

    @cython.cfunc
    def group(self, count: cython.Py_ssize_t) -> list:
        """Group token strings by the bound on the tokens from the state after them to the end.

        They are the first `count` elements of `tree.found`; `tree.goal` has the states after them.
        """
        tree: TokenTree = self.tree
        i: cython.Py_ssize_t
        bound: cython.int
        part: Part
        for i in range(count):
            bound = self.bound[tree.goal[i]]
            tree.goal[i] = bound if bound < _NONE else -1
        made: list
        bounds: list
        made, bounds = parts(tree, count, self.number_of)
        for i in range(len(made)):
            part = made[i]
            part.steps = bounds[i]
            if part.is_wide:
                self.num_bytes += 4 * tree.num_words
        return made

    @cython.cfunc
    @cython.exceptval(check=False)
    def look_ahead(
        self, cell: cython.int, furthest: cython.int
    ) -> tuple[cython.Py_ssize_t, cython.bint]:
        """Write the boundaries of the next repetitions in a counted run, from `cell` on.

        They are written to `ahead`. Return how many there are, and whether the last one leads back
        to itself.
        """
        ahead: cython.int[:, ::1] = self.tree.ahead
        count: cython.Py_ssize_t = 0
        beyond: cython.int
        following: cython.int
        while True:
            ahead[count, 0] = self.states[self.start[cell]]
            ahead[count, 1] = cell
            count += 1
            beyond = self.after[cell]
            following = self.cell_at[beyond]
            if following == cell:
                return count, True
            if count > furthest:
                return count, False
            if following < 0 or self.unit_of[following] != self.unit_of[cell]:
                ahead[count, 0] = beyond
                ahead[count, 1] = -1
                return count + 1, False
            cell = following

    @cython.cfunc
    @cython.exceptval(check=False)
    def bound_in_run(
        self,
        far: cython.Py_ssize_t,
        end: cython.int,
        length: cython.Py_ssize_t,
        loops: cython.bint,
    ) -> cython.int:
        """Return the bound on the tokens to the end from a state of a counted run.

        It is state `end` of the repeated automaton (unit), in the copy that is `far` copies ahead.
        """
        ahead: cython.int[:, ::1] = self.tree.ahead
        if far >= length:
            if not loops:
                return _NONE
            far = length - 1
        if end == 0:
            return self.bound[ahead[far, 0]]
        if ahead[far, 1] < 0:
            return _NONE
        return self.bound[self.states[self.start[ahead[far, 1]] + end]]

    @cython.cfunc
    def row_in_run(self, state: cython.int) -> list:
        """Return the mask of a state inside a counted run (a repetition), as groups of tokens."""
        tree: TokenTree = self.tree
        cell: cython.int = self.cell[state]
        unit: Unit = self.units[self.unit_of[cell]]
        phase: UnitPhase = unit.at(self.phase[state])
        length: cython.Py_ssize_t
        loops: cython.bint
        length, loops = self.look_ahead(cell, phase.furthest)
        found: list = []
        apart: list
        part: Part
        end: cython.int
        far: cython.Py_ssize_t
        target: cython.int
        bound: cython.int
        same: cython.int
        i: cython.Py_ssize_t
        for i in range(len(phase.ends)):
            end = phase.ends[i]
            apart = []
            same = -1
            for far, part in phase.parts[i]:
                bound = self.bound_in_run(far, end, length, loops)
                same = bound if same in (-1, bound) else -2
                if bound < _NONE:
                    apart.append(again(part, bound))
            # Usually all of these tokens lead to the same bound, so one part is enough.
            found.extend([again(phase.unions[i], same)] if 0 <= same < _NONE else apart)
        count: cython.Py_ssize_t = 0
        node: cython.Py_ssize_t
        for i in range(phase.exits.shape[0]):
            node = phase.exits[i, 0]
            far = phase.exits[i, 1]
            if far >= length and loops:
                far = length - 1
            if far < length:
                target = tree.ahead[far, 0]
                if self.step[target, self.class_of[tree.byte[node]]] >= 0:
                    count = walk(
                        tree, target, node, tree.skip[node], self.step, self.class_of, count
                    )
        found.extend(self.group(count))
        return found

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def write_row(
        self, state: cython.int, remaining: cython.longlong, out: cython.p_int
    ) -> cython.int:
        """Write the packed mask of a state with `remaining` tokens left; state -1 allows none."""
        first: Part | None = None
        part: Part
        if state < 0:
            clear(out, self.num_words)
            return 0
        row: list = self.row(state)
        for part in row:
            if part.steps >= remaining:
                break
            if part.is_wide:
                first = part
                break
        if first is None:
            clear(out, self.num_words)
        elif cython.compiled:
            memcpy(out, cython.address(first.words[0]), self.num_words * cython.sizeof(cython.int))
        else:
            out[:] = first.words
        for part in row:
            if part.steps >= remaining:
                break
            if part is not first:
                add(self.tree, part, out)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def num_allowed(self, state: cython.int, remaining: cython.longlong) -> cython.longlong:
        """Count the tokens of a state's mask."""
        count: cython.longlong = 0
        part: Part
        for part in self.row(state):
            if part.steps < remaining:
                count += part.size
        return count

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def only_token(self, state: cython.int, remaining: cython.longlong) -> cython.longlong:
        """Return the only token of a state's mask; -1 if it has none or several."""
        token: cython.longlong = -1
        part: Part
        if self.num_allowed(state, remaining) != 1:
            return -1
        for part in self.row(state):
            if part.size == 1 and part.steps < remaining:
                token = single(part)
        return token
