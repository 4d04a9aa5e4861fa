"""Partitions of entries (distinct token strings) into classes, split by the states they lead to.

A partition is a tuple of arrays, which these functions modify:

    class_of     class of every entry
    size         number of entries of every class
        first_new    one plus the first new class that a class is being split into; 0 otherwise
    next_new     next of these new classes, -1 after the last one
    goal         the state that the entries of this new class lead to
    free         stack of released class numbers
        number       number of class numbers ever used, and number of elements on the stack
    touched      scratch space for the classes being split

Class numbers are reused, so n entries need no more than 2 n + 1 of them.
"""

from __future__ import annotations

import cython
import numpy as np


@cython.cclass
class Views:
    """Views of the arrays of a partition of token strings into classes, for compiled loops."""

    def __init__(self, partition: tuple[np.ndarray, ...]) -> None:
        self.class_of, self.size, self.first_new, self.next_new = partition[:4]
        self.goal, self.free, self.number, self.touched = partition[4:]


def one_class(num_entries: int) -> tuple[np.ndarray, ...]:
    """Make a partition with all entries (token strings) in one class, whose number is 0."""
    return from_classes(np.zeros(num_entries, np.int32), 1)


def from_classes(classes: np.ndarray, num_classes: int) -> tuple[np.ndarray, ...]:
    """Make a partition from the class of each entry; the classes are below `num_classes`."""
    num_entries = classes.size
    capacity = 2 * num_entries + 1
    # np.zeros doesn't write the memory; few of the entries are ever used.
    size = np.zeros(capacity, np.int32)
    size[:num_classes] = np.bincount(classes, minlength=num_classes)
    first_new = np.zeros(capacity, np.int32)
    next_new = np.empty(capacity, np.int32)
    goal = np.empty(capacity, np.int32)
    free = np.empty(capacity, np.int32)
    count = np.array([num_classes, 0], np.int32)
    touched = np.empty(num_entries, np.int32)
    return np.array(classes, np.int32), size, first_new, next_new, goal, free, count, touched


def refine(
    partition: tuple[np.ndarray, ...], found: np.ndarray, target: np.ndarray, count: int
) -> None:
    """Split classes so that all entries (token strings) of a class have the same target."""
    refine_views(Views(partition), found, target, count)


def refine_views(partition, found, target, count):
    """Split classes as `refine` does, for compiled loops that call it often."""
    class_of: cython.int[::1] = partition.class_of
    size: cython.int[::1] = partition.size
    first_new: cython.int[::1] = partition.first_new
    next_new: cython.int[::1] = partition.next_new
    goal: cython.int[::1] = partition.goal
    free: cython.int[::1] = partition.free
    touched: cython.int[::1] = partition.touched
    used: cython.int = partition.number[0]
    num_free: cython.int = partition.number[1]
    num_touched: cython.Py_ssize_t = 0
    new: cython.int
    i: cython.Py_ssize_t = 0
    while i < count:
        old = class_of[found[i]]
        here = target[i]
        # Process successive entries of one class with one target at once.
        end = i + 1
        while end < count and target[end] == here and class_of[found[end]] == old:
            end += 1
        new = first_new[old] - 1
        if new < 0:
            touched[num_touched] = old
            num_touched += 1
        while new >= 0 and goal[new] != here:
            new = next_new[new]
        if new < 0:
            if num_free > 0:
                num_free -= 1
                new = free[num_free]
            else:
                new = used
                used += 1
            goal[new] = here
            next_new[new] = first_new[old] - 1
            first_new[old] = new + 1
        for j in range(i, end):
            class_of[found[j]] = new
        size[new] += end - i
        size[old] -= end - i
        i = end
    for i in range(num_touched):
        old = touched[i]
        first_new[old] = 0
        if size[old] == 0:
            free[num_free] = old
            num_free += 1
    partition.number[0] = used
    partition.number[1] = num_free


def number_tokens(
    class_of: cython.const[cython.int][::1],
    entry_of: cython.const[cython.int][::1],
    is_eos: np.ndarray,
    capacity: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Assign numbers to token classes in the order of their first tokens; also return these tokens.

    `class_of` has the class of each entry (distinct token string), below `capacity`. Tokens without
    bytes have no entry, and form one class. EOS tokens get -1 instead of a class.
    """
    ends: cython.const[cython.uchar][::1] = is_eos.view(np.uint8)
    alone: cython.Py_ssize_t = capacity
    # Numbers are stored plus one, so that np.zeros can be used.
    number: cython.int[::1] = np.zeros(capacity + 1, np.int32)
    first: cython.longlong[::1] = np.empty(min(entry_of.shape[0], capacity + 1), np.int64)
    numbers: cython.int[::1] = np.empty(entry_of.shape[0], np.int32)
    count: cython.int = 0
    for token in range(entry_of.shape[0]):
        if ends[token]:
            numbers[token] = -1
            continue
        old = class_of[entry_of[token]] if entry_of[token] >= 0 else alone
        if number[old] == 0:
            first[count] = token
            count += 1
            number[old] = count
        numbers[token] = number[old] - 1
    return np.asarray(numbers), np.array(first[:count])
