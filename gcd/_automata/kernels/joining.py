"""Subset construction over a graph whose edges are deterministic automata.

The edges of the graph are *joints* and *skips*. A joint is a copy of a part (a minimal automaton)
that leads from one node to another. A path at the source node may read a string of the part, and
then continues at the target node. A skip is an epsilon edge: it leads from node to node without
reading a byte.

Most subsets contain a single state. A byte leads from a state of a part to one other state, unless
the part can end there. So the successor of a subset with a single state is cached by this state,
without comparing subsets. Cost: O(result states x K) with K byte classes, plus the cost of subsets
of several states. These occur where parts meet.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython
import numpy as np

from gcd._automata.kernels.subsets import TOO_MANY, grow_rows

if cython.compiled:
    from cython.cimports.gcd._automata.kernels.canonical import refine_bytes
    from cython.cimports.gcd._support.kernels.mixing import mix
else:
    from gcd._automata.kernels.canonical import refine_bytes
    from gcd._support.kernels.mixing import mix

_NUM_BYTES = cython.declare(cython.int, 256)
_UNKNOWN = cython.declare(cython.int, -2)
_NOT_HASHED = cython.declare(cython.longlong, -1)  # subset looked up by its only state
# Cython would use Python objects for arithmetic with a literal of this size.
_56_BITS = cython.declare(cython.longlong, 0xFFFFFFFFFFFFFF)
_STATE = cython.declare(cython.longlong, 4)  # units to describe a state of a joint
_LONE = cython.declare(cython.longlong, 2)  # units per table entry of a subset of one state
_SET = cython.declare(cython.longlong, 4)  # units per member of a subset that is looked up
_MEMBER = cython.declare(cython.longlong, 64)  # units per member of a new subset


@cython.cfunc
@cython.exceptval(check=False)
def _list_edges(
    joint: cython.const[cython.int][::1],
    skip: cython.const[cython.int][::1],
    begins: cython.const[cython.longlong][::1],
    first_node: cython.longlong,
    start: cython.longlong[::1],
    targets: cython.int[::1],
) -> cython.void:
    """Write the states and nodes that each node leads to without reading a byte."""
    num_joints: cython.Py_ssize_t = joint.shape[0] // 2
    num_skips: cython.Py_ssize_t = skip.shape[0] // 2
    num_nodes: cython.Py_ssize_t = start.shape[0] - 1
    # Count with an offset of one; filling then moves the start of each node to its position.
    for node in range(num_nodes + 1):
        start[node] = 0
    for i in range(num_joints):
        if joint[2 * i] + 2 <= num_nodes:
            start[joint[2 * i] + 2] += 1
    for i in range(num_skips):
        if skip[2 * i] + 2 <= num_nodes:
            start[skip[2 * i] + 2] += 1
    for node in range(num_nodes):
        start[node + 1] += start[node]
    for i in range(num_joints):
        node = joint[2 * i] + 1
        targets[start[node]] = begins[i]
        start[node] += 1
    for i in range(num_skips):
        node = skip[2 * i] + 1
        if skip[2 * i + 1] >= 0:
            targets[start[node]] = first_node + skip[2 * i + 1]
        else:
            targets[start[node]] = -1 - skip[2 * i + 1]
        start[node] += 1


@cython.cfunc
def _read_pairs(pairs: Sequence[tuple[int, int]]) -> cython.int[::1]:
    """Return an array with the two numbers of each pair, one pair after the other."""
    count: cython.Py_ssize_t = len(pairs)
    numbers: cython.int[::1] = np.empty(2 * count, np.int32)
    for i in range(count):
        one, other = pairs[i]
        numbers[2 * i] = one
        numbers[2 * i + 1] = other
    return numbers


@cython.cfunc
@cython.exceptval(check=False)
def _sort(members: cython.int[::1], size: cython.longlong) -> cython.void:
    """Sort `members[:size]` by insertion with decreasing strides (Shell 1959, Knuth's strides)."""
    stride: cython.longlong = 1
    while 9 * stride < size:
        stride = 3 * stride + 1
    while stride > 0:
        for i in range(stride, size):
            value: cython.int = members[i]
            j = i - stride
            while j >= 0 and members[j] > value:
                members[j + stride] = members[j]
                j -= stride
            members[j + stride] = value
        stride //= 3


@cython.cfunc
@cython.exceptval(check=False)
def _close(
    members: cython.int[::1],
    size: cython.longlong,
    stamp: cython.uchar[::1],
    leads_to: cython.const[cython.int][::1],
    reads: cython.const[cython.uchar][::1],
    start: cython.const[cython.longlong][::1],
    targets: cython.const[cython.int][::1],
    first_node: cython.longlong,
    work: cython.longlong[::1],
) -> cython.longlong:
    """Add all states that `members[:size]` reach without reading a byte; return the new size.

    States without transitions are then removed, except for the end node. `stamp` must be zero for
    all states, and is zero again afterwards. The work is added to `work[0]`.
    """
    cython.declare(q=cython.longlong, t=cython.longlong)
    looks: cython.longlong = 0
    head: cython.longlong = 0
    kept: cython.longlong = 0
    for i in range(size):
        stamp[members[i]] = 1
    while head < size:
        q = members[head]
        head += 1
        looks += 1
        if q >= first_node:
            looks += start[q - first_node + 1] - start[q - first_node]
            for i in range(start[q - first_node], start[q - first_node + 1]):
                t = targets[i]
                if stamp[t] == 0:
                    stamp[t] = 1
                    members[size] = t
                    size += 1
        else:
            t = leads_to[q]
            if t >= 0 and stamp[t] == 0:
                stamp[t] = 1
                members[size] = t
                size += 1
    for i in range(size):
        q = members[i]
        stamp[q] = 0
        if reads[q]:
            members[kept] = q
            kept += 1
    _sort(members, kept)
    work[0] += looks
    return kept


@cython.cfunc
def _empty_table(size: cython.Py_ssize_t) -> cython.int[::1]:
    table: cython.int[::1] = np.empty(size, np.int32)
    for slot in range(size):
        table[slot] = -1
    return table


@cython.cclass
class _SubsetStore:
    """Concatenated subsets of states, and a hash table to look them up.

    A caller that finds a subset in another way, such as by its only state, may add it without the
    hash table. It then writes the members to `pool`, the next entry of `starts`, and the hash
    `_NOT_HASHED`, and checks that the arrays are large enough.
    """

    pool: cython.int[::1]  # the members of all subsets, one subset after the other
    starts: cython.longlong[::1]  # where each subset starts in `pool`, and the end of the last one
    hashes: cython.longlong[::1]
    table: cython.int[::1]

    def __init__(self, size: cython.Py_ssize_t) -> None:
        self.pool = np.empty(2 * size + 16, np.int32)
        self.starts = np.empty(size + 17, np.int64)
        self.starts[0] = 0
        self.hashes = np.empty(size + 16, np.int64)
        self.table = _empty_table(1024)

    @cython.cfunc
    def number(
        self, count: cython.longlong, members: cython.int[::1], size: cython.longlong
    ) -> cython.longlong:
        """Return the number of the subset `members[:size]`, and add it if it is new.

        A new subset gets the number `count`. Adding it may reallocate the arrays, so callers have
        to read the attributes again.
        """
        cython.declare(i=cython.Py_ssize_t, other=cython.longlong, member=cython.longlong)
        last: cython.longlong = self.table.shape[0] - 1
        key: cython.longlong = size
        for i in range(size):
            member = int(members[i])
            key = mix((key & _56_BITS) * 31 + member + 1)
        slot = key & last
        while self.table[slot] >= 0:
            other = self.table[slot]
            start = self.starts[other]
            if self.hashes[other] == key and self.starts[other + 1] - start == size:
                same: cython.bint = True
                for i in range(size):
                    if self.pool[start + i] != members[i]:
                        same = False
                        break
                if same:
                    return other
            slot = (slot + 1) & last
        if count == self.hashes.shape[0]:
            self.starts = np.resize(np.asarray(self.starts), 2 * count + 1)
            self.hashes = np.resize(np.asarray(self.hashes), 2 * count)
        start = self.starts[count]
        if start + size > self.pool.shape[0]:
            longer: cython.longlong = max(start + size, 2 * self.pool.shape[0])
            self.pool = np.resize(np.asarray(self.pool), longer)
        for i in range(size):
            self.pool[start + i] = members[i]
        self.starts[count + 1] = start + size
        self.hashes[count] = key
        self.table[slot] = count
        if 2 * (count + 1) > last + 1:
            last = 4 * (last + 1) - 1
            self.table = _empty_table(last + 1)
            for i in range(count + 1):
                if self.hashes[i] == _NOT_HASHED:
                    continue
                slot = self.hashes[i] & last
                while self.table[slot] >= 0:
                    slot = (slot + 1) & last
                self.table[slot] = i
        return count


def join(
    deltas: list[np.ndarray],
    accepting: list[np.ndarray],
    maps: list[np.ndarray],
    part_of: list[int],
    joints: Sequence[tuple[int, int]],
    skips: Sequence[tuple[int, int]],
    num_nodes: int,
    ends: tuple[int, int, int],
    limits: tuple[int, int, int],
    leaves: Sequence[tuple[int, int]] = (),
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]:
    """Return the automaton of the strings along all paths of a graph between two nodes.

    `deltas`, `accepting` and `maps` (the class of each byte) are those of each distinct part, and
    `part_of` has the part of each joint. Joints and skips are pairs of nodes; the target -1 - q of
    a skip is the state q of the first joint. `ends` are the nodes where strings begin and end, and
    a joint or -1. The part of this joint accepts all strings from its source node to the end, so a
    subset with its initial state is reduced to that state and the end node. `limits` are most
    states, table entries, and units of work. `leaves` are pairs (state of the first joint, node)
    connected by an epsilon edge; other epsilon edges of these states are ignored. The result is
    (delta, accepting, class of each byte, number of states, units of work), with states in
    breadth-first order.
    """
    max_states: cython.longlong = limits[0]
    max_cells: cython.longlong = limits[1]
    max_work: cython.longlong = limits[2]
    cython.declare(i=cython.Py_ssize_t, k=cython.Py_ssize_t, q=cython.longlong, s=cython.longlong)
    cython.declare(t=cython.longlong, p=cython.longlong, size=cython.longlong)
    cython.declare(width=cython.longlong, base=cython.longlong, lone=cython.longlong)
    cython.declare(simple=cython.bint)
    num_parts: cython.Py_ssize_t = len(deltas)
    num_joints: cython.Py_ssize_t = len(part_of)
    node_count: cython.Py_ssize_t = num_nodes
    after_of: cython.const[cython.int][::1] = np.concatenate(deltas, axis=None)
    accepts: cython.const[cython.uchar][::1] = np.concatenate(accepting).view(np.uint8)
    given: cython.const[cython.uchar][:, ::1] = np.concatenate(maps).reshape(-1, _NUM_BYTES)
    class_array = np.empty(_NUM_BYTES, np.uint8)
    first_byte: cython.int[::1] = np.empty(_NUM_BYTES, np.int32)
    num_classes: cython.Py_ssize_t = refine_bytes(given, class_array, first_byte)
    max_rows: cython.longlong = min(max_states, max_cells // num_classes)
    joint: cython.int[::1] = _read_pairs(joints)
    skip: cython.int[::1] = _read_pairs(skips)

    # Index at which each part starts in the concatenated arrays, and each joint among all states.
    longs: cython.longlong[::1] = np.empty(2 * num_parts + num_joints + node_count + 5, np.int64)
    cell_of_part: cython.longlong[::1] = longs[: num_parts + 1]
    longs = longs[num_parts + 1 :]
    state_of_part: cython.longlong[::1] = longs[: num_parts + 1]
    longs = longs[num_parts + 1 :]
    begins: cython.longlong[::1] = longs[: num_joints + 1]
    longs = longs[num_joints + 1 :]
    start: cython.longlong[::1] = longs[: node_count + 1]
    spent: cython.longlong[::1] = longs[node_count + 1 :]
    cell_of_part[0] = 0
    state_of_part[0] = 0
    for i in range(num_parts):
        size, width = deltas[i].shape
        cell_of_part[i + 1] = cell_of_part[i] + size * width
        state_of_part[i + 1] = state_of_part[i] + size
    begins[0] = 0
    for i in range(num_joints):
        p = part_of[i]
        begins[i + 1] = begins[i] + state_of_part[p + 1] - state_of_part[p]
    first_node: cython.longlong = begins[num_joints]
    total: cython.longlong = first_node + node_count

    # The states of all joints in a row, followed by the nodes.
    cell: cython.longlong[::1] = np.empty(total, np.int64)  # start of a state's row
    ints: cython.int[::1] = np.empty(
        5 * total + num_parts * num_classes + (joint.shape[0] + skip.shape[0]) // 2, np.int32
    )
    shift: cython.int[::1] = ints[:total]  # first state of its joint
    part: cython.int[::1] = ints[total : 2 * total]  # index of its part's columns
    leads_to: cython.int[::1] = ints[2 * total : 3 * total]
    after: cython.int[::1] = ints[3 * total : 4 * total]  # subset after a single state
    members: cython.int[::1] = ints[4 * total : 5 * total]
    columns: cython.int[::1] = ints[5 * total : 5 * total + num_parts * num_classes]
    targets: cython.int[::1] = ints[5 * total + num_parts * num_classes :]
    flags: cython.uchar[::1] = np.empty(2 * total, np.uint8)
    # States that read no byte are removed from closed subsets.
    reads: cython.uchar[::1] = flags[:total]
    stamp: cython.uchar[::1] = flags[total:]
    for i in range(num_parts):
        for k in range(num_classes):
            columns[i * num_classes + k] = given[i, first_byte[k]]
    for q in range(total):
        after[q] = _UNKNOWN
        leads_to[q] = -1
        reads[q] = 0
        stamp[q] = 0
    for q in range(first_node, total):
        cell[q] = -1
        shift[q] = 0
        part[q] = 0
    end: cython.longlong = first_node + ends[1]
    reads[end] = 1
    i = ends[2]
    everything: cython.longlong = begins[i] if i >= 0 else -1
    work: cython.longlong = _STATE * total
    for i in range(num_joints):
        p = part_of[i]
        size = state_of_part[p + 1] - state_of_part[p]
        width = (cell_of_part[p + 1] - cell_of_part[p]) // size
        work += size * width
        for s in range(size):
            q = begins[i] + s
            cell[q] = cell_of_part[p] + s * width
            shift[q] = begins[i]
            part[q] = p * num_classes
            if accepts[state_of_part[p] + s]:
                leads_to[q] = first_node + joint[2 * i + 1]
            for k in range(width):
                if after_of[cell[q] + k] >= 0:
                    reads[q] = 1
                    break
    leave: cython.int[::1] = _read_pairs(leaves)
    for i in range(leave.shape[0] // 2):
        leads_to[leave[2 * i]] = first_node + leave[2 * i + 1]
    _list_edges(joint, skip, begins, first_node, start, targets)

    members[0] = first_node + ends[0]
    size = _close(members, 1, stamp, leads_to, reads, start, targets, first_node, spent)
    store: _SubsetStore = _SubsetStore(total)
    store.number(0, members, size)
    pool: cython.int[::1] = store.pool
    starts: cython.longlong[::1] = store.starts
    hashes: cython.longlong[::1] = store.hashes
    num_rows: cython.longlong = max(1, min(total, max_rows))
    delta_array = np.empty((num_rows, num_classes), np.int32)
    delta: cython.int[:, ::1] = delta_array
    count: cython.longlong = 1
    current: cython.longlong = 0
    k = 0
    while current < count and work <= max_work:
        if k == 0:
            for i in range(num_classes):
                delta[current, i] = -1
        # Fill the row while every successor is a single state that leads to no node, and there is
        # room for it. At another successor, stop with its states in `members[:size]`.
        begin = starts[current]
        past = starts[current + 1]
        most = min(max_rows, num_rows, hashes.shape[0])
        stopped = False
        size = 0
        if past - begin == 1 and cell[pool[begin]] >= 0:
            q = pool[begin]
            first = cell[q]
            base = shift[q]
            p = part[q]
            while k < num_classes:
                t = after_of[first + columns[p + k]]
                if t >= 0:
                    t += base
                    if after[t] == _UNKNOWN:
                        if leads_to[t] >= 0 or count >= most or starts[count] == pool.shape[0]:
                            members[0] = t
                            size = 1
                            stopped = True
                            break
                        pool[starts[count]] = t
                        starts[count + 1] = starts[count] + 1
                        hashes[count] = _NOT_HASHED
                        after[t] = count
                        count += 1
                    delta[current, k] = after[t]
                k += 1
        else:
            while k < num_classes:
                size = 0
                for i in range(begin, past):
                    q = pool[i]
                    t = after_of[cell[q] + columns[part[q] + k]] if cell[q] >= 0 else -1
                    if t >= 0 and stamp[t + shift[q]] == 0:
                        stamp[t + shift[q]] = 1
                        members[size] = t + shift[q]
                        size += 1
                for i in range(size):
                    stamp[members[i]] = 0
                if size == 1:
                    delta[current, k] = after[members[0]]
                work += past - begin
                if size > 1 or delta[current, k] == _UNKNOWN:
                    stopped = True
                    break
                k += 1
        if not stopped:
            current += 1
            k = 0
            work += _LONE * num_classes
            continue

        lone = members[0] if size == 1 else -1
        spent[0] = 0
        size = _close(members, size, stamp, leads_to, reads, start, targets, first_node, spent)
        work += _SET * (size + spent[0])
        for i in range(size):
            if members[i] == everything:
                members[0] = everything
                members[1] = end
                size = 2
                break
        simple = size == 1 and leads_to[members[0]] < 0
        target = after[members[0]] if simple else _UNKNOWN
        if target == _UNKNOWN and size > 0:
            target = store.number(count, members, size)
            if target == count:
                pool, starts, hashes = store.pool, store.starts, store.hashes
                if count >= max_rows:
                    if count < max_states:
                        work = max_work + 1
                    return delta_array[:0], np.zeros(0, np.bool_), class_array, TOO_MANY, int(work)
                if count + 1 > num_rows:
                    delta_array = grow_rows(delta_array, count + 1)
                    delta = delta_array
                    num_rows = delta_array.shape[0]
                count += 1
                work += _MEMBER * size
        if simple:
            after[members[0]] = target
        if lone >= 0:
            after[lone] = target if size > 0 else -1
        delta[current, k] = target if size > 0 else -1
        k += 1
    if work > max_work:
        return delta_array[:0], np.zeros(0, np.bool_), class_array, TOO_MANY, int(work)
    accepts_array = np.zeros(count, np.bool_)
    ending: cython.uchar[::1] = accepts_array.view(np.uint8)
    for s in range(count):
        # The end node has the highest number in a subset, because other nodes are never members.
        i = starts[s + 1] - 1
        ending[s] = i >= starts[s] and pool[i] == end
    return delta_array[:count], accepts_array, class_array, count, int(work)
