"""JSON strings with a given content, in every legal spelling of each character.

A `pattern`, a `format` or a set of names describes the *content* of a string. RFC 8259 allows
several spellings of it, and a model may generate any of them. A code point is written as itself
(unless it is a control character, a quote or a backslash), or as
`\\" \\\\ \\/ \\b \\f \\n \\r \\t`, or as `\\uXXXX` with digits of either case. Above U+FFFF it
takes two of those, a surrogate pair.

`quoted` translates an automaton. Between two code points the automaton is in one of its states, and
the next code point leads to another state; every spelling has to lead to the same one. So raw bytes
keep their transitions, and every such state gets an additional tree of escapes, over the few ranges
of code points that lead to one state (`gcd._languages.text.code_points`). The result is
deterministic, because a raw character never begins with a backslash. Cost: linear in the states,
and for each of them in the number of its ranges.
"""

from __future__ import annotations

import numpy as np

from gcd._automata.automaton import Automaton
from gcd._automata.byte_classes import NUM_BYTES, joint_classes
from gcd._automata.limits import max_states, priced_cache
from gcd._errors import StateLimitError
from gcd._languages.text.code_points import DigitTrees, Moves, Piece
from gcd._languages.text.texts import texts

_HEX = [f"{d:x}{d:X}".encode() if d > 9 else f"{d}".encode() for d in range(16)]
_ESCAPED, _LETTERS = b'"\\/\b\f\n\r\t', b'"\\/bfnrt'
_NOT_RAW = [*range(0x20), *b'"\\']
# Bytes that escapes distinguish: each is its own class, except control characters.
_STRUCTURE = np.zeros(NUM_BYTES, np.uint8)
_STRUCTURE[:0x20] = 1
for _number, _byte in enumerate(sorted({*b"".join(_HEX), *_LETTERS, *b"u"})):
    _STRUCTURE[_byte] = _number + 2


@priced_cache(maxsize=256)
def quoted(language: Automaton) -> Automaton:
    """Return the JSON strings, quotes included, whose content is a text of the language.

    Byte strings of the language that aren't valid UTF-8 have no spelling.
    """
    content = language & texts()
    if content.is_empty:
        return content
    return _Spelling(content).automaton()


class _Spelling:
    """States of `content`, in order, followed by an opening state, a closing state, and escapes."""

    def __init__(self, content: Automaton) -> None:
        self._content = content
        self._count = content.num_states
        self._edges: list[tuple[int, bytes, int]] = []
        self._states: dict[tuple[tuple[bytes, int], ...], int] = {}
        self._units = DigitTrees(4, self._hexadecimal)
        self._pairs = DigitTrees(10, self._second_half)  # for code points above U+FFFF

    def automaton(self) -> Automaton:
        content = self._content
        opening, closing = self._new_state(), self._new_state()
        self._edges.append((opening, b'"', 0))
        self._edges += [(int(end), b'"', closing) for end in np.flatnonzero(content.accepting)]
        moves = Moves(content)
        inside = (content.transitions[:, 0x80:0xC0] >= 0).any(axis=1)  # inside a character
        for state in np.flatnonzero(~inside).tolist():
            escapes = self._escapes(moves.of(state))
            if escapes:
                self._edges.append((state, b"\\", self._state(escapes)))

        class_of_byte, (own, _) = joint_classes([content.class_of_byte, _STRUCTURE])
        table = np.full((self._count, own.size), -1, np.int32)
        table[: content.num_states] = content.delta[:, own]
        table[: content.num_states, class_of_byte[_NOT_RAW]] = -1
        for source, labels, target in self._edges:
            table[source, class_of_byte[list(labels)]] = target
        accepting = np.zeros(self._count, bool)
        accepting[closing] = True
        order = np.arange(self._count)
        order[[0, opening]] = opening, 0  # a swap is its own inverse
        table = np.where(table >= 0, order[table], -1)[order]
        return Automaton.minimal(table, accepting, class_of_byte)

    def _escapes(self, pieces: list[Piece]) -> list[tuple[bytes, int]]:
        """Return the state after a backslash, given the target of each range of code points."""
        found = []
        for character, letter in zip(_ESCAPED, _LETTERS, strict=True):
            leads = [target for first, last, target in pieces if first <= character <= last]
            if leads:
                found.append((bytes([letter]), leads[0]))
        units = [(a, min(b, 0xFFFF), target) for a, b, target in pieces if a <= 0xFFFF]
        above = [(max(a, 0x10000) - 0x10000, b - 0x10000, t) for a, b, t in pieces if b > 0xFFFF]
        units += [(0xD800 + a, 0xD800 + b, half) for a, b, half in self._pairs.split(2, above)]
        if units:
            found.append((b"u", self._units.state(4, tuple(units))))
        return found

    def _second_half(self, digits: tuple[Piece, ...]) -> int:
        """Return the state before the second half of a surrogate pair, written as an escape."""
        units = tuple((0xDC00 + a, 0xDC00 + b, target) for a, b, target in digits)
        after_backslash = self._state([(b"u", self._units.state(4, units))])
        return self._state([(b"\\", after_backslash)])

    def _state(self, edges: list[tuple[bytes, int]]) -> int:
        """Return the state with these edges."""
        key = tuple(edges)
        if key not in self._states:
            self._states[key] = self._new_state()
            self._edges += [(self._states[key], labels, target) for labels, target in edges]
        return self._states[key]

    def _hexadecimal(self, digits: tuple[Piece, ...]) -> int:
        return self._state([(b"".join(_HEX[a : b + 1]), target) for a, b, target in digits])

    def _new_state(self) -> int:
        if self._count >= max_states():
            raise StateLimitError(max_states(), "a JSON string")
        self._count += 1
        return self._count - 1
