"""Equivalence of states by fingerprints of their residual languages.

The *residual* of a state is the set of strings that lead from it to acceptance. Minimization merges
states with equal residuals. This module computes a number for each state that depends only on its
residual, so states with equal residuals have equal numbers. States with equal numbers form blocks.

Then every edge is checked: do all states of a block accept or not accept together, and does each
byte class lead from all of them to one block? If so, the blocks are exactly the classes of
equivalent states, even if some numbers were equal by chance. If not, the blocks are split by the
sums of their successors' blocks and checked again. If sums were equal by chance, this check fails,
and the blocks are split by sums with other weights.

**Numbers.** The *level* of a state is the fewest symbols to acceptance. A sweep over all states
computes a new number for each state from its old number and those of its successors. If the
successor has a lower or the same level, the sweep uses the successor's new number. So one sweep
propagates a difference through a chain of thousands of states. If the successor has a higher level,
the sweep uses its old number. States of one level may form cycles, such as the loop of an unbounded
string. If such a cycle is reachable from a successor without leaving its level, states of this
level also use the successor's old number. All of these rules depend only on residuals, so equal
residuals still have equal numbers. Some differences, as in `(abc){0,80}`, would have to be
propagated along many edges to higher levels. Refinement finds these differences instead.

**Refinement.** Each edge has a weight: the sum of random numbers, one for each byte class that
leads along the edge. Each state has a sum: over its edges, the weight of the edge times a random
number for the successor's block. A block whose states have different sums is split. The largest
part keeps the block's number, so a state changes its block O(log S) times. Each time, the sums of
its predecessors are corrected.

Cost: O(S K), plus O(E) for each of two sweeps and O(E log S) for refinement, which hardly ever has
to be repeated, with S states, K byte classes and E distinct edges.
"""

from __future__ import annotations

import cython
import numpy as np

from gcd._support.kernels.grouping import number_by_first

if cython.compiled:
    from cython.cimports.gcd._support.kernels.mixing import mix
else:
    from gcd._support.kernels.mixing import mix

_SWEEPS = cython.declare(cython.int, 2)  # sweeps before blocks are refined
_63_BITS = cython.declare(cython.ulonglong, 0x7FFFFFFFFFFFFFFF)


@cython.cfunc
@cython.exceptval(check=False)
def _settling_order(
    start: cython.const[cython.longlong][::1],
    targets: cython.const[cython.int][::1],
    into: cython.const[cython.longlong][::1],
    sources: cython.const[cython.int][::1],
    level: cython.const[cython.int][::1],
    order: cython.int[::1],
    waits_for: cython.int[::1],
    peeled: cython.int[::1],
    fill: cython.int[::1],
) -> cython.void:
    """Write the order in which to compute fingerprints, and which states lead to cycles.

    The states are ordered by `level`, the fewest symbols to acceptance. On each level, successors
    come first, and the states from which a cycle on the level is reachable come last.
    `waits_for[s]` is the number of successors on the level of s from which such a cycle is
    reachable. `peeled` is scratch space with an entry for each state; `fill` has two more entries.
    """
    num_states: cython.Py_ssize_t = level.shape[0]
    head: cython.Py_ssize_t = 0
    tail: cython.Py_ssize_t = 0
    cython.declare(t=cython.Py_ssize_t, i=cython.Py_ssize_t)
    for s in range(num_states):
        waits_for[s] = 0
        for i in range(start[s], start[s + 1]):
            if level[targets[i]] == level[s]:
                waits_for[s] += 1
        if waits_for[s] == 0:
            peeled[tail] = s
            tail += 1
    while head < tail:
        t = peeled[head]
        head += 1
        for i in range(into[t], into[t + 1]):
            s = sources[i]
            if level[s] == level[t]:
                waits_for[s] -= 1
                if waits_for[s] == 0:
                    peeled[tail] = s
                    tail += 1
    for s in range(num_states):
        if waits_for[s] > 0:
            peeled[tail] = s
            tail += 1
    for i in range(num_states + 2):  # levels are smaller than the number of states
        fill[i] = 0
    for s in range(num_states):
        fill[level[s] + 1] += 1
    for i in range(1, num_states + 2):
        fill[i] += fill[i - 1]
    for i in range(num_states):
        s = peeled[i]
        order[fill[level[s]]] = s
        fill[level[s]] += 1


@cython.cfunc
@cython.exceptval(check=False)
def _group(
    number: cython.const[cython.longlong][::1],
    table: cython.int[::1],
    block: cython.int[::1],
    first: cython.longlong[::1],
) -> cython.int:
    """Group states with equal numbers (fingerprints); return the number of groups (blocks)."""
    last: cython.longlong = table.shape[0] - 1
    count: cython.int = 0
    for slot in range(last + 1):
        table[slot] = -1
    for s in range(number.shape[0]):
        slot = number[s] & last
        while table[slot] >= 0 and number[first[table[slot]]] != number[s]:
            slot = (slot + 1) & last
        if table[slot] < 0:
            table[slot] = count
            first[count] = s
            count += 1
        block[s] = table[slot]
    return count


@cython.cfunc
@cython.exceptval(check=False)
def _is_respected(
    delta: cython.const[cython.int][:, ::1],
    accepting: cython.const[cython.uchar][::1],
    block: cython.const[cython.int][::1],
    first: cython.const[cython.longlong][::1],
) -> cython.bint:
    """Return whether all states of each block behave like the block's first state."""
    for s in range(delta.shape[0]):
        other: cython.Py_ssize_t = first[block[s]]
        if other == s:
            continue
        if accepting[s] != accepting[other]:
            return False
        for k in range(delta.shape[1]):
            t: cython.int = delta[s, k]
            u: cython.int = delta[other, k]
            if (t < 0) != (u < 0) or (t >= 0 and block[t] != block[u]):
                return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _weigh_edges(
    delta: cython.const[cython.int][:, ::1],
    start: cython.const[cython.longlong][::1],
    targets: cython.const[cython.int][::1],
    weight: cython.const[cython.longlong][::1],
    edge_to: cython.int[::1],
    sums: cython.longlong[::1],
) -> cython.void:
    """Write the weight of each edge (pair of states): the sum of its byte classes' weights."""
    cython.declare(i=cython.Py_ssize_t, known=cython.ulonglong, more=cython.ulonglong)
    for s in range(delta.shape[0]):
        for i in range(start[s], start[s + 1]):
            edge_to[targets[i]] = i
            sums[i] = 0
        for k in range(delta.shape[1]):
            t = delta[s, k]
            if t >= 0:
                i = edge_to[t]
                known = int(sums[i])
                more = int(weight[k])
                sums[i] = (known + more) & _63_BITS


@cython.cfunc
@cython.exceptval(check=False)
def _sweep(
    start: cython.const[cython.longlong][::1],
    targets: cython.const[cython.int][::1],
    sums: cython.const[cython.longlong][::1],
    order: cython.const[cython.int][::1],
    level: cython.const[cython.int][::1],
    known_from: cython.const[cython.int][::1],
    old: cython.const[cython.longlong][::1],
    new: cython.longlong[::1],
) -> cython.void:
    """Compute a new fingerprint (`new`) for each state from its own and its successors'."""
    j: cython.Py_ssize_t
    for i in range(order.shape[0]):
        s: cython.Py_ssize_t = order[i]
        total: cython.ulonglong = int(old[s])
        for j in range(start[s], start[s + 1]):
            t: cython.int = targets[j]
            number: cython.longlong = new[t] if known_from[t] <= 2 * level[s] else old[t]
            factor: cython.ulonglong = int(sums[j])
            term: cython.ulonglong = int(number)
            total += factor * term
        # The weights are known modulo 2^63, and so is the total.
        new[s] = mix(cython.cast(cython.longlong, total & _63_BITS))


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
def _refine(
    start: cython.const[cython.longlong][::1],
    targets: cython.const[cython.int][::1],
    sums: cython.const[cython.longlong][::1],
    into: cython.const[cython.longlong][::1],
    block: cython.int[::1],
    num_blocks: cython.Py_ssize_t,
    salt: cython.longlong,
) -> cython.Py_ssize_t:
    """Split blocks of states whose sums differ, until none is left; return the number of blocks.

    `sums` are the weights of the edges, modulo 2^63, and `salt` selects the blocks' random numbers.
    `into[s]` is the number of edges into the states before s. The result overwrites `block`.
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
    cython.declare(t=cython.Py_ssize_t, i=cython.Py_ssize_t, j=cython.Py_ssize_t)
    cython.declare(p=cython.Py_ssize_t, g=cython.Py_ssize_t, num_parts=cython.Py_ssize_t)
    cython.declare(head=cython.Py_ssize_t, tail=cython.Py_ssize_t, end=cython.Py_ssize_t)
    cython.declare(old=cython.Py_ssize_t, largest=cython.Py_ssize_t, rest=cython.Py_ssize_t)
    cython.declare(more=cython.longlong)

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


def find_blocks(after, accepts, start, targets, into, sources, level, block):
    """Write the block of each state, and return the number of blocks.

    Two states are in one block if and only if the same strings lead from them to acceptance. Every
    state must lead to acceptance. Blocks are numbered by their first states. The distinct edges are
    given twice: sorted by their sources (`start`, `targets`) and by their targets (`into`,
    `sources`).
    """
    num_states: cython.Py_ssize_t = after.shape[0]
    num_classes: cython.Py_ssize_t = after.shape[1]
    size: cython.Py_ssize_t = 16
    while size < 2 * num_states:
        size *= 2
    ints: cython.int[::1] = np.empty(5 * num_states + 2 + size, np.int32)
    order: cython.int[::1] = ints[:num_states]
    waits_for: cython.int[::1] = ints[num_states : 2 * num_states]
    # State s uses the new number of state t if `known_from[t] <= 2 * level[s]`.
    known_from: cython.int[::1] = ints[2 * num_states : 3 * num_states]
    peeled: cython.int[::1] = ints[3 * num_states : 4 * num_states]
    fill: cython.int[::1] = ints[4 * num_states : 5 * num_states + 2]
    table: cython.int[::1] = ints[5 * num_states + 2 :]
    longs: cython.longlong[::1] = np.empty(
        3 * num_states + num_classes + targets.shape[0], np.int64
    )
    old: cython.longlong[::1] = longs[:num_states]
    new: cython.longlong[::1] = longs[num_states : 2 * num_states]
    first: cython.longlong[::1] = longs[2 * num_states : 3 * num_states]
    weight: cython.longlong[::1] = longs[3 * num_states : 3 * num_states + num_classes]
    sums: cython.longlong[::1] = longs[3 * num_states + num_classes :]
    _settling_order(start, targets, into, sources, level, order, waits_for, peeled, fill)
    for s in range(num_states):
        known_from[s] = 2 * level[s] + (1 if waits_for[s] > 0 else 0)
        old[s] = mix(2 * level[s] + accepts[s])
    for k in range(num_classes):
        weight[k] = mix(k + 1) | 1
    _weigh_edges(after, start, targets, weight, peeled, sums)
    num_blocks: cython.int = 0
    for _ in range(_SWEEPS):
        _sweep(start, targets, sums, order, level, known_from, old, new)
        num_blocks = _group(new, table, block, first)
        if num_blocks == num_states or _is_respected(after, accepts, block, first):
            return num_blocks
        old, new = new, old
    for s in range(num_states):  # split blocks by acceptance, in case numbers are equal by chance
        block[s] = 2 * block[s] + accepts[s]
    initial, beginning = number_by_first(np.asarray(block), 2 * num_blocks)
    final: cython.const[cython.int][::1] = initial
    beginnings: cython.const[cython.longlong][::1]
    block[:] = final
    num_blocks = beginning.size
    salt: cython.longlong = 0
    while True:
        num_blocks = _refine(start, targets, sums, into, block, num_blocks, salt)
        refined, beginning = number_by_first(np.asarray(block), num_blocks)
        final = refined
        block[:] = final
        beginnings = beginning
        first[:num_blocks] = beginnings
        if _is_respected(after, accepts, block, first):
            return num_blocks
        salt += 1 << 32  # different sums were equal by chance
        for k in range(num_classes):
            weight[k] = mix(salt + k + 1) | 1
        _weigh_edges(after, start, targets, weight, peeled, sums)
