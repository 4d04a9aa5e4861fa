"""Minimization of deterministic automata, possibly with missing transitions, by refinement."""

from __future__ import annotations

import cython
import numpy as np

from gcd._support.kernels.grouping import by_key


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _mark(
    element: cython.int,
    elements: cython.int[::1],
    index_of: cython.int[::1],
    block: cython.int[::1],
    first: cython.int[::1],
    marked: cython.int[::1],
    touched: cython.int[::1],
    num_touched: cython.int,
) -> cython.int:
    """Mark an element of a partition, and record its block if the block had no marks.

    The marked elements of a block come first in `elements`. Return the new number of blocks with
    marks, which are listed in `touched`.
    """
    b: cython.int = block[element]
    i: cython.int = index_of[element]
    j: cython.int = first[b] + marked[b]
    if i < j:
        return num_touched
    elements[i] = elements[j]
    index_of[elements[i]] = i
    elements[j] = element
    index_of[element] = j
    if marked[b] == 0:
        touched[num_touched] = b
        num_touched += 1
    marked[b] += 1
    return num_touched


@cython.cfunc
@cython.exceptval(check=False)
def _split(
    elements: cython.int[::1],
    block: cython.int[::1],
    first: cython.int[::1],
    past: cython.int[::1],
    marked: cython.int[::1],
    touched: cython.int[::1],
    num_touched: cython.int,
    num_blocks: cython.int,
) -> cython.int:
    """Split every block that has marks into marked and unmarked elements.

    The smaller part gets a new block number. Return the new number of blocks.
    """
    w: cython.int
    i: cython.int
    for w in range(num_touched):
        b: cython.int = touched[w]
        middle: cython.int = first[b] + marked[b]
        if middle == past[b]:
            marked[b] = 0
            continue
        if marked[b] <= past[b] - middle:
            first[num_blocks] = first[b]
            past[num_blocks] = middle
            first[b] = middle
        else:
            past[num_blocks] = past[b]
            first[num_blocks] = middle
            past[b] = middle
        for i in range(first[num_blocks], past[num_blocks]):
            block[elements[i]] = num_blocks
        marked[b] = 0
        marked[num_blocks] = 0
        num_blocks += 1
    return num_blocks


def minimize_blocks(
    delta: np.ndarray, initial: np.ndarray, num_initial: int
) -> tuple[np.ndarray, int]:
    """Return the coarsest refinement of a partition that an automaton respects, and its size.

    An automaton respects a partition if each byte class leads from all states of a block to the
    same block, or has no transition from any of them. The algorithm is from Valmari and Lehtinen,
    "Efficient minimization of DFAs with partial transition functions" (STACS 2008). The states and
    the edges form two partitions that refine each other. After a split, only the smaller half is
    used for further splits. Cost: O(edges x log states).

    Args:
        delta: next state for (state, byte class), -1 for none. Every state must be reachable and
            lead to acceptance.
        initial: the block of each state. A block must not contain both accepting states and others.
        num_initial: number of blocks; none of them may be empty.
    """
    after: cython.const[cython.int][:, ::1] = np.ascontiguousarray(delta, np.int32)
    num_states: cython.Py_ssize_t = after.shape[0]
    num_classes: cython.Py_ssize_t = after.shape[1]
    s: cython.Py_ssize_t
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    b: cython.int
    t: cython.int
    num_edges: cython.Py_ssize_t = 0
    per_class: cython.longlong[::1] = np.zeros(num_classes, np.int64)
    for s in range(num_states):
        for k in range(num_classes):
            if after[s, k] >= 0:
                num_edges += 1
                per_class[k] += 1

    # States sorted by block.
    blocks = initial.astype(np.int32)
    state_block: cython.int[::1] = blocks
    state_first: cython.int[::1] = np.zeros(num_states + 1, np.int32)
    state_past: cython.int[::1] = np.zeros(num_states + 1, np.int32)
    state_marked: cython.int[::1] = np.zeros(num_states + 1, np.int32)
    state_touched: cython.int[::1] = np.empty(num_states + 1, np.int32)
    for s in range(num_states):
        state_past[state_block[s]] += 1
    num_blocks: cython.int = num_initial
    for b in range(1, num_blocks):
        state_first[b] = state_past[b - 1]
        state_past[b] += state_first[b]
    state_at: cython.int[::1] = np.empty(num_states, np.int32)
    state_position: cython.int[::1] = np.empty(num_states, np.int32)
    fill: cython.int[::1] = state_first.copy()
    for s in range(num_states):
        b = state_block[s]
        state_at[fill[b]] = s
        state_position[s] = fill[b]
        fill[b] += 1
    if num_edges == 0:
        return blocks, num_blocks

    # Sort the edges by byte class. The blocks of the edge partition are called cords; at first,
    # there is one cord for each class in use.
    tail: cython.int[::1] = np.empty(num_edges, np.int32)
    head_array = np.empty(num_edges, np.int32)
    head: cython.int[::1] = head_array
    edge_block: cython.int[::1] = np.empty(num_edges, np.int32)
    edge_first: cython.int[::1] = np.zeros(num_edges + 1, np.int32)
    edge_past: cython.int[::1] = np.zeros(num_edges + 1, np.int32)
    num_cords: cython.int = 0
    at: cython.longlong[::1] = np.zeros(num_classes, np.int64)
    cord_of_class: cython.int[::1] = np.zeros(num_classes, np.int32)
    position: cython.longlong = 0
    for k in range(num_classes):
        at[k] = position
        if per_class[k] > 0:
            edge_first[num_cords] = position
            position += per_class[k]
            edge_past[num_cords] = position
            cord_of_class[k] = num_cords
            num_cords += 1
    for s in range(num_states):
        for k in range(num_classes):
            t = after[s, k]
            if t >= 0:
                i = at[k]
                tail[i] = s
                head[i] = t
                edge_block[i] = cord_of_class[k]
                at[k] = i + 1
    edges = np.arange(num_edges, dtype=np.int32)
    incoming_array, into_array = by_key(head_array, num_states, edges)
    incoming: cython.longlong[::1] = incoming_array
    into: cython.int[::1] = into_array
    edge_at: cython.int[::1] = edges
    edge_position: cython.int[::1] = edges.copy()
    edge_marked: cython.int[::1] = np.zeros(num_edges + 1, np.int32)
    edge_touched: cython.int[::1] = np.empty(num_edges + 1, np.int32)

    touched: cython.int
    next_block: cython.int = 1
    next_cord: cython.int = 0
    while next_cord < num_cords:
        touched = 0
        for i in range(edge_first[next_cord], edge_past[next_cord]):
            touched = _mark(
                tail[edge_at[i]], state_at, state_position, state_block,
                state_first, state_marked, state_touched, touched,
            )  # fmt: skip
        num_blocks = _split(
            state_at, state_block, state_first, state_past,
            state_marked, state_touched, touched, num_blocks,
        )  # fmt: skip
        next_cord += 1
        while next_block < num_blocks:
            touched = 0
            for i in range(state_first[next_block], state_past[next_block]):
                s = state_at[i]
                for j in range(incoming[s], incoming[s + 1]):
                    touched = _mark(
                        into[j], edge_at, edge_position, edge_block,
                        edge_first, edge_marked, edge_touched, touched,
                    )  # fmt: skip
            num_cords = _split(
                edge_at, edge_block, edge_first, edge_past,
                edge_marked, edge_touched, touched, num_cords,
            )  # fmt: skip
            next_block += 1
    return blocks, num_blocks
