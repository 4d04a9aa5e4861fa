"""Compiled loops over the transition graph of an automaton: who reaches whom, and how fast.

`delta[s, k]` is the state after reading byte class `k` in state `s`, -1 when there is none;
state 0 is initial. Every function is linear in the size of `delta`.
"""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def predecessors(delta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Incoming edges, compressed: state t is entered from `sources[offsets[t]:offsets[t+1]]`."""
    num_states, num_classes = delta.shape
    offsets = np.zeros(num_states + 1, np.int64)
    for s in range(num_states):
        for k in range(num_classes):
            if delta[s, k] >= 0:
                offsets[delta[s, k] + 1] += 1
    for t in range(num_states):
        offsets[t + 1] += offsets[t]
    sources = np.empty(offsets[num_states], np.int32)
    fill = offsets[:-1].copy()
    for s in range(num_states):
        for k in range(num_classes):
            t = delta[s, k]
            if t >= 0:
                sources[fill[t]] = s
                fill[t] += 1
    return offsets, sources


@numba.njit(cache=True)
def coaccessible(delta: np.ndarray, accepting: np.ndarray) -> np.ndarray:
    """States from which some accepting state can be reached."""
    num_states = delta.shape[0]
    offsets, sources = predecessors(delta)
    alive = accepting.copy()
    stack = np.empty(num_states, np.int32)
    top = 0
    for s in range(num_states):
        if accepting[s]:
            stack[top] = s
            top += 1
    while top > 0:
        top -= 1
        t = stack[top]
        for i in range(offsets[t], offsets[t + 1]):
            s = sources[i]
            if not alive[s]:
                alive[s] = True
                stack[top] = s
                top += 1
    return alive


@numba.njit(cache=True)
def distances_to_accept(delta: np.ndarray, accepting: np.ndarray) -> np.ndarray:
    """Fewest symbols from each state to an accepting one; -1 where there is no way."""
    num_states = delta.shape[0]
    offsets, sources = predecessors(delta)
    distance = np.full(num_states, -1, np.int32)
    queue = np.empty(num_states, np.int32)
    head, tail = 0, 0
    for s in range(num_states):
        if accepting[s]:
            distance[s] = 0
            queue[tail] = s
            tail += 1
    while head < tail:
        t = queue[head]
        head += 1
        for i in range(offsets[t], offsets[t + 1]):
            s = sources[i]
            if distance[s] < 0:
                distance[s] = distance[t] + 1
                queue[tail] = s
                tail += 1
    return distance


@numba.njit(cache=True)
def breadth_first_order(delta: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """New number of each state in breadth-first order over live states, -1 for the rest."""
    num_states, num_classes = delta.shape
    number = np.full(num_states, -1, np.int32)
    queue = np.empty(num_states, np.int32)
    if not alive[0]:
        return number
    number[0] = 0
    queue[0] = 0
    head, tail = 0, 1
    while head < tail:
        s = queue[head]
        head += 1
        for k in range(num_classes):
            t = delta[s, k]
            if t >= 0 and alive[t] and number[t] < 0:
                number[t] = tail
                queue[tail] = t
                tail += 1
    return number


@numba.njit(cache=True)
def renumber(
    delta: np.ndarray, accepting: np.ndarray, number: np.ndarray, num_kept: int
) -> tuple[np.ndarray, np.ndarray]:
    """The automaton over the kept states (`number >= 0`), several old states may share a number."""
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
