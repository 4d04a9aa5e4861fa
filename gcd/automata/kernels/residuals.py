"""This module finds by fingerprints which states have the same residual language.

The *residual* of a state is the set of strings that lead from it to acceptance; minimisation makes
states of one residual one. Here every state gets a number that depends on its residual alone, so
that equal residuals have equal numbers. States of one number are then taken for one, and whether
that is a partition the automaton respects (same acceptance, and every class leads to one block) is
checked edge by edge. If it is, it is the coarsest such partition, that is equivalence itself: it
puts together all states that are equivalent, and no others, whatever the numbers were. Numbers that
agree by chance, or because they saw too little, are found by the check, and Hopcroft's way of
refining takes over from there (`gcd.automata.kernels.minimize`).

**The numbers.** The *level* of a state is the fewest symbols to acceptance. A sweep gives a state a
number made of its old one and of those of its successors: their new numbers where the level falls
or stays, so that one sweep carries what differs at the end of a chain of thousands of states to its
beginning; their old ones where it rises. Successors from which there are endless ways on one level
(the loop of a string without bound) are looked at by their old numbers from the same level. All
that is said in terms of residuals.

Cost: O(S K) for each sweep; the automata of this project take one to four.
"""

from __future__ import annotations

import numpy as np

from gcd.automata.kernels.minimize import minimize_blocks
from gcd.automata.kernels.subsets import mix
from gcd.support.compiled import helper, kernel
from gcd.support.kernels.grouping import number_by_first, numbered

_SWEEPS = 8  # before refinement takes over


@helper
def _settling_order(
    forward: tuple[np.ndarray, np.ndarray],
    backward: tuple[np.ndarray, np.ndarray],
    level: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """States level by level, successors of one level first; and for each a count.

    The count is positive where there are endless ways on the state's level; these states come last
    in it.
    """
    start, targets = forward
    into, sources = backward
    num_states = level.size
    waits_for = np.zeros(num_states, np.int32)
    peeled = np.empty(num_states, np.int32)
    head, tail = 0, 0
    for s in range(num_states):
        for i in range(start[s], start[s + 1]):
            waits_for[s] += level[targets[i]] == level[s]
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
    fill = np.zeros(num_states + 2, np.int32)  # levels are less than that
    for s in range(num_states):
        fill[level[s] + 1] += 1
    for i in range(1, fill.size):
        fill[i] += fill[i - 1]
    order = np.empty(num_states, np.int32)
    for s in peeled:
        order[fill[level[s]]] = s
        fill[level[s]] += 1
    return order, waits_for


@helper
def _group(number: np.ndarray, block: np.ndarray, first: np.ndarray) -> int:
    """Blocks of equal numbers, by first appearance, with their first states; how many."""
    size = 16
    while size < 2 * number.size:
        size *= 2
    table = np.full(size, -1, np.int32)
    count = 0
    for s in range(number.size):
        slot = number[s] & (size - 1)
        while table[slot] >= 0 and number[first[table[slot]]] != number[s]:
            slot = (slot + 1) & (size - 1)
        if table[slot] < 0:
            table[slot] = count
            first[count] = s
            count += 1
        block[s] = table[slot]
    return count


@helper
def _is_respected(
    delta: np.ndarray, accepting: np.ndarray, block: np.ndarray, first: np.ndarray
) -> bool:
    """Whether all states of each block do as its first one does."""
    for s in range(delta.shape[0]):
        other = first[block[s]]
        if other == s:
            continue
        if accepting[s] != accepting[other]:
            return False
        for k in range(delta.shape[1]):
            t, u = delta[s, k], delta[other, k]
            if (t < 0) != (u < 0) or (t >= 0 and block[t] != block[u]):
                return False
    return True


@kernel
def by_fingerprints(
    delta: np.ndarray,
    accepting: np.ndarray,
    forward: tuple[np.ndarray, np.ndarray],
    backward: tuple[np.ndarray, np.ndarray],
    level: np.ndarray,
) -> tuple[np.ndarray, int, bool]:
    """Give states of one residual one block: (block of each, how many, whether that is final).

    If it is not, states of one residual share a block, but others may be in it as well. Every
    state must lead to acceptance. Blocks are numbered by their first states. `forward` and
    `backward` are the distinct edges.
    """
    num_states, num_classes = delta.shape
    order, waits_for = _settling_order(forward, backward, level)
    # At twice its level, a state takes the new number of another.
    known_from = np.empty(num_states, np.int32)
    for s in range(num_states):
        known_from[s] = 2 * level[s] + (waits_for[s] > 0)
    weight = np.empty(num_classes, np.int64)
    for k in range(num_classes):
        weight[k] = mix(k + 1) | 1
    old = np.empty(num_states, np.int64)
    for s in range(num_states):
        old[s] = mix(2 * level[s] + accepting[s])
    new = np.empty(num_states, np.int64)
    block = np.empty(num_states, np.int32)
    first = np.empty(num_states, np.int64)
    num_blocks = 0
    for _ in range(_SWEEPS):
        for i in range(num_states):
            s = order[i]
            total = old[s]
            for k in range(num_classes):
                t = delta[s, k]
                if t >= 0:
                    total += weight[k] * (new[t] if known_from[t] <= 2 * level[s] else old[t])
            new[s] = mix(total)
        num_blocks = _group(new, block, first)
        if num_blocks == num_states or _is_respected(delta, accepting, block, first):
            return block, num_blocks, True
        old, new = new, old
    for s in range(num_states):  # numbers may agree by chance, acceptance must
        block[s] = 2 * block[s] + accepting[s]
    block, first = numbered(block, 2 * num_blocks)
    return block, first.size, False


def refined(delta: np.ndarray, block: np.ndarray, num_blocks: int) -> tuple[np.ndarray, int]:
    """Refine the blocks that `by_fingerprints` could not be sure of to those of equivalent states.

    Called from Python, not from a kernel: it is rarely needed, and then compiled.
    """
    block, num_blocks = minimize_blocks(delta, block, num_blocks)
    block, first = number_by_first(block.astype(np.int64), num_blocks)
    return block, first.size
