"""This module refines partitions of entries (distinct token strings) by where states lead them.

`Partition` is a tuple of arrays that compiled code passes around:

    class_of     class of every entry
    size         number of entries of every class
    first_new    head of a class's chain of new classes while it is being split, and one; else 0
    next_new     next class in the chain, -1 at its end
    goal         the target that put entries into this new class
    free         stack of class numbers that were given back
    number       how many class numbers were ever used, how many lie on the stack
    touched      work space: classes being split

Class numbers are reused, so n entries need no more than 2 n + 1 of them.
"""

from __future__ import annotations

import numpy as np

from gcd.support.compiled import kernel


@kernel
def one_class(num_entries: int) -> tuple[np.ndarray, ...]:
    """Make the partition into a single class, number 0."""
    return from_classes(np.zeros(num_entries, np.int32), 1)


@kernel
def from_classes(classes: np.ndarray, num_classes: int) -> tuple[np.ndarray, ...]:
    """Make a partition into given classes, whose numbers lie below `num_classes`."""
    num_entries = classes.size
    capacity = 2 * num_entries + 1
    class_of = np.empty(num_entries, np.int32)
    # Zeros need not be written: few of these are ever touched.
    size = np.zeros(capacity, np.int32)
    first_new = np.zeros(capacity, np.int32)
    next_new = np.empty(capacity, np.int32)
    goal = np.empty(capacity, np.int32)
    free = np.empty(capacity, np.int32)
    count = np.array([num_classes, 0], np.int32)
    for i in range(num_entries):
        class_of[i] = classes[i]
        size[classes[i]] += 1
    touched = np.empty(num_entries, np.int32)
    return class_of, size, first_new, next_new, goal, free, count, touched


@kernel
def refine(
    partition: tuple[np.ndarray, ...], found: np.ndarray, target: np.ndarray, count: int
) -> None:
    """Split classes so that the entries of one class go to one target.

    Entry `found[i]` goes to `target[i]`, for i below `count`; all others go nowhere. Every class
    that is touched grows a chain of new classes, one for each target.
    """
    class_of, size, first_new, next_new, goal, free, number, touched = partition
    used, num_free = number[0], number[1]
    num_touched = 0
    i = 0
    while i < count:
        old, here = class_of[found[i]], target[i]
        # A run of neighbours in one class with one target is dealt with at once.
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
    number[0], number[1] = used, num_free


@kernel
def number_tokens(
    class_of_entry: np.ndarray, entry_of_token: np.ndarray, is_eos: np.ndarray, capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    """Number the classes of tokens by their first tokens, and return those tokens as well.

    `class_of_entry` lies below `capacity`. Tokens without an entry share a class of their own;
    EOS tokens get -1.
    """
    number = np.zeros(capacity + 1, np.int32)  # and one, as zeros need not be written
    first = np.empty(min(entry_of_token.size, capacity + 1), np.int64)
    class_of = np.empty(entry_of_token.size, np.int32)
    count = 0
    for token in range(entry_of_token.size):
        if is_eos[token]:
            class_of[token] = -1
            continue
        entry = entry_of_token[token]
        old = class_of_entry[entry] if entry >= 0 else capacity
        if number[old] == 0:
            first[count] = token
            count += 1
            number[old] = count
        class_of[token] = number[old] - 1
    return class_of, first[:count].copy()


@kernel
def first_equal(table: np.ndarray, num_rows: int, num_columns: int) -> np.ndarray:
    """Find for each column the first one that is equal to it, looking at the first rows only.

    Equal columns have equal sums under random weights; those that do are then compared.
    """
    total = np.zeros(num_columns, np.uint64)
    weight = np.uint64(0x9E3779B97F4A7C15)
    for s in range(num_rows):
        # Multiplicative congruential weights, odd, one for each row.
        weight *= np.uint64(0xD1342543DE82EF95)
        row = table[s]
        for c in range(num_columns):
            total[c] += weight * np.uint64(row[c] + 1)
    first = np.arange(num_columns)
    order = np.argsort(total, kind="mergesort")
    similar = 0
    for i in range(1, num_columns):
        if total[order[i]] == total[order[i - 1]]:
            first[order[i]] = first[order[i - 1]]
            similar += 1
    if similar == 0:
        return first
    merged = np.flatnonzero(first != np.arange(num_columns))
    for s in range(num_rows):
        for c in merged:
            if table[s, c] != table[s, first[c]]:
                first[c] = c  # sums may agree by chance: such a column stays alone
    return first
