"""Refinement of a partition of states until all states of a block have equal successor blocks.

The given blocks are unions of classes of equivalent states. Each edge has a weight: the sum of
random numbers, one for each byte class that leads along the edge. Each state has a sum: over its
edges, the weight of the edge times a random number for the successor's block. A block whose states
have different sums is split. The largest part keeps the block's number, so a state changes its
block O(log S) times. Each time, the sums of its predecessors are corrected. Cost: O(E log S), with
S states and E distinct edges.

In the end, all states of a block have equal sums. Their transitions then lead to the same blocks,
unless different transitions have equal sums by chance. The caller has to check for this.
"""

from __future__ import annotations

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.gcd._support.kernels.mixing import mix
else:
    from gcd._support.kernels.mixing import mix

_63_BITS = cython.declare(cython.ulonglong, 0x7FFFFFFFFFFFFFFF)


@cython.cfunc
@cython.exceptval(check=False)
def _value(block: cython.longlong, salt: cython.longlong) -> cython.longlong:
    """Return the random number that stands for a block in the states' sums."""
    return mix(salt + int(block) + 1)


@cython.cfunc
@cython.exceptval(check=False)
def _add(total: cython.longlong, factor: cython.longlong, term: cython.longlong) -> cython.longlong:
    """Return `total + factor * term` modulo 2^63."""
    one: cython.ulonglong = int(total)
    other: cython.ulonglong = int(factor)
    third: cython.ulonglong = int(term)
    return cython.cast(cython.longlong, (one + other * third) & _63_BITS)


@cython.cfunc
def refine(
    start: cython.const[cython.longlong][::1],
    targets: cython.const[cython.int][::1],
    sums: cython.const[cython.longlong][::1],
    into: cython.const[cython.longlong][::1],
    block: cython.int[::1],
    num_blocks: cython.Py_ssize_t,
    salt: cython.longlong,
) -> cython.Py_ssize_t:
    """Split blocks of states whose sums differ, until none is left; return the number of blocks.

    The sum of a state depends on its edges and on the blocks of its successors, as the module
    docstring defines.

    Args:
        start, targets: the distinct edges of each state, as `gcd._automata.kernels.graph` stores
            them.
        sums: the weight of each edge, modulo 2^63.
        into: for each state, the number of edges that lead into the states before it.
        block: the block of each state; overwritten with the result.
        num_blocks: number of blocks at the start.
        salt: selects the random numbers of the blocks.
    """
    num_states: cython.Py_ssize_t = block.shape[0]
    num_edges: cython.Py_ssize_t = targets.shape[0]
    size: cython.Py_ssize_t = 16
    while size < 2 * num_states:
        size *= 2
    last: cython.longlong = size - 1
    ints: cython.int[::1] = np.empty(10 * num_states + 1 + num_edges + size, np.int32)
    order: cython.int[::1] = ints[:num_states]  # the states, sorted by block
    position: cython.int[::1] = ints[
        num_states : 2 * num_states
    ]  # position of each state in `order`
    begin: cython.int[::1] = ints[2 * num_states : 3 * num_states]  # start of each block in `order`
    past: cython.int[::1] = ints[3 * num_states : 4 * num_states]  # end of each block in `order`
    # Number of states in each block whose sums may have changed; they come first in the block.
    changed: cython.int[::1] = ints[4 * num_states : 5 * num_states]
    pending: cython.int[::1] = ints[5 * num_states : 6 * num_states]  # blocks with such states
    copy: cython.int[::1] = ints[6 * num_states : 7 * num_states]
    part: cython.int[::1] = ints[7 * num_states : 8 * num_states]
    # For each part of the current block: its slot in the table (later its position in `order`), and
    # its size.
    slots: cython.int[::1] = ints[8 * num_states : 9 * num_states]
    sizes: cython.int[::1] = ints[9 * num_states : 10 * num_states + 1]
    sources: cython.int[::1] = ints[10 * num_states + 1 : 10 * num_states + 1 + num_edges]
    table: cython.int[::1] = ints[10 * num_states + 1 + num_edges :]
    longs: cython.longlong[::1] = np.empty(3 * num_states + num_edges, np.int64)
    total: cython.longlong[::1] = longs[:num_states]
    keys: cython.longlong[::1] = longs[num_states : 2 * num_states]
    fill: cython.longlong[::1] = longs[2 * num_states : 3 * num_states]
    factor: cython.longlong[::1] = longs[3 * num_states :]
    s: cython.Py_ssize_t
    t: cython.Py_ssize_t
    b: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    p: cython.Py_ssize_t
    g: cython.Py_ssize_t
    slot: cython.longlong
    key: cython.longlong
    more: cython.longlong

    for i in range(size):
        table[i] = -1
    for s in range(num_states):
        fill[s] = into[s]
    for s in range(num_states):
        key = 0
        for i in range(start[s], start[s + 1]):
            t = targets[i]
            sources[fill[t]] = s
            factor[fill[t]] = sums[i]
            fill[t] += 1
            key = _add(key, sums[i], _value(block[t], salt))
        total[s] = key
    for b in range(num_blocks):
        past[b] = 0
    for s in range(num_states):
        past[block[s]] += 1
    i = 0
    for b in range(num_blocks):
        begin[b] = i
        i += past[b]
        changed[b] = past[b]
        past[b] = begin[b]
        pending[b] = b
    for s in range(num_states):
        b = block[s]
        order[past[b]] = s
        position[s] = past[b]
        past[b] += 1

    num_pending: cython.Py_ssize_t = num_blocks
    num_parts: cython.Py_ssize_t
    head: cython.Py_ssize_t
    tail: cython.Py_ssize_t
    end: cython.Py_ssize_t
    old: cython.Py_ssize_t
    largest: cython.Py_ssize_t
    rest: cython.Py_ssize_t
    first_new: cython.Py_ssize_t
    while num_pending > 0:
        num_pending -= 1
        old = pending[num_pending]
        head = begin[old]
        end = past[old]
        tail = head + changed[old]
        rest = 1 if tail < end else 0  # 1: part 0 contains the states whose sums have not changed
        changed[old] = 0
        num_parts = rest
        if rest:
            keys[0] = total[order[tail]]
            slot = keys[0] & last
            table[slot] = 0
            slots[0] = slot
            sizes[0] = end - tail
        for i in range(head, tail):
            s = order[i]
            key = total[s]
            slot = key & last
            while table[slot] >= 0 and keys[table[slot]] != key:
                slot = (slot + 1) & last
            if table[slot] < 0:
                table[slot] = num_parts
                keys[num_parts] = key
                slots[num_parts] = slot
                sizes[num_parts] = 0
                num_parts += 1
            g = table[slot]
            sizes[g] += 1
            part[i - head] = g
        for g in range(num_parts):
            table[slots[g]] = -1
        if num_parts == 1:
            continue
        # Part 0 comes last, because its states are already at the end of the block.
        i = head
        largest = 0
        for g in range(1, num_parts):
            slots[g] = i
            i += sizes[g]
            if sizes[g] > sizes[largest]:
                largest = g
        slots[0] = i
        for i in range(head, tail):
            copy[i - head] = order[i]
        for i in range(tail - head):
            g = part[i]
            s = copy[i]
            order[slots[g]] = s
            position[s] = slots[g]
            slots[g] += 1
        first_new = num_blocks
        for g in range(num_parts):
            i = end - sizes[0] if g == 0 else slots[g] - sizes[g]
            b = old
            if g != largest:
                b = num_blocks
                num_blocks += 1
                for j in range(i, i + sizes[g]):
                    block[order[j]] = b
            begin[b] = i
            past[b] = i + sizes[g]
            changed[b] = 0
        for b in range(first_new, num_blocks):
            more = (_value(b, salt) - _value(old, salt)) & _63_BITS
            head = begin[b]
            tail = past[b]
            for i in range(head, tail):  # the loop below may reorder the block
                copy[i - head] = order[i]
            for i in range(tail - head):
                t = copy[i]
                for j in range(into[t], into[t + 1]):
                    s = sources[j]
                    total[s] = _add(total[s], factor[j], more)
                    g = block[s]
                    p = begin[g] + changed[g]
                    if position[s] < p:
                        continue
                    if changed[g] == 0:
                        pending[num_pending] = g
                        num_pending += 1
                    changed[g] += 1
                    order[position[s]] = order[p]
                    position[order[p]] = position[s]
                    order[p] = s
                    position[s] = p
    return num_blocks
