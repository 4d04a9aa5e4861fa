# distutils: extra_compile_args = -funroll-loops
# The loops over classes have few instructions. Unrolling the loops saves half of them.
"""Edges of a token automaton, found in its table of next states.

The classes that lead from one state to the same next state form an edge. The set of these classes
is hashed to a signature, which is the sum (modulo 2^64) of a random number per class. Equal sets
have equal signatures. The caller verifies that different sets have different signatures
(`labels_match`).
"""

from __future__ import annotations

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.gcd._support.kernels.wide import wide

# Limits sums to 64 bits when the module runs in Python, whose integers are unbounded.
_64_BITS = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)


def count_edges(delta: np.ndarray, final: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Count the edges of an automaton: the different next states of each state except `final`."""
    step: cython.const[cython.int][:, ::1] = np.ascontiguousarray(delta, np.int32)
    seen: cython.int[::1] = np.empty(step.shape[0] + 1, np.int32)  # index 0 is for -1
    count: cython.Py_ssize_t = 0
    state: cython.int
    after: cython.int
    symbol: cython.Py_ssize_t
    with cython.nogil:
        for state in range(seen.shape[0]):
            seen[state] = -1
        for state in range(final):
            seen[0] = state
            for symbol in range(step.shape[1]):
                after = step[state, symbol] + 1
                if seen[after] != state:
                    seen[after] = state
                    count += 1
    return count


def list_edges(
    delta: np.ndarray,
    final: cython.Py_ssize_t,
    number: cython.const[cython.ulonglong][::1],
    source: cython.longlong[::1],
    target: cython.longlong[::1],
    signature: cython.ulonglong[::1],
) -> None:
    """Write all edges, sorted by source state, and their signatures.

    Args:
        delta: next state of each state and class; -1 for none.
        final: the final state, which is the last one.
        number: random number of each class.
        source, target: output, the states that each edge connects.
        signature: output, the sum of `number` over the classes of each edge.
    """
    step: cython.const[cython.int][:, ::1] = np.ascontiguousarray(delta, np.int32)
    edge_of: cython.int[::1] = np.empty(step.shape[0], np.int32)
    first: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    edge: cython.int
    state: cython.int
    after: cython.int
    symbol: cython.Py_ssize_t
    total: cython.ulonglong
    with cython.nogil:
        for state in range(edge_of.shape[0]):
            edge_of[state] = -1
        for state in range(final):
            first = count
            for symbol in range(step.shape[1]):
                after = step[state, symbol]
                if after < 0:
                    continue
                edge = edge_of[after]
                if edge < first:  # this is the edge of an earlier state
                    edge = count
                    edge_of[after] = edge
                    source[edge] = state
                    target[edge] = after
                    signature[edge] = 0
                    count += 1
                total = cython.cast(cython.ulonglong, signature[edge])
                total = (total + cython.cast(cython.ulonglong, number[symbol])) & _64_BITS
                signature[edge] = total


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_difference(
    step: cython.const[cython.int][:, ::1],
    source: cython.const[cython.longlong][::1],
    target: cython.const[cython.longlong][::1],
    set_of: cython.const[cython.longlong][::1],
    members: cython.const[cython.uchar][:, ::1],
    found: cython.longlong[::1],
) -> wide:
    """Find the first edge whose token classes differ from the set that was assigned to it.

    `found[0]` gets the number of classes by which they differ; it stays zero if all edges match.
    """
    edge: cython.Py_ssize_t
    symbol: cython.Py_ssize_t
    state: cython.Py_ssize_t
    which: cython.Py_ssize_t
    after: cython.int
    differ: cython.int
    for edge in range(source.shape[0]):
        state = source[edge]
        after = target[edge]
        which = set_of[edge]
        differ = 0  # the loop has no early exit, so that it is vectorized
        for symbol in range(step.shape[1]):
            differ += (step[state, symbol] == after) != (members[which, symbol] != 0)
        if differ:
            found[0] = differ
            return


def labels_match(
    delta: np.ndarray,
    source: cython.const[cython.longlong][::1],
    target: cython.const[cython.longlong][::1],
    set_of: cython.const[cython.longlong][::1],
    members: cython.const[cython.uchar][:, ::1],
) -> bool:
    """Return whether each edge's token classes are exactly the set that was assigned to it."""
    step: cython.const[cython.int][:, ::1] = np.ascontiguousarray(delta, np.int32)
    found: cython.longlong[::1] = np.zeros(1, np.int64)
    with cython.nogil:
        _find_difference(step, source, target, set_of, members, found)
    return bool(found[0] == 0)
