"""This module has compiled loops over an automaton's graph: what reaches what, and how fast.

`delta[s, k]` is the state after reading byte class `k` in state `s`, -1 when there is none;
state 0 is initial. Every function is linear in the size of `delta`.
"""

from __future__ import annotations

import numpy as np

from gcd.support.compiled import helper, kernel
from gcd.support.kernels.grouping import by_key
from gcd.support.kernels.growing import longer


@kernel
def distinct_edges(delta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """List each state's successors once, in order of class: `targets[start[s]:start[s + 1]]`."""
    num_states, num_classes = delta.shape
    start = np.zeros(num_states + 1, np.int64)
    targets = np.empty(4 * num_states + num_classes, np.int32)
    seen = np.full(num_states, -1, np.int32)
    count = 0
    for s in range(num_states):
        targets = longer(targets, count + num_classes)
        for k in range(num_classes):
            t = delta[s, k]
            if t >= 0 and seen[t] != s:
                seen[t] = s
                targets[count] = t
                count += 1
        start[s + 1] = count
    return start, targets[:count].copy()


@kernel
def reversed_edges(start: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """List the same edges by their targets."""
    num_states = start.size - 1
    sources = np.empty(targets.size, np.int32)
    for s in range(num_states):
        for i in range(start[s], start[s + 1]):
            sources[i] = s
    return by_key(targets, num_states, sources)


@kernel
def levels(into: np.ndarray, sources: np.ndarray, accepting: np.ndarray) -> np.ndarray:
    """Return the fewest symbols from each state to an accepting one; -1 where there is no path."""
    num_states = accepting.size
    level = np.full(num_states, -1, np.int32)
    queue = np.empty(num_states, np.int32)
    head, tail = 0, 0
    for s in range(num_states):
        if accepting[s]:
            level[s] = 0
            queue[tail] = s
            tail += 1
    while head < tail:
        t = queue[head]
        head += 1
        for i in range(into[t], into[t + 1]):
            s = sources[i]
            if level[s] < 0:
                level[s] = level[t] + 1
                queue[tail] = s
                tail += 1
    return level


@kernel
def distances_to_accept(delta: np.ndarray, accepting: np.ndarray) -> np.ndarray:
    """Compute the `levels` of the states of a table."""
    return levels(*reversed_edges(*distinct_edges(delta)), accepting)


@helper
def breadth_first(
    forward: tuple[np.ndarray, np.ndarray], alive: np.ndarray
) -> tuple[np.ndarray, int, bool]:
    """Number the live states in the order of their discovery from state 0; the others get -1.

    Also how many were found, and whether all states had these numbers already.
    """
    start, targets = forward
    num_states = alive.size
    number = np.full(num_states, -1, np.int32)
    queue = np.empty(num_states, np.int32)
    if not alive[0]:
        return number, 0, False
    number[0], queue[0] = 0, 0
    head, tail = 0, 1
    in_order = True
    while head < tail:
        s = queue[head]
        in_order = in_order and s == head
        head += 1
        for i in range(start[s], start[s + 1]):
            t = targets[i]
            if alive[t] and number[t] < 0:
                number[t], queue[tail] = tail, t
                tail += 1
    return number, tail, in_order and tail == num_states


@helper
def renumber(
    delta: np.ndarray, accepting: np.ndarray, number: np.ndarray, num_kept: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the automaton over the kept states (`number >= 0`); old states may share a number."""
    num_states, num_classes = delta.shape
    new_delta = np.full((num_kept, num_classes), -1, np.int32)
    new_accepting = np.zeros(num_kept, np.bool_)
    for s in range(num_states):
        if number[s] >= 0:
            new_accepting[number[s]] = accepting[s]
            for k in range(num_classes):
                t = delta[s, k]
                if t >= 0:
                    new_delta[number[s], k] = number[t]
    return new_delta, new_accepting
