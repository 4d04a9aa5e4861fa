"""Compressed transition tables of token automata.

The distinct next states (targets) of a state are numbered in the order in which they are first
found. The state's **pattern** is the list of pairs (class, number of its target). States that only
differ in their targets, such as the positions in a bounded string, share one pattern. So a table of
hundreds of megabytes takes a few.
"""

from __future__ import annotations

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.gcd._support.kernels.mixing import mix
else:
    from gcd._support.kernels.mixing import mix

_64_BITS = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)  # for Python integers


@cython.cclass
class RowStore:
    """Rows of a transition table, which are added one by one and stored in compressed form.

    Args:
        num_states, num_classes: the size of the table.
    """

    def __init__(self, num_states: cython.Py_ssize_t, num_classes: cython.Py_ssize_t) -> None:
        capacity: cython.Py_ssize_t = 16
        while capacity < 2 * num_states:
            capacity *= 2
        self.num_classes = num_classes
        self.num_targets = 0
        self.num_patterns = 0
        self.pattern_of = np.zeros(num_states, np.int32)
        self.begin = np.zeros(num_states, np.int64)
        self.count = np.zeros(num_states, np.int32)
        self.targets = np.empty(4 * num_states + num_classes, np.int32)
        self.start = np.zeros(num_states + 1, np.int32)
        self.entries = np.empty((2, 1024 + num_classes), np.int32)
        self.table = np.zeros(capacity, np.int32)  # pattern plus one; 0 is empty
        self.hashes = np.empty(num_states, np.uint64)
        self.seen = np.zeros(num_states, np.int32)  # the latest state with this target, plus one
        self.number = np.empty(num_states, np.int32)  # of this target in that state
        self.place = np.zeros(num_classes, np.int32)  # number of each class's target, plus one

    def has_room(self):
        """Return whether another row surely fits; call `grow` if it doesn't."""
        return (
            self.num_targets + self.num_classes <= self.targets.shape[0]
            and self.start[self.num_patterns] + self.num_classes <= self.entries.shape[1]
        )

    def grow(self):
        """Double the memory for targets and patterns."""
        if self.num_targets + self.num_classes > self.targets.shape[0]:
            self.targets = np.resize(np.asarray(self.targets), 2 * self.targets.shape[0])
        if self.start[self.num_patterns] + self.num_classes > self.entries.shape[1]:
            entries = np.asarray(self.entries)
            self.entries = np.concatenate((entries, np.empty_like(entries)), axis=1)

    def add(self, state, found, target, count):
        """Add the row of a state: under class `found[i]`, it leads to state `target[i]`."""
        first: cython.Py_ssize_t = self.num_targets
        num_targets: cython.int = 0
        code: cython.ulonglong = 0
        bits: cython.ulonglong = _64_BITS
        last: cython.ulonglong = self.table.shape[0] - 1
        cython.declare(begin=cython.Py_ssize_t, end=cython.Py_ssize_t, known=cython.int)
        for i in range(count):
            t = target[i]
            if self.seen[t] != state + 1:
                self.seen[t] = state + 1
                self.number[t] = num_targets
                self.targets[first + num_targets] = t
                num_targets += 1
            self.place[found[i]] = self.number[t] + 1
            entry: cython.longlong = found[i]
            mixed: cython.ulonglong = int(mix((entry << 32) + self.number[t]))
            # A sum, because rows with the same pairs in another order have the same pattern.
            code = (code + mixed) & bits
        self.begin[state] = first
        self.count[state] = num_targets
        self.num_targets += num_targets
        slot = code & last
        while True:
            known = self.table[slot] - 1
            if known < 0:
                known = self.num_patterns
                self.table[slot] = known + 1
                self.hashes[known] = code
                end = self.start[known]
                for c in range(self.num_classes):
                    if self.place[c] > 0:
                        self.entries[0, end] = c
                        self.entries[1, end] = self.place[c] - 1
                        end += 1
                self.num_patterns += 1
                self.start[self.num_patterns] = end
                break
            begin = self.start[known]
            end = self.start[known + 1]
            if self.hashes[known] == code and end - begin == count:
                same = True
                for i in range(begin, end):
                    if self.place[self.entries[0, i]] != self.entries[1, i] + 1:
                        same = False
                        break
                if same:
                    break
            slot = (slot + 1) & last
        self.pattern_of[state] = known
        for i in range(count):
            self.place[found[i]] = 0

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return the fields of `gcd._tokens.rows.Rows`, with the targets in the order of states."""
        count, begin = np.asarray(self.count), np.asarray(self.begin)
        start = np.zeros(count.size + 1, np.int32)
        np.cumsum(count, out=start[1:])
        targets = np.asarray(self.targets)[: self.num_targets]
        if np.array_equal(begin, start[:-1]):
            targets = targets.copy()
        else:
            order = np.repeat(begin - start[:-1], count)
            order += np.arange(self.num_targets)
            targets = targets[order]
        starts = np.asarray(self.start)[: self.num_patterns + 1].copy()
        classes, numbers = np.asarray(self.entries)[:, : starts[-1]]
        pattern_of = np.asarray(self.pattern_of)
        return pattern_of, start, targets, starts, classes.copy(), numbers.copy()


def compress(row: cython.const[cython.int][:, ::1]) -> tuple[np.ndarray, ...]:
    """Return the fields of `gcd._tokens.rows.Rows` for a table of next states; O(S C)."""
    num_states: cython.Py_ssize_t = row.shape[0]
    num_classes: cython.Py_ssize_t = row.shape[1]
    found: cython.int[::1] = np.empty(num_classes, np.int32)
    target: cython.int[::1] = np.empty(num_classes, np.int32)
    store: RowStore = RowStore(num_states, num_classes)
    count: cython.Py_ssize_t
    for s in range(num_states):
        count = 0
        for c in range(num_classes):
            if row[s, c] >= 0:
                found[count] = c
                target[count] = row[s, c]
                count += 1
        if not store.has_room():
            store.grow()
        store.add(s, found, target, count)
    return store.arrays()


def expand(
    patterns: cython.const[cython.int][::1],
    own: cython.const[cython.int][::1],
    begin: cython.const[cython.int][::1],
    classes: cython.const[cython.int][::1],
    number: cython.const[cython.int][::1],
    value: cython.const[cython.int][::1],
    out: cython.int[:, ::1],
) -> None:
    """Write a value for each target to the table `out`; other arguments are fields of `Rows`."""
    cython.declare(p=cython.Py_ssize_t, i=cython.Py_ssize_t)
    with cython.nogil:
        for s in range(patterns.shape[0]):
            p = patterns[s]
            for i in range(begin[p], begin[p + 1]):
                out[s, classes[i]] = value[own[s] + number[i]]


def equal_classes(
    begin: cython.const[cython.int][::1],
    class_of: cython.const[cython.int][::1],
    number: cython.const[cython.int][::1],
    num_classes: cython.Py_ssize_t,
) -> np.ndarray:
    """Return, for each class of tokens, the first class that leads to the same state everywhere."""
    # Equal classes have the same target number in every pattern of `gcd._tokens.rows.Rows`, so
    # their sums of random weights times these numbers are equal. Only such classes are compared.
    bits: cython.ulonglong = _64_BITS
    total_array = np.zeros(num_classes, np.uint64)
    total: cython.ulonglong[::1] = total_array
    count: cython.int[::1] = np.zeros(num_classes, np.int32)
    place: cython.int[::1] = np.zeros(num_classes, np.int32)
    cython.declare(weight=cython.ulonglong, i=cython.Py_ssize_t)
    with cython.nogil:
        for p in range(begin.shape[0] - 1):
            weight = mix(p + 1)
            for i in range(begin[p], begin[p + 1]):
                target: cython.ulonglong = int(number[i])
                before: cython.ulonglong = int(total[class_of[i]])
                total[class_of[i]] = (before + weight * (target + 1)) & bits
                count[class_of[i]] += 1
    _, found, inverse = np.unique(total_array, return_index=True, return_inverse=True)
    first_array = np.ascontiguousarray(found[inverse], np.int64)
    first: cython.longlong[::1] = first_array
    # If sums agree by chance, classes are left alone.
    for c in range(num_classes):
        if count[first[c]] != count[c]:
            first[c] = c
    for p in range(begin.shape[0] - 1):
        for i in range(begin[p], begin[p + 1]):
            place[class_of[i]] = number[i] + 1
        for i in range(begin[p], begin[p + 1]):
            if place[first[class_of[i]]] != number[i] + 1:
                first[class_of[i]] = class_of[i]
        for i in range(begin[p], begin[p + 1]):
            place[class_of[i]] = 0
    return first_array
