"""Numbering of distinct subsets of states, for a subset construction."""

from __future__ import annotations

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.gcd._support.kernels.mixing import mix
else:
    from gcd._support.kernels.mixing import mix

NOT_HASHED = -1
_NOT_HASHED = cython.declare(cython.longlong, -1)
# Cython would use Python objects for arithmetic with a literal of this size.
_56_BITS = cython.declare(cython.longlong, 0xFFFFFFFFFFFFFF)


@cython.cfunc
def _empty_table(size: cython.Py_ssize_t) -> cython.int[::1]:
    table: cython.int[::1] = np.empty(size, np.int32)
    slot: cython.Py_ssize_t
    for slot in range(size):
        table[slot] = -1
    return table


@cython.cclass
class SubsetStore:
    """Concatenated subsets of states, and a hash table to look them up.

    A caller that finds a subset in another way, such as by its only state, may add it without the
    hash table. It then writes the members to `pool`, the next entry of `starts`, and the hash
    `NOT_HASHED`, and checks that the arrays are large enough.

    Args:
        size: expected number of subsets.

    Attributes:
        pool: the members of all subsets, one subset after the other.
        starts: index in `pool` at which each subset starts, and the end of the last one.
        hashes: the hash of each subset.
    """

    def __init__(self, size: cython.Py_ssize_t) -> None:
        self.pool = np.empty(2 * size + 16, np.int32)
        self.starts = np.empty(size + 17, np.int64)
        self.starts[0] = 0
        self.hashes = np.empty(size + 16, np.int64)
        self.table = _empty_table(1024)

    @cython.cfunc
    def number(
        self, count: cython.longlong, members: cython.int[::1], size: cython.longlong
    ) -> cython.longlong:
        """Return the number of the subset `members[:size]`, and add it if it is new.

        A new subset gets the number `count`. Adding it may reallocate the arrays, so callers have
        to read the attributes again.
        """
        i: cython.Py_ssize_t
        slot: cython.longlong
        other: cython.longlong
        start: cython.longlong
        last: cython.longlong = self.table.shape[0] - 1
        member: cython.longlong
        key: cython.longlong = size
        for i in range(size):
            member = int(members[i])
            key = mix((key & _56_BITS) * 31 + member + 1)
        slot = key & last
        while self.table[slot] >= 0:
            other = self.table[slot]
            start = self.starts[other]
            if self.hashes[other] == key and self.starts[other + 1] - start == size:
                same: cython.bint = True
                for i in range(size):
                    if self.pool[start + i] != members[i]:
                        same = False
                        break
                if same:
                    return other
            slot = (slot + 1) & last
        if count == self.hashes.shape[0]:
            self.starts = np.resize(np.asarray(self.starts), 2 * count + 1)
            self.hashes = np.resize(np.asarray(self.hashes), 2 * count)
        start = self.starts[count]
        if start + size > self.pool.shape[0]:
            longer: cython.longlong = max(start + size, 2 * self.pool.shape[0])
            self.pool = np.resize(np.asarray(self.pool), longer)
        for i in range(size):
            self.pool[start + i] = members[i]
        self.starts[count + 1] = start + size
        self.hashes[count] = key
        self.table[slot] = count
        if 2 * (count + 1) > last + 1:
            last = 4 * (last + 1) - 1
            self.table = _empty_table(last + 1)
            for i in range(count + 1):
                if self.hashes[i] == _NOT_HASHED:
                    continue
                slot = self.hashes[i] & last
                while self.table[slot] >= 0:
                    slot = (slot + 1) & last
                self.table[slot] = i
        return count
