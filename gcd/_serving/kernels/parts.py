"""Parts of a mask: groups of tokens, found by following a vocabulary's prefix tree.

The tokens of a mask are grouped by the states that they lead to. A part with few tokens stores
their ids. A part with many tokens is stored as a mask, which takes less memory and less time to
copy.

Counted runs (`gcd._tokens.kernels.counted_runs`) are copies of a small automaton, the unit. The
effect of tokens in them only depends on the unit. So it is computed once for each unit and
vocabulary, and shared by all constraints.
"""

from __future__ import annotations

import cython
import numpy as np

from gcd._tokens.kernels.counted_runs import PHASES

if cython.compiled:
    from cython.cimports.libc.string import memset

_PHASES = cython.declare(cython.int, PHASES)
_PHASE = cython.declare(cython.int, PHASES - 1)  # a mask, as PHASES is a power of two
_MANY_NODES = cython.declare(cython.Py_ssize_t, 1000)
_BITS: np.ndarray = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32)).view(np.int32)


@cython.final
@cython.cclass
class Part:
    """Tokens of a mask that lead to states with the same bound on the tokens to the end.

    Attributes:
        steps: the bound: the most tokens that a shortest completion may need after these tokens.
        size: number of tokens.
        ids: the tokens; None if they are stored as words.
        words: the tokens as a mask; None if they are stored as ids.
    """

    def __init__(self) -> None:
        self.steps, self.size, self.is_wide = 0, 0, False
        self.ids = self.words = None


@cython.final
@cython.cclass
class TokenTree:
    """Prefix tree and tokens of a vocabulary for compiled loops, with scratch space.

    Args:
        tree: byte, depth, skip and entry of `gcd._tokens.trie.Trie`.
        tokens: index of the first id of each entry (distinct token string), and the token ids
            ordered by entry.
        text: the concatenated bytes of all tokens.
        offsets: the start of each token in `text`, followed by the length of `text`; int64.
        ends: the EOS ids; int32.
        max_depth: depth of the tree.
        num_words: words in a mask.
    """

    def __init__(
        self,
        tree: tuple[np.ndarray, ...],
        tokens: tuple[np.ndarray, np.ndarray],
        text: np.ndarray,
        offsets: np.ndarray,
        ends: np.ndarray,
        max_depth: int,
        num_words: int,
    ) -> None:
        self.byte, self.depth, self.skip, self.entry = tree
        self.id_start, self.ids = tokens
        self.text, self.offsets, self.ends = text, offsets, ends
        is_end = np.zeros(offsets.size - 1, np.uint8)
        is_end[ends] = 1
        self.is_end, self.bit = is_end, _BITS
        self.max_depth, self.num_words = max_depth, num_words
        # Scratch space. Compiled steps hold the interpreter's lock, so all tables can share it.
        num_entries = tokens[0].size - 1
        self.found = np.empty(num_entries, np.int32)
        self.goal = np.empty(num_entries, np.int32)
        self.path = np.empty(max_depth + 1, np.int32)
        self.ahead = np.empty((max_depth + 3, 2), np.int32)


@cython.cfunc
@cython.exceptval(check=False)
def walk(
    tree: TokenTree,
    state: cython.int,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    step: cython.const[cython.int][:, ::1],
    class_of: cython.const[cython.uchar][::1],
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Find the allowed token strings that end at nodes first..last-1 of the tree.

    The nodes are subtrees with one parent; `state` is the state there. From index `count` on, write
    the entries of the strings to `tree.found`, and the states after them to `tree.goal`. Return the
    new count.
    """
    node: cython.Py_ssize_t = first
    d: cython.Py_ssize_t
    after: cython.int
    if last - first >= _MANY_NODES:
        return _walk_far(tree, state, first, last, step, class_of, count)
    if node < last:
        tree.path[tree.depth[node]] = state
    while node < last:
        d = tree.depth[node]
        after = step[tree.path[d], class_of[tree.byte[node]]]
        if after < 0:
            node = tree.skip[node]
            continue
        tree.path[d + 1] = after
        if tree.entry[node] >= 0:
            tree.found[count] = tree.entry[node]
            tree.goal[count] = after
            count += 1
        node += 1
    return count


@cython.cfunc
@cython.exceptval(check=False)
def _walk_far(
    tree: TokenTree,
    state: cython.int,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    step: cython.const[cython.int][:, ::1],
    class_of: cython.const[cython.uchar][::1],
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return what `walk` returns, but faster for many nodes: the arrays are local variables."""
    byte: cython.const[cython.uchar][::1] = tree.byte
    depth: cython.const[cython.int][::1] = tree.depth
    skip: cython.const[cython.int][::1] = tree.skip
    entry: cython.const[cython.int][::1] = tree.entry
    path: cython.int[::1] = tree.path
    found: cython.int[::1] = tree.found
    goal: cython.int[::1] = tree.goal
    node: cython.Py_ssize_t = first
    d: cython.Py_ssize_t
    after: cython.int
    path[depth[node]] = state
    while node < last:
        d = depth[node]
        after = step[path[d], class_of[byte[node]]]
        if after < 0:
            node = skip[node]
            continue
        path[d + 1] = after
        # Written for all nodes, as a branch would be mispredicted; a later node has an entry.
        found[count] = entry[node]
        goal[count] = after
        count += entry[node] >= 0
        node += 1
    return count


@cython.cfunc
def _part(tree: TokenTree, ids: cython.int[::1], size: cython.Py_ssize_t) -> Part:
    """Make a part of a mask from the first `size` elements of `ids`, which are token ids."""
    part: Part = Part()
    words: cython.int[::1]
    i: cython.Py_ssize_t
    part.size = size
    part.is_wide = size >= tree.num_words
    if not part.is_wide:
        part.ids = ids[:size].copy()  # a copy, because a view would keep all ids in memory
        return part
    words = np.zeros(tree.num_words, np.int32)
    for i in range(size):
        words[ids[i] >> 5] = words[ids[i] >> 5] | tree.bit[ids[i] & 31]
    part.words = words
    return part


@cython.cfunc
def parts(tree: TokenTree, count: cython.Py_ssize_t, number: cython.int[::1]) -> tuple:
    """Group the first `count` token strings in `tree.found` by their elements of `tree.goal`.

    A goal is a bound on the tokens to the end. Token strings with the goal -1 are skipped. `number`
    is scratch space with an element for each goal; it contains -1 before and after the call.

    Returns:
        A part for each group, and the goal of each part.
    """
    goals: list = []
    sizes: list = []
    made: list = []
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    group: cython.int
    num_groups: cython.int = 0
    for i in range(count):
        if tree.goal[i] >= 0 and number[tree.goal[i]] < 0:
            number[tree.goal[i]] = num_groups
            goals.append(int(tree.goal[i]))
            num_groups += 1
    start_array = np.zeros(num_groups + 1, np.int64)
    start: cython.longlong[::1] = start_array
    for i in range(count):
        if tree.goal[i] >= 0:
            group = number[tree.goal[i]]
            start[group + 1] += tree.id_start[tree.found[i] + 1] - tree.id_start[tree.found[i]]
    for group in range(num_groups):
        start[group + 1] += start[group]
    sizes = start_array.tolist()
    ids: cython.int[::1] = np.empty(start[num_groups], np.int32)
    for i in range(count):
        if tree.goal[i] >= 0:
            group = number[tree.goal[i]]
            for j in range(tree.id_start[tree.found[i]], tree.id_start[tree.found[i] + 1]):
                ids[start[group]] = tree.ids[j]
                start[group] += 1
    for group in range(num_groups):
        number[goals[group]] = -1
        size = sizes[group + 1] - sizes[group]
        made.append(_part(tree, ids[sizes[group] : sizes[group + 1]], size))
    return made, goals


@cython.final
@cython.cclass
class UnitPhase:
    """Effect of all tokens from one state (phase) of a unit, which a counted run repeats.

    A token passes a boundary whenever it completes a copy of the unit.

    Attributes:
        ends: the phases at which tokens that stay in the run end.
        unions: for each of these phases, one part with all tokens that end there.
        parts: for each of these phases, a list of pairs (number of boundaries passed, part with the
            tokens that pass this number).
        furthest: largest number of boundaries that a token passes.
        exits: pairs (node of the tree whose byte leaves the run, boundaries passed before it).
    """


@cython.cfunc
def _unit_phase(tree: TokenTree, unit: cython.const[cython.short][:, ::1], phase: int) -> UnitPhase:
    """Compute where all tokens lead from state `phase` of a repeated automaton (`unit`).

    `unit[p, b]` is the state of the unit after byte b in state p.
    """
    made: UnitPhase = UnitPhase()
    num_nodes: cython.Py_ssize_t = tree.byte.shape[0]
    exit_array = np.empty((64, 2), np.int32)
    exits: cython.int[:, ::1] = exit_array
    num_exits: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    node: cython.Py_ssize_t = 0
    d: cython.Py_ssize_t
    i: cython.Py_ssize_t
    entry: cython.int
    now: cython.int  # boundaries passed times _PHASES, plus the phase
    after: cython.int
    size_array = np.zeros((tree.max_depth + 2) * PHASES, np.int64)
    size: cython.longlong[::1] = size_array  # tokens by what they lead to
    # The loop's own views, which it need not read from the tree at every node.
    byte: cython.const[cython.uchar][::1] = tree.byte
    depth: cython.const[cython.int][::1] = tree.depth
    skip: cython.const[cython.int][::1] = tree.skip
    entry_of: cython.const[cython.int][::1] = tree.entry
    id_start: cython.const[cython.longlong][::1] = tree.id_start
    path: cython.int[::1] = tree.path
    found: cython.int[::1] = tree.found
    goal_of: cython.int[::1] = tree.goal
    path[0] = phase
    while node < num_nodes:
        d = depth[node]
        now = path[d]
        after = unit[now & _PHASE, byte[node]]
        if after < 0:
            if now & _PHASE == 0:
                if num_exits == exits.shape[0]:
                    exit_array = np.concatenate([exit_array, np.empty_like(exit_array)])
                    exits = exit_array
                exits[num_exits, 0] = node
                exits[num_exits, 1] = now // _PHASES
                num_exits += 1
            node = skip[node]
            continue
        now = (now & ~_PHASE) + after
        if after == 0:
            now += _PHASES
        path[d + 1] = now
        # Written for all nodes, as a branch would be mispredicted; a later node has an entry.
        entry = entry_of[node]
        found[count] = entry
        goal_of[count] = now
        count += entry >= 0
        node += 1
    for i in range(count):
        entry = found[i]
        size[goal_of[i]] += id_start[entry + 1] - id_start[entry]
    made.exits = exit_array[:num_exits].copy()
    goals: list = np.flatnonzero(size_array).tolist()
    apart: list = _parts_of_goals(tree, count, size, goals)
    made.ends = sorted({goal % PHASES for goal in goals})
    made.parts = [[] for _ in made.ends]
    for goal, part in zip(goals, apart, strict=True):
        made.parts[made.ends.index(goal % PHASES)].append((goal // PHASES, part))
    made.unions = [_union(tree, [part for _, part in each]) for each in made.parts]
    furthest = [goal // PHASES for goal in goals]
    made.furthest = max([*furthest, *exit_array[:num_exits, 1].tolist()], default=0)
    return made


@cython.cfunc
def _parts_of_goals(
    tree: TokenTree, count: cython.Py_ssize_t, size: cython.longlong[::1], goals: list
) -> list:
    """Group the first `count` token strings in `tree.found` by their elements of `tree.goal`.

    A goal encodes the copies of the unit that a token completes, and the phase where it ends.
    `size` is the number of tokens of each goal. Return a part of a mask for each of `goals`.
    """
    made: list = []
    part: Part
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    goal: cython.Py_ssize_t
    row: cython.Py_ssize_t
    token: cython.int
    num_ids: cython.longlong = 0
    num_rows: cython.Py_ssize_t = 0
    row_array = np.full(size.shape[0], -1, np.int64)
    row_of: cython.longlong[::1] = row_array  # of goals whose part is a whole mask
    start: cython.longlong[::1] = np.empty(size.shape[0], np.int64)
    for goal in goals:
        if size[goal] >= tree.num_words:
            row_of[goal] = num_rows
            num_rows += 1
        else:
            start[goal] = num_ids
            num_ids += size[goal]
    word_array = np.zeros((num_rows, tree.num_words), np.int32)
    words: cython.int[:, ::1] = word_array
    id_array = np.empty(num_ids, np.int32)
    ids: cython.int[::1] = id_array
    for i in range(count):
        goal = tree.goal[i]
        row = row_of[goal]
        for j in range(tree.id_start[tree.found[i]], tree.id_start[tree.found[i] + 1]):
            token = tree.ids[j]
            if row >= 0:
                words[row, token >> 5] = words[row, token >> 5] | tree.bit[token & 31]
            else:
                ids[start[goal]] = token
                start[goal] += 1
    for goal in goals:
        part = Part()
        part.size = size[goal]
        part.is_wide = row_of[goal] >= 0
        if part.is_wide:
            part.words = word_array[row_of[goal]]
        else:
            part.ids = id_array[start[goal] - size[goal] : start[goal]]
        made.append(part)
    return made


@cython.cfunc
def _union(tree: TokenTree, apart: list) -> Part:
    """Return the union of several parts of a mask, which don't share tokens, as one part."""
    made: Part = Part()
    part: Part
    words: cython.int[::1]
    begin: cython.Py_ssize_t = 0
    if len(apart) == 1:
        return again(apart[0], 0)
    for part in apart:
        made.size += part.size
    made.is_wide = made.size >= tree.num_words
    if made.is_wide:
        words = np.zeros(tree.num_words, np.int32)
        for part in apart:
            add(tree, part, cython.address(words[0]) if cython.compiled else words)
        made.words = words
        return made
    ids: cython.int[::1] = np.empty(made.size, np.int32)
    for part in apart:
        ids[begin : begin + part.size] = part.ids
        begin += part.size
    made.ids = ids
    return made


@cython.final
@cython.cclass
class Unit:
    """Small automaton that counted runs repeat (unit), and where tokens lead in it.

    Args:
        tree: the vocabulary.
        rows: `rows[p, b]` is the unit's state (phase) after byte b in its state p; 256 columns,
            int16.
    """

    def __init__(self, tree: TokenTree, rows: np.ndarray) -> None:
        self.tree, self.rows = tree, rows
        self.phases = [None] * rows.shape[0]

    @cython.cfunc
    def at(self, phase: cython.int) -> UnitPhase:
        """Return where all tokens lead from state `phase` of the unit; computed once."""
        if self.phases[phase] is None:
            self.phases[phase] = _unit_phase(self.tree, self.rows, phase)
        return self.phases[phase]


@cython.cfunc
@cython.exceptval(check=False)
def add(tree: TokenTree, part: Part, out: cython.p_int) -> cython.void:
    """Allow the tokens of one part of a mask in the mask `out`."""
    i: cython.Py_ssize_t
    if part.is_wide:
        for i in range(tree.num_words):
            out[i] = out[i] | part.words[i]
        return
    for i in range(part.size):
        out[part.ids[i] >> 5] = out[part.ids[i] >> 5] | tree.bit[part.ids[i] & 31]


@cython.cfunc
def again(part: Part, steps: cython.int) -> Part:
    """Return a part of a mask with the same tokens, but another bound: `steps`.

    It bounds the tokens of a shortest completion after these tokens.
    """
    other: Part = Part()
    other.steps = steps
    other.size = part.size
    other.is_wide = part.is_wide
    other.ids = part.ids
    other.words = part.words
    return other


@cython.cfunc
@cython.exceptval(check=False)
def single(part: Part) -> cython.longlong:
    """Return the token of a part of a mask (group of tokens) that has a single token."""
    word: cython.Py_ssize_t
    bit: cython.int
    if not part.is_wide:
        return part.ids[0]
    for word in range(part.words.shape[0]):
        for bit in range(32):
            if (part.words[word] >> bit) & 1:
                return 32 * word + bit
    return -1


@cython.cfunc
@cython.exceptval(check=False)
def clear(out: cython.p_int, num_words: cython.Py_ssize_t) -> cython.void:
    """Write a mask that doesn't allow any token."""
    if cython.compiled:
        memset(out, 0, num_words * cython.sizeof(cython.int))
    else:
        out[:] = 0
