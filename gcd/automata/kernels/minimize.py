"""This module minimises partial deterministic automata, in compiled loops."""

from __future__ import annotations

import numpy as np

from gcd.support.compiled import helper, kernel
from gcd.support.kernels.grouping import by_key


@helper
def _mark(
    element: int, elements: np.ndarray, place: np.ndarray, block: np.ndarray,
    first: np.ndarray, marked: np.ndarray, touched: np.ndarray, num_touched: int,
) -> int:  # fmt: skip
    """Mark one element of a refinable partition; remembers the blocks that have marks."""
    b = block[element]
    i, j = place[element], first[b] + marked[b]
    if i < j:
        return num_touched
    elements[i] = elements[j]
    place[elements[i]] = i
    elements[j] = element
    place[element] = j
    if marked[b] == 0:
        touched[num_touched] = b
        num_touched += 1
    marked[b] += 1
    return num_touched


@helper
def _split(
    elements: np.ndarray, block: np.ndarray, first: np.ndarray, past: np.ndarray,
    marked: np.ndarray, touched: np.ndarray, num_touched: int, num_blocks: int,
) -> int:  # fmt: skip
    """Split every touched block into marked and unmarked; the smaller part gets the new number."""
    for w in range(num_touched):
        b = touched[w]
        middle = first[b] + marked[b]
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


@kernel
def minimize_blocks(
    delta: np.ndarray, initial: np.ndarray, num_initial: int
) -> tuple[np.ndarray, int]:
    """Return the coarsest refinement of a partition that an automaton respects, and its blocks.

    Valmari and Lehtinen, "Efficient minimization of DFAs with partial transition functions"
    (STACS 2008): states and edges are two partitions that refine each other, and each split
    hands the smaller half on; O(edges x log states). `initial` is the block of each state, none
    of the `num_initial` blocks empty. Every state must be accessible and lead to acceptance, and
    accepting states share no block with others.
    """
    num_states, num_classes = delta.shape
    num_edges = 0
    per_class = np.zeros(num_classes, np.int64)
    for s in range(num_states):
        for k in range(num_classes):
            if delta[s, k] >= 0:
                num_edges += 1
                per_class[k] += 1

    # States sorted by block.
    state_block = initial.astype(np.int32)
    state_first = np.zeros(num_states + 1, np.int32)
    state_past = np.zeros(num_states + 1, np.int32)
    state_marked = np.zeros(num_states + 1, np.int32)
    state_touched = np.empty(num_states + 1, np.int32)
    for s in range(num_states):
        state_past[state_block[s]] += 1
    for b in range(1, num_initial):
        state_first[b] = state_past[b - 1]
        state_past[b] += state_first[b]
    state_at = np.empty(num_states, np.int32)
    state_place = np.empty(num_states, np.int32)
    fill = state_first.copy()
    for s in range(num_states):
        b = state_block[s]
        state_at[fill[b]], state_place[s] = s, fill[b]
        fill[b] += 1
    num_blocks = np.int64(num_initial)
    if num_edges == 0:
        return state_block, num_blocks

    # Edges sorted by class, one block of the edge partition ("cord") for each class in use.
    tail = np.empty(num_edges, np.int32)
    head = np.empty(num_edges, np.int32)
    edge_block = np.empty(num_edges, np.int32)
    edge_first = np.zeros(num_edges + 1, np.int32)
    edge_past = np.zeros(num_edges + 1, np.int32)
    num_cords = np.int64(0)
    at = np.zeros(num_classes, np.int64)
    cord_of_class = np.zeros(num_classes, np.int32)
    position = 0
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
            t = delta[s, k]
            if t >= 0:
                tail[at[k]] = s
                head[at[k]] = t
                edge_block[at[k]] = cord_of_class[k]
                at[k] += 1
    edge_at = np.empty(num_edges, np.int32)
    edge_place = np.empty(num_edges, np.int32)
    for e in range(num_edges):
        edge_at[e] = edge_place[e] = e
    incoming, into = by_key(head, num_states, edge_at)
    edge_marked = np.zeros(num_edges + 1, np.int32)
    edge_touched = np.empty(num_edges + 1, np.int32)

    next_block = 1
    next_cord = 0
    while next_cord < num_cords:
        touched = np.int64(0)
        for i in range(edge_first[next_cord], edge_past[next_cord]):
            touched = _mark(
                tail[edge_at[i]], state_at, state_place, state_block,
                state_first, state_marked, state_touched, touched,
            )  # fmt: skip
        num_blocks = _split(
            state_at, state_block, state_first, state_past,
            state_marked, state_touched, touched, num_blocks,
        )  # fmt: skip
        next_cord += 1
        while next_block < num_blocks:
            touched = np.int64(0)
            for i in range(state_first[next_block], state_past[next_block]):
                s = state_at[i]
                for j in range(incoming[s], incoming[s + 1]):
                    touched = _mark(
                        into[j], edge_at, edge_place, edge_block,
                        edge_first, edge_marked, edge_touched, touched,
                    )  # fmt: skip
            num_cords = _split(
                edge_at, edge_block, edge_first, edge_past,
                edge_marked, edge_touched, touched, num_cords,
            )  # fmt: skip
            next_block += 1
    return state_block, num_blocks
