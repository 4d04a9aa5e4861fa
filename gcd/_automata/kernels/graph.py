"""Loops over an automaton's graph: edges, distances, and breadth-first search.

`delta[s, k]` is the state after reading byte class `k` in state `s`, or -1 if there is none. State
0 is initial. Every function takes time linear in the size of `delta`.

The *distinct edges* are pairs of states (source, target), each stored once even if several byte
classes lead along it. They are sorted by sources: the edges from state `s` are
`targets[start[s]:start[s + 1]]`. They can also be sorted by targets: the edges into state `t` are
`sources[into[t]:into[t + 1]]`.
"""

from __future__ import annotations

import cython
import numpy as np

_NUM_BYTES = cython.declare(cython.int, 256)


def list_edges(after, start, seen):
    """List the distinct edges (pairs of states) by sources: write `start`, return the targets."""
    num_states: cython.Py_ssize_t = after.shape[0]
    num_classes: cython.Py_ssize_t = after.shape[1]
    room: cython.Py_ssize_t = min(num_states * num_classes, 4 * num_states + num_classes)
    targets: cython.int[::1] = np.empty(room, np.int32)
    count: cython.Py_ssize_t = 0
    for s in range(num_states):
        seen[s] = -1
    start[0] = 0
    for s in range(num_states):
        if count + num_classes > room:
            room = 2 * room + num_classes
            targets = np.resize(np.asarray(targets), room)
        for k in range(num_classes):
            t = after[s, k]
            if t >= 0 and seen[t] != s:
                seen[t] = s
                targets[count] = t
                count += 1
        start[s + 1] = count
    return targets[:count]


def reverse_edges(start, targets, into, sources, fill):
    """Sort the distinct edges (pairs of states) by targets: write `into` and `sources`."""
    num_states: cython.Py_ssize_t = start.shape[0] - 1
    cython.declare(t=cython.Py_ssize_t, i=cython.Py_ssize_t)
    for s in range(num_states + 1):
        into[s] = 0
    for i in range(targets.shape[0]):
        into[targets[i] + 1] += 1
    for s in range(num_states):
        into[s + 1] += into[s]
        fill[s] = into[s]
    for s in range(num_states):
        for i in range(start[s], start[s + 1]):
            t = targets[i]
            sources[fill[t]] = s
            fill[t] += 1


def find_levels(into, sources, accepts, level, queue):
    """Write the fewest symbols from each state to an accepting one; -1 where there is no path."""
    head: cython.Py_ssize_t = 0
    tail: cython.Py_ssize_t = 0
    cython.declare(t=cython.Py_ssize_t, i=cython.Py_ssize_t)
    for s in range(accepts.shape[0]):
        level[s] = -1
        if accepts[s]:
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


def number_breadth_first(start, targets, level, number, queue):
    """Assign numbers to states in breadth-first order from state 0; return how many got one.

    States whose `level` is -1, and states that are not reachable, get the number -1.
    `queue` is scratch space with an entry for each state.
    """
    num_states: cython.Py_ssize_t = level.shape[0]
    head: cython.Py_ssize_t = 0
    tail: cython.Py_ssize_t = 1
    cython.declare(t=cython.Py_ssize_t, i=cython.Py_ssize_t)
    for s in range(num_states):
        number[s] = -1
    if num_states == 0 or level[0] < 0:
        return 0
    number[0] = 0
    queue[0] = 0
    while head < tail:
        s = queue[head]
        head += 1
        for i in range(start[s], start[s + 1]):
            t = targets[i]
            if level[t] >= 0 and number[t] < 0:
                number[t] = tail
                queue[tail] = t
                tail += 1
    return tail


@cython.cfunc
def _write_levels(
    after: cython.const[cython.int][:, ::1],
    accepts: cython.const[cython.uchar][::1],
    level: cython.int[::1],
) -> cython.void:
    """Write the fewest symbols from each state of a table to an accepting one; -1 for no path."""
    num_states: cython.Py_ssize_t = after.shape[0]
    longs: cython.longlong[::1] = np.empty(3 * num_states + 2, np.int64)
    start: cython.longlong[::1] = longs[: num_states + 1]
    into: cython.longlong[::1] = longs[num_states + 1 : 2 * num_states + 2]
    fill: cython.longlong[::1] = longs[2 * num_states + 2 :]
    targets: cython.int[::1] = list_edges(after, start, level)
    room: cython.int[::1] = np.empty(targets.shape[0] + num_states, np.int32)
    sources: cython.int[::1] = room[num_states:]
    reverse_edges(start, targets, into, sources, fill)
    find_levels(into, sources, accepts, level, room[:num_states])


def longest_path(delta: np.ndarray) -> int:
    """Return the number of edges of the longest path from state 0; -1 if there is a cycle."""
    num_states: cython.Py_ssize_t = delta.shape[0]
    ints: cython.int[::1] = np.empty(3 * num_states, np.int32)
    sources_left: cython.int[::1] = ints[:num_states]
    length: cython.int[::1] = ints[num_states : 2 * num_states]
    queue: cython.int[::1] = ints[2 * num_states :]
    start: cython.longlong[::1] = np.empty(num_states + 1, np.int64)
    targets: cython.int[::1] = list_edges(np.ascontiguousarray(delta, np.int32), start, queue)
    head: cython.Py_ssize_t = 0
    tail: cython.Py_ssize_t = 0
    cython.declare(t=cython.Py_ssize_t, i=cython.Py_ssize_t)
    most: cython.int = 0
    for s in range(num_states):
        sources_left[s] = 0
        length[s] = 0
    for i in range(targets.shape[0]):
        sources_left[targets[i]] += 1
    if sources_left[0] == 0:
        queue[0] = 0
        tail = 1
    # Remove states in topological order. States on cycles, and those after a cycle, remain.
    while head < tail:
        s = queue[head]
        head += 1
        most = max(most, length[s])
        for i in range(start[s], start[s + 1]):
            t = targets[i]
            length[t] = max(length[t], length[s] + 1)
            sources_left[t] -= 1
            if sources_left[t] == 0:
                queue[tail] = t
                tail += 1
    return most if tail == num_states else -1


def levels(into: np.ndarray, sources: np.ndarray, accepting: np.ndarray) -> np.ndarray:
    """Return the fewest symbols from each state to an accepting one; -1 for no path."""
    level = np.empty(accepting.size, np.int32)
    find_levels(into, sources, accepting.view(np.uint8), level, np.empty(accepting.size, np.int32))
    return level


def distances_to_accept(delta: np.ndarray, accepting: np.ndarray) -> np.ndarray:
    """Return the fewest symbols from each state of a table to an accepting one; -1 for no path."""
    level = np.empty(accepting.size, np.int32)
    _write_levels(delta, accepting.view(np.uint8), level)
    return level


def shortest(
    delta: np.ndarray, accepting: np.ndarray, class_of_byte: np.ndarray, state: int
) -> bytes:
    """Return the shortest string from a state to acceptance; of several, the first by bytes."""
    after: cython.const[cython.int][:, ::1] = delta
    if not 0 <= state < after.shape[0]:
        raise IndexError(f"expected a state in 0..{after.shape[0] - 1}, got {state}")
    classes: cython.const[cython.uchar][::1] = class_of_byte
    level: cython.int[::1] = np.empty(after.shape[0], np.int32)
    _write_levels(after, accepting.view(np.uint8), level)
    s: cython.Py_ssize_t = state
    length: cython.Py_ssize_t = max(level[s], 0)
    array = np.empty(length, np.uint8)
    string: cython.uchar[::1] = array
    for i in range(length):
        for byte in range(_NUM_BYTES):
            t = after[s, classes[byte]]
            if t >= 0 and level[t] == level[s] - 1:
                string[i] = byte
                s = t
                break
    return array.tobytes()
