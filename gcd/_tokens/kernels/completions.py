"""Upper bounds on the tokens from each byte state to the end (see `gcd._tokens.completions`).

`delta[s, k]` is the state after byte class k, -1 for none. The trie is a `gcd._tokens.trie.Trie`.
The children of node n begin at `child[child_start[n + 1]]`, and the children of the root come
first. `tests/gcd/tokens/test_completions.py` compares the results with a plain implementation.
"""

from __future__ import annotations

import cython
import numpy as np


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _child(
    node: cython.Py_ssize_t,
    label: cython.int,
    start: cython.const[cython.longlong][::1],
    child: cython.const[cython.int][::1],
    byte: cython.const[cython.uchar][::1],
) -> cython.Py_ssize_t:
    """Return the child of a node for a byte, -1 for none. Node -1 is the root."""
    low: cython.Py_ssize_t = start[node + 1]
    end: cython.Py_ssize_t = start[node + 2]
    high: cython.Py_ssize_t = end
    middle: cython.Py_ssize_t
    while low < high:
        middle = (low + high) // 2
        if byte[child[middle]] < label:
            low = middle + 1
        else:
            high = middle
    if low < end and byte[child[low]] == label:
        return child[low]
    return -1


def along_shortest(
    delta: np.ndarray,
    accepting: np.ndarray,
    byte_of_class: np.ndarray,
    weights: np.ndarray,
    children: tuple[np.ndarray, np.ndarray],
    byte: np.ndarray,
    entry: np.ndarray,
    unreachable: int,
) -> np.ndarray:
    """Return, for each state, the fewest tokens that spell one shortest completion, EOS included.

    Args:
        delta, accepting: the byte automaton.
        byte_of_class: the byte that represents each class in completions, -1 for a class that no
            completion may use; int32.
        weights: a weight for each of the 256 bytes. Among the bytes that begin a shortest
            completion, the byte with the largest weight is chosen; int32.
        children, byte, entry: the trie.
        unreachable: the result for states without such a completion.
    """
    step: cython.const[cython.int][:, ::1] = np.ascontiguousarray(delta, np.int32)
    accepts: cython.const[cython.uchar][::1] = np.ascontiguousarray(accepting).view(np.uint8)
    stands: cython.const[cython.int][::1] = byte_of_class
    start: cython.const[cython.longlong][::1] = children[0]
    child: cython.const[cython.int][::1] = children[1]
    label: cython.const[cython.uchar][::1] = byte
    entry_of: cython.const[cython.int][::1] = entry
    num_states: cython.Py_ssize_t = step.shape[0]
    num_classes: cython.Py_ssize_t = step.shape[1]
    bound_array = np.full(num_states, unreachable, np.int32)
    bound: cython.int[::1] = bound_array
    # Edges by their targets: the source states, and the bytes. Of successive classes that lead to
    # the same state, the class with the largest weight is kept.
    weight: cython.int[::1] = weights
    before: cython.Py_ssize_t
    into: cython.longlong[::1] = np.zeros(num_states + 2, np.int64)
    s: cython.Py_ssize_t
    t: cython.Py_ssize_t
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    with cython.nogil:
        for s in range(num_states):
            before = -1
            for k in range(num_classes):
                t = step[s, k]
                if t >= 0 and stands[k] >= 0 and t != before:
                    into[t + 2] += 1
                    before = t
        for s in range(num_states):
            into[s + 2] += into[s + 1]
    source: cython.int[::1] = np.empty(into[num_states + 1], np.int32)
    read: cython.int[::1] = np.empty(into[num_states + 1], np.int32)
    # The shortest completions form a forest: each state has one next byte and one next state.
    following: cython.int[::1] = np.full(num_states, -1, np.int32)
    next_byte: cython.int[::1] = np.empty(num_states, np.int32)
    level: cython.int[::1] = np.full(num_states, -1, np.int32)
    queue: cython.int[::1] = np.empty(num_states, np.int32)
    head: cython.Py_ssize_t = 0
    tail: cython.Py_ssize_t = 0
    node: cython.Py_ssize_t
    with cython.nogil:
        for s in range(num_states):
            before = -1
            i = 0
            for k in range(num_classes):
                t = step[s, k]
                if t < 0 or stands[k] < 0:
                    continue
                if t != before:
                    i = into[t + 1]
                    source[i] = s
                    read[i] = stands[k]
                    into[t + 1] = i + 1
                    before = t
                elif weight[stands[k]] > weight[read[i]]:
                    read[i] = stands[k]
        for s in range(num_states):
            if accepts[s]:
                level[s] = 0
                queue[tail] = s
                tail += 1
        while head < tail:
            t = queue[head]
            head += 1
            if accepts[t]:
                bound[t] = 1
            node = -1
            s = t
            # The later states on the path are closer to acceptance, so their bounds are known.
            while not accepts[s]:
                node = _child(node, next_byte[s], start, child, label)
                if node < 0:
                    break
                s = following[s]
                if entry_of[node] >= 0 and bound[s] < bound[t]:
                    bound[t] = bound[s] + 1
            for i in range(into[t], into[t + 1]):
                s = source[i]
                if level[s] < 0:
                    level[s] = level[t] + 1
                    queue[tail] = s
                    tail += 1
                elif level[s] <= level[t] or weight[read[i]] <= weight[next_byte[s]]:
                    continue
                following[s] = t
                next_byte[s] = read[i]
    return bound_array


def by_any_token(
    delta: np.ndarray,
    class_of_byte: np.ndarray,
    tree: tuple[np.ndarray, ...],
    max_depth: int,
    bounds: np.ndarray,
    unreachable: int,
    most: int,
) -> bool:
    """Compute missing bounds on the tokens to the end: 1 plus the least bound after a token.

    Args:
        delta, class_of_byte: the byte automaton.
        tree: byte, depth, skip and entry of the trie.
        max_depth: the depth of the trie.
        bounds: the bounds; modified in place.
        unreachable: the value in `bounds` for states without a bound.
        most: maximum number of visits of trie nodes.

    Returns:
        True if `most` visits were enough. The states that are still without a bound then can't be
        completed.
    """
    step: cython.const[cython.int][:, ::1] = np.ascontiguousarray(delta, np.int32)
    class_of: cython.const[cython.uchar][::1] = class_of_byte
    byte: cython.const[cython.uchar][::1] = tree[0]
    depth: cython.const[cython.int][::1] = tree[1]
    skip: cython.const[cython.int][::1] = tree[2]
    entry: cython.const[cython.int][::1] = tree[3]
    bound: cython.int[::1] = bounds
    states: cython.int[::1] = np.empty(max_depth + 1, np.int32)
    num_nodes: cython.Py_ssize_t = byte.shape[0]
    limit: cython.longlong = most
    visited: cython.longlong = 0
    none: cython.int = unreachable
    least: cython.int
    after: cython.int
    changed: cython.bint = True
    s: cython.Py_ssize_t
    d: cython.Py_ssize_t
    node: cython.Py_ssize_t
    with cython.nogil:
        while changed and visited < limit:
            changed = False
            for s in range(step.shape[0]):
                if bound[s] < none or visited >= limit:
                    continue
                least = none
                states[0] = s
                node = 0
                while node < num_nodes:
                    visited += 1
                    d = depth[node]
                    after = step[states[d], class_of[byte[node]]]
                    if after < 0:
                        node = skip[node]
                        continue
                    states[d + 1] = after
                    if entry[node] >= 0 and bound[after] < least:
                        least = bound[after]
                    node += 1
                if least < none:
                    bound[s] = least + 1
                    changed = True
    return visited < limit
