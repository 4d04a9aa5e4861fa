"""Sets of code points and texts of them, as byte automata.

UTF-8 writes a code point as a number in base 64 (six bits for each byte), after a first byte that
gives the number of digits. A set of code points consists of a few **ranges**, and a range of
numbers is a small tree of digits: at each level, only the digits of its two ends lead to new
subtrees. Equal subtrees are shared (hash-consing). So the tree of n ranges has O(n) nodes for a
fixed number of digits, regardless of the number of code points.

Surrogates (U+D800 to U+DFFF) don't occur in texts, so no set contains them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from gcd._automata.automaton import Automaton
from gcd._automata.byte_classes import NUM_BYTES, merge_equal_columns
from gcd._automata.limits import cache_with_price, max_states
from gcd._errors import StateLimitError, show_count

Ranges = tuple[tuple[int, int], ...]
"""Set of code points: pairs (first, last) in ascending order, with gaps in between."""

Piece = tuple[int, int, int]
"""Triple (first, last, state): the numbers from first to last lead to the state."""

SCALARS: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # every code point of Unicode texts
# Code points by the number of their UTF-8 bytes, with the fixed bits of the first byte.
_LENGTHS = ((0x80, 0x7FF, 0xC0), (0x800, 0xFFFF, 0xE0), (0x10000, 0x10FFFF, 0xF0))


def ranges(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Return the code points in ranges (first, last), which may overlap, without surrogates."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(pairs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    parts = ((max(a, low), min(b, high)) for a, b in merged for low, high in SCALARS)
    return tuple(sorted((a, b) for a, b in parts if a <= b))


def complement(inside: Ranges) -> Ranges:
    """Return all code points that are not in a set."""
    ends = [-1, *(end for pair in inside for end in pair), 0x110000]
    gaps = ((a + 1, b - 1) for a, b in zip(ends[::2], ends[1::2], strict=True))
    return ranges((a, b) for a, b in gaps if a <= b)


@cache_with_price(1024)
def one_of(inside: Ranges) -> Automaton:
    """Return the language of one code point from a set, in UTF-8."""
    count = 2  # the initial and the final state
    edges: list[tuple[int, int, int, int]] = []

    def state(digits: tuple[Piece, ...]) -> int:
        nonlocal count
        edges.extend((count, 0x80 + first, 0x80 + last, target) for first, last, target in digits)
        count += 1
        return count - 1

    trees = _DigitTrees(state)
    edges += [(0, a, min(b, 0x7F), 1) for a, b in inside if a <= 0x7F]
    for number, (low, high, fixed) in enumerate(_LENGTHS):
        pieces = [(max(a, low), min(b, high), 1) for a, b in inside if a <= high and b >= low]
        for first, last, child in trees.split(number + 2, pieces):
            edges.append((0, fixed + first, fixed + last, child))
    table = np.full((count, NUM_BYTES), -1, np.int32)
    for source, first, last, target in edges:
        table[source, first : last + 1] = target
    delta, class_of_byte = merge_equal_columns(table, np.arange(NUM_BYTES, dtype=np.uint8))
    return Automaton.minimal(delta, np.arange(count) == 1, class_of_byte)


@cache_with_price(maxsize=1)
def characters() -> Automaton:
    """Return the language of one code point in UTF-8, without overlong forms and surrogates."""
    return one_of(SCALARS)


@cache_with_price(maxsize=256)
def texts(minimum: int = 0, maximum: int | None = None) -> Automaton:
    """Return all UTF-8 texts of `minimum` to `maximum` code points (None: no upper bound)."""
    return repeat(characters(), minimum, maximum)


def anything() -> Automaton:
    """Return the language of all UTF-8 texts, including the empty one."""
    return texts()


def repeat(character: Automaton, minimum: int, maximum: int | None) -> Automaton:
    """Return `minimum` to `maximum` repetitions of a character (None: no upper bound)."""
    longest = max(minimum, maximum or 0)
    if longest * character.num_states > max_states():
        raise StateLimitError(
            max_states(), what=f"a string with a length limit of {show_count(longest)}"
        )
    return character.repeat(minimum, maximum)


class _DigitTrees:
    """Trees of states that read a fixed count of base-64 digits; equal subtrees are shared.

    `make` makes a state, given the targets for each range of its next digit.
    """

    def __init__(self, make: Callable[[tuple[Piece, ...]], int]) -> None:
        self._make = make
        self._state_of: dict[tuple[int, tuple[Piece, ...]], int] = {}
        self._same: dict[tuple[Piece, ...], int] = {}

    def state(self, digits: int, pieces: tuple[Piece, ...]) -> int:
        """Return the state that reads `digits` digits and leads to the target of their piece."""
        if digits == 0:
            return pieces[0][2]
        key = digits, pieces
        known = self._state_of.get(key)
        if known is None:
            edges = tuple(self.split(digits, pieces))
            known = self._same.get(edges)
            if known is None:
                known = self._same[edges] = self._make(edges)
            self._state_of[key] = known
        return known

    def split(self, digits: int, pieces: Iterable[Piece]) -> list[Piece]:
        """Return ranges of the first digit of `pieces`, with the states for the others."""
        size = 64 ** (digits - 1)
        edges: list[Piece] = []
        # First digits of numbers that belong to several pieces, or only in part to one piece.
        divided: dict[int, list[Piece]] = {}
        for first, last, target in pieces:
            while first <= last:
                digit, offset = divmod(first, size)
                whole = (last + 1 - first) // size
                if offset == 0 and whole:
                    child = self.state(digits - 1, ((0, size - 1, target),))
                    edges.append((digit, digit + whole - 1, child))
                    first += whole * size
                else:
                    end = min(last, (digit + 1) * size - 1)
                    divided.setdefault(digit, []).append((offset, end - digit * size, target))
                    first = end + 1
        for digit, parts in divided.items():
            edges.append((digit, digit, self.state(digits - 1, tuple(parts))))
        return _join(sorted(edges))


def _join(pieces: Iterable[Piece]) -> list[Piece]:
    """Merge adjacent ranges of numbers with the same target; they must be in ascending order."""
    joined: list[Piece] = []
    for first, last, target in pieces:
        if joined and joined[-1][2] == target and joined[-1][1] + 1 == first:
            joined[-1] = (joined[-1][0], last, target)
        else:
            joined.append((first, last, target))
    return joined
