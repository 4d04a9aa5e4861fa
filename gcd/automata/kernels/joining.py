"""This module has the subset construction over deterministic automata that are joined by nodes.

The parts are minimal automata, copies of which (*joints*) lead from one node to another: whoever
stands at a joint's source may begin its part, whoever has read a string of the part may go on at
the target. `skips` lead from node to node without reading anything.

Nearly all of the result is a part's own table. From one state of one part a byte leads to one
state, and where that leads to no node, the subset is that state alone; so the subset after a lone
state is remembered by the state, and found again without a look at what is in it. Cost: O(result
states x K), and what subsets of several states cost in `gcd.automata.kernels.subsets`, where parts
meet.
"""

from __future__ import annotations

import numpy as np

from gcd.automata.kernels.canonical import joint_classes
from gcd.automata.kernels.subsets import (
    MEMBER,
    NOT_HASHED,
    SET,
    TOO_MANY,
    grown_rows,
    new_store,
    number_subset,
    sort_members,
)
from gcd.support.compiled import helper, kernel

_UNKNOWN = -2
STATE = 4  # units for a state of the parts, for the arrays that describe it
LONE = 2  # units for an entry of the row of a lone state


@helper
def _edges_of_nodes(
    joints: np.ndarray, begins: np.ndarray, skips: np.ndarray, num_nodes: int, first_node: int
) -> tuple[np.ndarray, np.ndarray]:
    """What each node leads to without reading: first states of parts, and nodes."""
    start = np.zeros(num_nodes + 1, np.int64)
    for i in range(joints.shape[0]):
        start[joints[i, 0] + 1] += 1
    for i in range(skips.shape[0]):
        start[skips[i, 0] + 1] += 1
    for node in range(num_nodes):
        start[node + 1] += start[node]
    fill = start[:-1].copy()
    targets = np.empty(start[num_nodes], np.int32)
    for i in range(joints.shape[0]):
        targets[fill[joints[i, 0]]] = begins[i]
        fill[joints[i, 0]] += 1
    for i in range(skips.shape[0]):
        targets[fill[skips[i, 0]]] = first_node + skips[i, 1]
        fill[skips[i, 0]] += 1
    return start, targets


@helper
def _close(
    members: np.ndarray,
    size: int,
    stamp: np.ndarray,
    leads_to: np.ndarray,
    reads: np.ndarray,
    nodes: tuple[np.ndarray, np.ndarray],
    first_node: int,
) -> tuple[int, int]:
    """Follow what reads nothing from `members[:size]`, keep states that matter: (new size, work).

    `stamp` is zero for all states, and left so.
    """
    start, targets = nodes
    work = np.int64(0)
    for i in range(size):
        stamp[members[i]] = 1
    head = 0
    while head < size:
        q = members[head]
        head += 1
        work += 1
        if q >= first_node:
            work += start[q - first_node + 1] - start[q - first_node]
            for i in range(start[q - first_node], start[q - first_node + 1]):
                t = targets[i]
                if stamp[t] == 0:
                    stamp[t] = 1
                    members[size] = t
                    size += 1
        elif leads_to[q] >= 0 and stamp[leads_to[q]] == 0:
            stamp[leads_to[q]] = 1
            members[size] = leads_to[q]
            size += 1
    kept = np.int64(0)
    for i in range(size):
        stamp[members[i]] = 0
        if reads[members[i]]:
            members[kept] = members[i]
            kept += 1
    sort_members(members, kept)
    return kept, work


@helper
def _read_on(
    current: int,
    k: int,
    count: int,
    work: int,
    max_rows: int,
    max_work: int,
    delta: np.ndarray,
    deltas: np.ndarray,
    columns: np.ndarray,
    states: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    after: np.ndarray,
    store: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    members: np.ndarray,
    stamp: np.ndarray,
) -> tuple[int, int, int, int, int]:
    """Write rows of subsets from (current, k) on, as far as what follows is simple.

    Simple is a lone state that leads to no node, and for which there is room. Returns the state
    and the class where something else follows, how many states, in `members`, that is, none at
    the end and past the limit on work, how many subsets there are now, and the work.
    """
    cell, shift, part, leads_to = states
    pool, starts, hashes, _ = store
    most = min(max_rows, delta.shape[0], hashes.size)
    num_classes = delta.shape[1]
    while current < count:
        begin, end = starts[current], starts[current + 1]
        if work > max_work:
            break
        if end - begin == 1 and cell[pool[begin]] >= 0:
            q = pool[begin]
            first, base, column, row = cell[q], shift[q], columns[part[q]], delta[current]
            while k < num_classes:
                t = deltas[first + column[k]]
                if t >= 0:
                    t += base
                    if after[t] == _UNKNOWN:
                        if leads_to[t] >= 0 or count >= most or starts[count] == pool.size:
                            members[0] = t
                            return current, k, 1, count, work
                        pool[starts[count]] = t
                        starts[count + 1] = starts[count] + 1
                        hashes[count] = NOT_HASHED
                        after[t] = count
                        count += 1
                    row[k] = after[t]
                k += 1
        while k < num_classes:
            size = 0
            for i in range(begin, end):
                q = pool[i]
                t = deltas[cell[q] + columns[part[q], k]] if cell[q] >= 0 else -1
                if t >= 0 and stamp[t + shift[q]] == 0:
                    stamp[t + shift[q]] = 1
                    members[size] = t + shift[q]
                    size += 1
            for i in range(size):
                stamp[members[i]] = 0
            if size == 1:
                delta[current, k] = after[members[0]]
            work += end - begin
            if size > 1 or delta[current, k] == _UNKNOWN:
                return current, k, size, count, work
            k += 1
        current, k = current + 1, 0
        work += LONE * num_classes
    return current, k, 0, count, work


@kernel
def join(
    deltas: np.ndarray,
    accepting: np.ndarray,
    maps: np.ndarray,
    first_cell: np.ndarray,
    first_state: np.ndarray,
    part_of: np.ndarray,
    joints: np.ndarray,
    skips: np.ndarray,
    num_nodes: int,
    ends: tuple[int, int, int],
    limits: tuple[int, int, int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]:
    """Return the automaton of the strings that paths from one node to another spell.

    Args:
        deltas, accepting: the distinct parts' arrays, one after the other.
        maps: their classes of bytes.
        first_cell, first_state: where each part begins in them, and the end.
        part_of: the part of each joint.
        joints, skips: their (source, target) nodes.
        num_nodes: how many nodes there are.
        ends: the nodes where strings begin and end; and a joint whose part reads all strings that
            any way to the end spells from where it may begin, -1 if none is known. Subsets in
            which it may begin are cut down to it, the end is then among them.
        limits: most states and entries of the result, and units of work.

    Returns:
        (delta, accepting, class of each byte, number of states, units of work), states in
        breadth-first order.
    """
    max_states, max_cells, max_work = limits
    class_of_byte, first_byte = joint_classes(maps)
    num_classes = first_byte.size
    max_rows = min(max_states, max_cells // num_classes)
    columns = np.empty((maps.shape[0], num_classes), np.int32)
    for p in range(maps.shape[0]):
        for k in range(num_classes):
            columns[p, k] = maps[p, first_byte[k]]

    # States of all joints in a row, and the nodes behind them.
    num_joints = part_of.size
    begins = np.zeros(num_joints + 1, np.int64)
    for i in range(num_joints):
        begins[i + 1] = begins[i] + first_state[part_of[i] + 1] - first_state[part_of[i]]
    first_node = begins[num_joints]
    total = first_node + num_nodes
    cell = np.full(total, -1, np.int64)  # where a state's row begins
    shift = np.zeros(total, np.int32)  # where its joint begins
    part = np.zeros(total, np.int32)
    leads_to = np.full(total, -1, np.int32)
    reads = np.zeros(total, np.bool_)  # what does not says nothing once closed over
    end = first_node + ends[1]
    reads[end] = True
    everything = begins[ends[2]] if ends[2] >= 0 else np.int64(-1)
    work = np.int64(STATE * total)
    for i in range(num_joints):
        p = part_of[i]
        size = first_state[p + 1] - first_state[p]
        width = (first_cell[p + 1] - first_cell[p]) // size
        work += size * width
        for s in range(size):
            q = begins[i] + s
            cell[q], shift[q], part[q] = first_cell[p] + s * width, begins[i], p
            if accepting[first_state[p] + s]:
                leads_to[q] = first_node + joints[i, 1]
            for k in range(width):
                if deltas[cell[q] + k] >= 0:
                    reads[q] = True
                    break
    nodes = _edges_of_nodes(joints, begins, skips, num_nodes, first_node)

    after = np.full(total, _UNKNOWN, np.int32)  # the subset that a lone state comes to
    stamp = np.zeros(total, np.int8)
    members = np.empty(total, np.int32)
    members[0] = first_node + ends[0]
    size, looks = _close(members, np.int64(1), stamp, leads_to, reads, nodes, first_node)
    store = new_store(total)
    store, _ = number_subset(store, np.int64(0), members, size)
    delta = np.full((max(1, min(total, max_rows)), num_classes), -1, np.int32)
    # Plain constants would be types of their own, and each function be compiled twice.
    count, current, k = np.int64(1), np.int64(0), np.int64(0)
    while current < count:
        current, k, size, count, work = _read_on(
            current, k, count, work, max_rows, max_work, delta, deltas, columns,
            (cell, shift, part, leads_to), after, store, members, stamp,
        )  # fmt: skip
        if size == 0:
            break
        lone = members[0] if size == 1 else -1
        size, looks = _close(members, size, stamp, leads_to, reads, nodes, first_node)
        work += SET * (size + looks)
        for i in range(size):
            if members[i] == everything:
                members[0], members[1], size = everything, end, 2
                break
        simple = size == 1 and leads_to[members[0]] < 0
        target = after[members[0]] if simple else _UNKNOWN
        if target == _UNKNOWN and size > 0:
            store, target = number_subset(store, count, members, size)
            if target == count:
                if count >= max_rows:
                    if count < max_states:
                        work = max_work + 1
                    return delta[:0], reads[:0], class_of_byte, TOO_MANY, work
                delta = grown_rows(delta, count + 1)
                count += 1
                work += MEMBER * size
        if simple:
            after[members[0]] = target
        if lone >= 0:
            after[lone] = target if size > 0 else -1
        delta[current, k] = target if size > 0 else -1
        k += 1
    if work > max_work:
        return delta[:0], reads[:0], class_of_byte, TOO_MANY, work
    accepts = np.zeros(count, np.bool_)
    for s in range(count):
        # The end has the highest number of what can be in a subset, but other nodes cannot.
        last = store[1][s + 1] - 1
        accepts[s] = last >= store[1][s] and store[0][last] == end
    return delta[:count], accepts, class_of_byte, count, work
