"""This module has products of pairs in compiled loops, and the store of a subset construction.

Conventions as in `gcd.automata.kernels.graph`. Growing results live in arrays that double, and
states are found again through open-addressing hash tables, so each loop is amortised linear in what
it produces.

Loops that may run long get three limits, (states, entries of the table, units of work), and
return the units that they took (`gcd.automata.limits`). A loop that comes to a limit stops and
reports a count of `TOO_MANY`, with more units than were allowed unless it was the one on states.
"""

from __future__ import annotations

import numpy as np

from gcd.support.compiled import helper, kernel
from gcd.support.kernels.growing import copied, longer, more_rows

_AND, _OR, _DIFFERENCE = 0, 1, 2
TOO_MANY = -1
PAIR = 16  # units for a class of a pair of states
SET = 4  # units for a member of a subset that is closed, sorted and looked for
MEMBER = 64  # units for a stored member of a subset, which stays in memory until the end
NOT_HASHED = -1  # instead of the hash of a subset that is found otherwise


@helper
def mix(value: int) -> int:
    """Mix 64 bits (the finaliser of splitmix64): consecutive keys spread over the hash table."""
    x = np.uint64(value)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((x ^ (x >> np.uint64(31))) & np.uint64(0x7FFFFFFFFFFFFFFF))


@kernel
def product(
    a_delta: np.ndarray,
    a_accepting: np.ndarray,
    b_delta: np.ndarray,
    b_accepting: np.ndarray,
    mode: int,
    limits: tuple[int, int, int],
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Find the reachable pairs of two automata: 0 intersection, 1 union, 2 difference.

    A component that has died is numbered as one more state of its automaton; pairs that can no
    longer accept in the given mode are not built. Returns (delta, accepting, number of states,
    units of work).
    """
    max_states, max_cells, max_work = limits
    a_dead, b_dead = a_delta.shape[0], b_delta.shape[0]
    width = np.int64(b_dead + 1)
    num_classes = a_delta.shape[1]
    work = np.int64(0)
    capacity = 256
    delta = np.full((capacity, num_classes), -1, np.int32)
    keys = np.empty(capacity, np.int64)
    table = np.full(1024, -1, np.int32)
    keys[0] = 0
    table[mix(np.int64(0)) & 1023] = 0
    count = 1
    current = 0
    while current < count:
        i, j = keys[current] // width, keys[current] % width
        work += PAIR * num_classes
        if work > max_work or count * num_classes > max_cells:
            return delta[:0], np.zeros(0, np.bool_), TOO_MANY, max_work + 1
        for k in range(num_classes):
            x = a_delta[i, k] if i < a_dead else -1
            y = b_delta[j, k] if j < b_dead else -1
            if x < 0 and (mode != _OR or y < 0):
                continue
            if y < 0 and mode == _AND:
                continue
            key = np.int64(x if x >= 0 else a_dead) * width + (y if y >= 0 else b_dead)
            slot = mix(key) & (table.size - 1)
            while table[slot] >= 0 and keys[table[slot]] != key:
                slot = (slot + 1) & (table.size - 1)
            target = table[slot]
            if target < 0:
                if count >= max_states:
                    return delta[:0], np.zeros(0, np.bool_), TOO_MANY, work
                if count == capacity:
                    capacity *= 2
                    delta = grown_rows(delta, capacity)
                    keys = longer(keys, capacity)
                target = count
                keys[count] = key
                table[slot] = count
                count += 1
                if 2 * count > table.size:
                    table = np.full(4 * table.size, -1, np.int32)
                    for s in range(count):
                        slot = mix(keys[s]) & (table.size - 1)
                        while table[slot] >= 0:
                            slot = (slot + 1) & (table.size - 1)
                        table[slot] = s
            delta[current, k] = target
        current += 1
    accepting = np.zeros(count, np.bool_)
    for s in range(count):
        i, j = keys[s] // width, keys[s] % width
        in_a = i < a_dead and a_accepting[i]
        in_b = j < b_dead and b_accepting[j]
        if mode == _AND:
            accepting[s] = in_a and in_b
        elif mode == _OR:
            accepting[s] = in_a or in_b
        else:
            accepting[s] = in_a and not in_b
    return delta[:count], accepting, count, work


@helper
def grown_rows(table: np.ndarray, num_rows: int) -> np.ndarray:
    """Return the table, or one twice as long, of at least so many rows; new rows are -1."""
    num_old = table.shape[0]
    table = more_rows(table, num_rows)
    table[num_old:] = -1
    return table


@helper
def sort_members(members: np.ndarray, size: int) -> None:
    """Sort `members[:size]`, mostly few: insertion with falling strides (Shell 1959, Knuth's)."""
    stride = 1
    while 9 * stride < size:
        stride = 3 * stride + 1
    while stride > 0:
        for i in range(stride, size):
            value = members[i]
            j = i - stride
            while j >= 0 and members[j] > value:
                members[j + stride] = members[j]
                j -= stride
            members[j + stride] = value
        stride //= 3


@helper
def new_store(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Make a store of subsets: (members of all, where each begins, their hashes, hash table).

    There is room for about so many of them.
    """
    return (
        np.empty(2 * size + 16, np.int32),
        np.zeros(size + 17, np.int64),
        np.empty(size + 16, np.int64),
        np.full(1024, -1, np.int32),
    )


@helper
def number_subset(
    store: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    count: int,
    members: np.ndarray,
    size: int,
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], int]:
    """Number the subset `members[:size]` (with `count` if it is new); return that and the store."""
    pool, starts, hashes, table = store
    key = np.int64(size)
    for i in range(size):
        key = mix(key * 31 + members[i] + 1)
    slot = key & (table.size - 1)
    while table[slot] >= 0:
        other = table[slot]
        start = starts[other]
        if hashes[other] == key and starts[other + 1] - start == size:
            same = True
            for i in range(size):
                if pool[start + i] != members[i]:
                    same = False
                    break
            if same:
                return store, other
        slot = (slot + 1) & (table.size - 1)
    if count == hashes.size:
        starts = longer(starts, 2 * count + 1)
        hashes = longer(hashes, 2 * count)
    end = starts[count] + size
    pool = longer(pool, end)
    copied(pool[starts[count] :], members, size)
    starts[count + 1] = end
    hashes[count] = key
    table[slot] = count
    if 2 * (count + 1) > table.size:
        table = np.full(4 * table.size, -1, np.int32)
        for s in range(count + 1):
            if hashes[s] == NOT_HASHED:
                continue
            slot = hashes[s] & (table.size - 1)
            while table[slot] >= 0:
                slot = (slot + 1) & (table.size - 1)
            table[slot] = s
    return (pool, starts, hashes, table), count
