"""This module computes the patterns of transitions and the bits of classes that serving needs.

Compiled once for each token automaton, when `gcd.serving.matcher` takes it over;
`gcd.serving.kernels.table` lists the arrays, `gcd.serving.kernels.masks` makes the steps.
"""

from __future__ import annotations

import numpy as np

from gcd.support.compiled import kernel
from gcd.support.kernels.growing import longer

# In words written, part of a row: a class is kept as a whole row from a half on, where pairs take
# as much memory.
_DENSE_PART = 2


@kernel
def pairs_of_classes(
    class_of: np.ndarray, num_classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens of each class as (word, bits): start of each class, words, bits.

    Also how many tokens each class has, and one of them. O(V).
    """
    last = np.full(num_classes, -1, np.int32)
    start = np.zeros(num_classes + 1, np.int32)
    size = np.zeros(num_classes, np.int64)
    a_token = np.zeros(num_classes, np.int64)
    for token in range(class_of.size):
        c = class_of[token]
        start[c + 1] += last[c] != token >> 5
        last[c] = token >> 5
        size[c] += 1
        a_token[c] = token
    for c in range(num_classes):
        start[c + 1] += start[c]
    at = start[:-1] - 1
    last[:] = -1
    words = np.empty(start[num_classes], np.int32)
    bits = np.zeros(start[num_classes], np.int32)
    for token in range(class_of.size):
        c = class_of[token]
        at[c] += last[c] != token >> 5
        last[c] = token >> 5
        words[at[c]] = token >> 5
        bits[at[c]] |= np.int32(1) << np.int32(token & 31)
    return start, words, bits, size, a_token


@kernel
def spread(
    start: np.ndarray, words: np.ndarray, bits: np.ndarray, alive: np.ndarray, num_words: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Make rows for classes of many words, pairs for the others, neither for those not alive."""
    num_classes = start.size - 1
    dense_of = np.full(num_classes, -1, np.int32)
    kept = np.zeros(num_classes + 1, np.int32)
    num_dense = 0
    for c in range(num_classes):
        count = start[c + 1] - start[c]
        if not alive[c]:
            count = 0
        elif _DENSE_PART * count >= num_words:
            dense_of[c] = num_dense
            num_dense += 1
            count = 0
        kept[c + 1] = kept[c] + count
    dense = np.zeros((num_dense, num_words), np.int32)
    kept_words = np.empty(kept[num_classes], np.int32)
    kept_bits = np.empty(kept[num_classes], np.int32)
    for c in range(num_classes):
        if dense_of[c] >= 0:
            for i in range(start[c], start[c + 1]):
                dense[dense_of[c], words[i]] = bits[i]
        else:
            for i in range(kept[c + 1] - kept[c]):
                kept_words[kept[c] + i] = words[start[c] + i]
                kept_bits[kept[c] + i] = bits[start[c] + i]
    return kept, kept_words, kept_bits, dense_of, dense


@kernel
def patterns(
    delta: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Store rows of transitions as patterns that many states share and a few targets of their own.

    A row's targets are numbered as they first appear; its pattern is the list of (class, number).
    Returns (pattern of each state, start of its targets, targets, start of each pattern, its
    classes, their numbers, largest of `steps` among each state's targets); O(S C).
    """
    num_states, num_classes = delta.shape
    pattern_of = np.empty(num_states, np.int32)
    target_start = np.zeros(num_states + 1, np.int32)
    reach = np.zeros(num_states, np.int32)
    targets = np.empty(16 * num_states + 16, np.int32)
    start = np.zeros(num_states + 1, np.int32)
    classes = np.empty(4096, np.int32)
    numbers = np.empty(4096, np.int32)
    num_patterns = 0

    capacity = 16
    while capacity < 2 * num_states:
        capacity *= 2
    table = np.full(capacity, -1, np.int32)
    hashes = np.empty(num_states, np.int64)
    seen = np.full(num_states, -1, np.int32)
    number = np.empty(num_states, np.int32)
    for s in range(num_states):
        first, begin = target_start[s], start[num_patterns]
        targets = longer(targets, first + num_classes)
        classes = longer(classes, begin + num_classes)
        numbers = longer(numbers, begin + num_classes)
        row = delta[s]
        count, end, code = 0, begin, np.int64(0)
        for c in range(num_classes):
            t = row[c]
            if t < 0:
                continue
            if seen[t] != s:
                seen[t] = s
                number[t] = count
                targets[first + count] = t
                reach[s] = max(reach[s], steps[t])
                count += 1
            classes[end] = c
            numbers[end] = number[t]
            code = (code ^ (c + num_classes * number[t])) * np.int64(0x5851F42D4C957F2D)
            code ^= code >> np.int64(31)
            end += 1
        target_start[s + 1] = first + count
        place = code & (capacity - 1)
        while True:
            known = table[place]
            if known < 0:
                table[place] = num_patterns
                hashes[num_patterns] = code
                known = num_patterns
                num_patterns += 1
                start[num_patterns] = end
                break
            if hashes[known] == code and start[known + 1] - start[known] == end - begin:
                same = True
                for i in range(end - begin):
                    if (
                        classes[start[known] + i] != classes[begin + i]
                        or numbers[start[known] + i] != numbers[begin + i]
                    ):
                        same = False
                        break
                if same:
                    break
            place = (place + 1) & (capacity - 1)
        pattern_of[s] = known
    return (
        pattern_of,
        target_start,
        targets[: target_start[num_states]].copy(),
        start[: num_patterns + 1].copy(),
        classes[: start[num_patterns]].copy(),
        numbers[: start[num_patterns]].copy(),
        reach,
    )
