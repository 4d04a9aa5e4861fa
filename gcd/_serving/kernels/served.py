"""Arrays of served constraints: a compressed transition table, and token classes as bits.

`gcd._serving.served` computes them once for each token automaton. `gcd._serving.kernels.table`
lists the arrays, and `gcd._serving.kernels.masks` makes masks from them.
"""

from __future__ import annotations

import cython
import numpy as np

# A class is stored as a whole mask if its pairs would take more than this fraction of a mask's
# words (a half), because pairs then take as much memory.
_DENSE_PART = cython.declare(cython.int, 2)

_FACTOR = cython.declare(cython.ulonglong, 0x5851F42D4C957F2D)
_64_BITS = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)  # for Python integers
_ONE = cython.declare(cython.uint, 1)


def pairs_of_classes(
    class_of: np.ndarray, num_classes: cython.Py_ssize_t
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return each class's tokens as bits of a mask: the index of each nonzero word, and its bits.

    Returns:
        (start of each class in the next two arrays, indices of words, bits in these words, number
        of tokens of each class, one token of each class). O(V).
    """
    start_array = np.zeros(num_classes + 1, np.int32)
    size_array = np.zeros(num_classes, np.int64)
    token_array = np.zeros(num_classes, np.int64)
    classes: cython.const[cython.int][::1] = class_of
    start: cython.int[::1] = start_array
    size: cython.longlong[::1] = size_array
    a_token: cython.longlong[::1] = token_array
    last: cython.int[::1] = np.full(num_classes, -1, np.int32)  # the latest word of each class
    pair: cython.int[::1] = np.empty(num_classes, np.int32)  # the latest pair of each class
    token: cython.Py_ssize_t
    word: cython.int
    c: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for token in range(classes.shape[0]):
        c = classes[token]
        word = token >> 5
        start[c + 1] += last[c] != word
        last[c] = word
        size[c] += 1
        a_token[c] = token
    for c in range(num_classes):
        start[c + 1] += start[c]
        last[c] = -1
        pair[c] = start[c] - 1
    words_array = np.empty(start[num_classes], np.int32)
    bits_array = np.zeros(start[num_classes], np.uint32)
    words: cython.int[::1] = words_array
    bits: cython.uint[::1] = bits_array
    for token in range(classes.shape[0]):
        c = classes[token]
        word = token >> 5
        i = pair[c] + (last[c] != word)
        last[c] = word
        pair[c] = i
        words[i] = word
        bits[i] |= _ONE << (token & 31)
    return start_array, words_array, bits_array.view(np.int32), size_array, token_array


def spread(
    start: np.ndarray,
    words: np.ndarray,
    bits: np.ndarray,
    alive: np.ndarray,
    num_words: cython.Py_ssize_t,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Convert token classes with tokens in many words of a mask to whole masks.

    Other classes remain pairs (index of a word, bits in it), from `start`, `words` and `bits`.
    Classes that no state allows (`alive` is false) are stored in neither form.
    """
    start_of: cython.const[cython.int][::1] = start
    word: cython.const[cython.int][::1] = words
    bit: cython.const[cython.int][::1] = bits
    lives: cython.const[cython.uchar][::1] = alive.view(np.uint8)
    num_classes: cython.Py_ssize_t = start_of.shape[0] - 1
    dense_of_array = np.full(num_classes, -1, np.int32)
    kept_array = np.zeros(num_classes + 1, np.int32)
    dense_of: cython.int[::1] = dense_of_array
    kept: cython.int[::1] = kept_array
    num_dense: cython.int = 0
    count: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    first: cython.Py_ssize_t
    c: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for c in range(num_classes):
        count = start_of[c + 1] - start_of[c]
        if not lives[c]:
            count = 0
        elif _DENSE_PART * count >= num_words:
            dense_of[c] = num_dense
            num_dense += 1
            count = 0
        kept[c + 1] = kept[c] + count
    dense_array = np.zeros((num_dense, num_words), np.int32)
    kept_words_array = np.empty(kept[num_classes], np.int32)
    kept_bits_array = np.empty(kept[num_classes], np.int32)
    dense: cython.int[:, ::1] = dense_array
    kept_words: cython.int[::1] = kept_words_array
    kept_bits: cython.int[::1] = kept_bits_array
    for c in range(num_classes):
        if dense_of[c] >= 0:
            for i in range(start_of[c], start_of[c + 1]):
                dense[dense_of[c], word[i]] = bit[i]
        else:
            begin = kept[c]
            first = start_of[c]
            for i in range(kept[c + 1] - begin):
                kept_words[begin + i] = word[first + i]
                kept_bits[begin + i] = bit[first + i]
    return kept_array, kept_words_array, kept_bits_array, dense_of_array, dense_array


def patterns(
    delta: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Compress a transition table: find states that differ only in their few next states.

    The distinct next states (targets) of a state are numbered as they first appear in its row. The
    row's pattern is the list of pairs (class, number of its target). States share patterns. O(S C).

    Returns:
        (pattern of each state, start of each state's targets, all targets, start of each pattern,
        classes of all patterns, target numbers of all patterns, largest of `steps` among each
        state's targets).
    """
    row: cython.const[cython.int][:, ::1] = delta
    steps_of: cython.const[cython.int][::1] = steps
    num_states: cython.Py_ssize_t = row.shape[0]
    num_classes: cython.Py_ssize_t = row.shape[1]
    pattern_of_array = np.empty(num_states, np.int32)
    target_start_array = np.zeros(num_states + 1, np.int32)
    reach_array = np.zeros(num_states, np.int32)
    targets_array = np.empty(16 * num_states + 16 + num_classes, np.int32)
    start_array = np.zeros(num_states + 1, np.int32)
    entries_array = np.empty((2, 4096 + num_classes), np.int32)
    pattern_of: cython.int[::1] = pattern_of_array
    target_start: cython.int[::1] = target_start_array
    reach: cython.int[::1] = reach_array
    targets: cython.int[::1] = targets_array
    start: cython.int[::1] = start_array
    entries: cython.int[:, ::1] = entries_array  # rows: a class, and the number of its target
    num_patterns: cython.int = 0

    capacity: cython.Py_ssize_t = 16
    while capacity < 2 * num_states:
        capacity *= 2
    table: cython.int[::1] = np.full(capacity, -1, np.int32)
    hashes: cython.ulonglong[::1] = np.empty(num_states, np.uint64)
    seen: cython.int[::1] = np.full(num_states, -1, np.int32)
    number: cython.int[::1] = np.empty(num_states, np.int32)
    code: cython.ulonglong
    entry: cython.ulonglong
    first: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    count: cython.int
    end: cython.Py_ssize_t
    last: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    other: cython.Py_ssize_t
    known: cython.int
    most: cython.int
    t: cython.int
    same: cython.bint
    s: cython.Py_ssize_t
    c: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for s in range(num_states):
        first = target_start[s]
        begin = start[num_patterns]
        if first + num_classes > targets.shape[0]:
            targets_array = np.resize(targets_array, 2 * targets.shape[0])
            targets = targets_array
        if begin + num_classes > entries.shape[1]:
            entries_array = np.concatenate((entries_array, np.empty_like(entries_array)), axis=1)
            entries = entries_array
        count = 0
        end = begin
        code = 0
        most = 0
        for i in range(0, num_classes, 8):
            last = min(i + 8, num_classes)
            # Most entries are -1. The AND of several entries is negative exactly if all of them
            # are.
            if (
                last == i + 8
                and (
                    (row[s, i] & row[s, i + 1] & row[s, i + 2] & row[s, i + 3])
                    & (row[s, i + 4] & row[s, i + 5] & row[s, i + 6] & row[s, i + 7])
                )
                < 0
            ):
                continue
            for c in range(i, last):
                t = row[s, c]
                if t < 0:
                    continue
                if seen[t] != s:
                    seen[t] = s
                    number[t] = count
                    targets[first + count] = t
                    if steps_of[t] > most:
                        most = steps_of[t]
                    count += 1
                entries[0, end] = c
                entries[1, end] = number[t]
                entry = c + num_classes * cython.cast(cython.Py_ssize_t, number[t])
                code = ((code ^ entry) * _FACTOR) & _64_BITS
                code ^= code >> 31
                end += 1
        reach[s] = most
        target_start[s + 1] = first + count
        slot = code & (capacity - 1)
        while True:
            known = table[slot]
            if known < 0:
                known = num_patterns
                table[slot] = known
                hashes[known] = code
                num_patterns += 1
                start[num_patterns] = end
                break
            other = start[known]
            if hashes[known] == code and start[known + 1] - other == end - begin:
                same = True
                for i in range(end - begin):
                    if (
                        entries[0, other + i] != entries[0, begin + i]
                        or entries[1, other + i] != entries[1, begin + i]
                    ):
                        same = False
                        break
                if same:
                    break
            slot = (slot + 1) & (capacity - 1)
        pattern_of[s] = known
    return (
        pattern_of_array,
        target_start_array,
        targets_array[: target_start[num_states]].copy(),
        start_array[: num_patterns + 1].copy(),
        entries_array[0, : start[num_patterns]].copy(),
        entries_array[1, : start[num_patterns]].copy(),
        reach_array,
    )
