"""Values in JSON notation (RFC 8259), as byte languages.

**Strings.** A code point of a free string may have any spelling: its UTF-8 bytes (without overlong
forms and surrogates), a two-character escape `\\" \\\\ \\/ \\b \\f \\n \\r \\t`, `\\uXXXX`, or,
above U+FFFF, a pair of surrogate escapes. Control characters below U+0020 must be escaped. A single
surrogate is not Unicode text, and is not in the language. The automaton of a string of at most n
code points has about 20 n states.

**Keys and constants** have one spelling by default. Strings with a pattern or a format escape
printable ASCII characters only where JSON requires it. A model that escapes others, such as the
digits of a date, usually does so because nothing else is allowed. `escapes="all"` allows every
spelling, and takes some 8 states for each character.

**Quoting.** `quote` converts an automaton over the content. Between two code points, the automaton
is in one of its states, and the next code point leads to another state. All spellings of the code
point have to lead to the same state. So raw bytes keep their transitions, and every state between
two code points gets an additional tree of escapes. The result is deterministic, because a raw
character never begins with a backslash.

**Trees of escapes.** An escape writes the bits of a code point as hexadecimal digits. UTF-8 writes
the same bits in bytes with up to six bits each. So the states after two bytes of six bits, in the
order of these bytes, are the states after three digits, in the order of the digits. The trees are
built for all states at once, from the last digit to the first, and equal nodes are merged. Cost:
O(16) for each digit, and each state that comes before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from gcd._automata.automaton import Automaton
from gcd._automata.byte_classes import NUM_BYTES, joint_classes
from gcd._automata.limits import cache_with_price, max_states
from gcd._errors import ConstraintError, StateLimitError
from gcd._languages.literal import encodable
from gcd._languages.text.code_points import repeat, texts
from gcd._languages.text.regex import regex
from gcd._languages.values.notation import Brackets, Notation, separators

_HEX = "[0-9a-fA-F]"
# \uXXXX for a code point that is not a surrogate, and for the two halves of a surrogate pair.
LONE_UNIT = rf"u(?:[0-9a-ce-fA-CE-F]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}})"
_PAIR = rf"u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"


@cache_with_price(maxsize=8)
def json_notation(whitespace: str, escapes: str = "canonical") -> Notation:
    """Return JSON's notation of values, in the options of `gcd.json_schema`."""
    if escapes not in ("canonical", "all"):
        raise ConstraintError(f'expected escapes to be "canonical" or "all", got {escapes!r}')
    gap, comma, colon = separators(whitespace)
    return Notation(
        gap=gap,
        comma=comma,
        colon=colon,
        null=Automaton.literal("null"),
        true=Automaton.literal("true"),
        false=Automaton.literal("false"),
        string=json_string,
        choice=json_constants if escapes == "canonical" else _all_spellings,
        spell_all=json_spellings,
        quoted=partial(quote, every=escapes == "all"),
        quoted_all=partial(quote, every=True),
        containers=dict.fromkeys(("list", "tuple", "set"), (Brackets("[", "]"),)),
    )


@cache_with_price(maxsize=1)
def json_character() -> Automaton:
    """Return one code point inside a JSON string, in every legal spelling."""
    return regex(rf'[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|{LONE_UNIT}|{_PAIR})')


@cache_with_price(maxsize=256)
def json_string(minimum: int, maximum: int | None) -> Automaton:
    """Return the JSON strings of `minimum` to `maximum` code points (None: no upper bound)."""
    mark = Automaton.literal('"')
    return Automaton.concatenate([mark, repeat(json_character(), minimum, maximum), mark])


def json_constants(strings: Iterable[str]) -> Automaton:
    """Return strings as `json.dumps` writes them, with `ensure_ascii` on or off."""
    return Automaton.from_strings(
        json.dumps(text, ensure_ascii=on)
        for text in map(encodable, strings)
        for on in (True, False)
    )


def _all_spellings(strings: Iterable[str]) -> Automaton:
    return quote(Automaton.from_strings(map(encodable, strings)), every=True)


@cache_with_price(maxsize=1024)
def json_spellings(text: str) -> Automaton:
    """Return a string in every legal spelling."""
    return _all_spellings([text])


_CHARACTERS = b'"\\/\b\f\n\r\t'
# Targets of the nodes of escapes: their columns, and the bytes that lead there.
_DIGITS = [*range(16), *range(10, 16)], list(b"0123456789abcdefABCDEF")
_LETTERS = list(range(9)), list(b'"\\/bfnrtu')  # of the escapes of `_CHARACTERS`, and of `\u`
_HALVES = ([0, 0], list(b"dD")), ([0], list(b"u")), ([0], list(b"\\"))  # between two halves
_QUOTE, _BACKSLASH = b'"\\'
_NOT_RAW = [*range(0x20), _QUOTE, _BACKSLASH]
_PLAIN = [byte for byte in range(0x20, 0x7F) if byte not in _NOT_RAW]  # need no escape
# Byte classes that escapes need: each byte of an escape is a class, and so are the control
# characters and the other plain characters.
_STRUCTURE = np.zeros(NUM_BYTES, np.uint8)
_STRUCTURE[:0x20] = 1
_STRUCTURE[_PLAIN] = 2
for _number, _byte in enumerate(sorted({*_DIGITS[1], *_LETTERS[1]})):
    _STRUCTURE[_byte] = _number + 3
_HASH = np.array([pow(0x9E3779B97F4A7C15, i, 1 << 64) for i in range(1, 54)], np.uint64)

States = npt.NDArray[np.int32]
"""States of an automaton; -1 for none, which is also the index of the last row of a table."""


@cache_with_price(maxsize=256)
def quote(language: Automaton, *, every: bool) -> Automaton:
    """Return the JSON strings with these contents; if `every`, ASCII may be escaped too."""
    content = language & texts()
    if content.is_empty:
        return content
    class_of_byte, (own, _) = joint_classes([content.class_of_byte, _STRUCTURE])
    raw = content.delta[:, own]
    opening = len(raw)
    closing = opening + 1
    escapes = _Escapes(raw, class_of_byte, every=every)
    after_backslash = escapes.after_backslash()

    quote, backslash = class_of_byte[[_QUOTE, _BACKSLASH]]
    ends = np.full((2, own.size), -1, np.int32)
    ends[0, quote] = 0
    raw[:, class_of_byte[_NOT_RAW]] = -1
    raw[:, backslash] = after_backslash
    raw[content.accepting, quote] = closing
    table = np.concatenate([raw, ends, *escapes.nodes])
    accepting = np.arange(len(table)) == closing
    order = np.arange(len(table))
    order[[0, opening]] = opening, 0  # exchanges the two states
    table = np.where(table >= 0, order[table], -1)[order]
    return Automaton.minimal(table, accepting, class_of_byte)


class _Escapes:
    """Trees of the escapes in which an automaton's texts can be written.

    `nodes` are rows of transitions of the nodes, which are numbered from the number of states + 2.
    """

    def __init__(self, raw: States, class_of_byte: npt.NDArray[np.uint8], *, every: bool) -> None:
        self._class_of_byte = class_of_byte
        self._step = np.concatenate([raw, np.full_like(raw[:1], -1)])
        if not every:
            self._step[:, class_of_byte[_PLAIN]] = -1
        self._count = len(raw) + 2
        self.nodes: list[States] = []

    def after_backslash(self) -> States:
        """Return, for each state, the node after the backslash of an escape."""
        every_state = np.arange(len(self._step) - 1, dtype=np.int32)
        after_byte = self._after(every_state, range(0x80, 0xC0))
        inside = np.flatnonzero((after_byte >= 0).any(1))  # states inside of a character
        starts = np.delete(every_state, inside)
        # Nodes of characters beyond ASCII: after the digits 00, after one 0, and after no digit.
        rest = np.full((len(starts), 8 + 15 + 15), -1, np.int32)
        if len(inside):
            rest = self._beyond_ascii(starts, inside, after_byte[inside])
        digits = self._node(self._after(starts, range(0x80)).reshape(-1, 8, 16))
        for beyond in np.split(rest, [8, 23], axis=1):
            digits = self._node(np.concatenate([digits, beyond], 1))[:, None]
        letters = np.concatenate([self._after(starts, _CHARACTERS), digits], 1)
        found = np.full(len(every_state), -1, np.int32)
        found[starts] = self._node(letters, _LETTERS)
        return found

    def _beyond_ascii(
        self, starts: States, inside: npt.NDArray[np.intp], after_byte: States
    ) -> States:
        """Return the nodes after the digits 008 to 00f, 01 to 0f, 1 to f, for each of `starts`."""
        # Nodes before the last digit, by the state before the last byte and the bits between them;
        # and nodes before the last two and the last three digits, if two bytes remain.
        one, two, three = (
            np.full((len(self._step), *shape), -1, np.int32) for shape in ((4,), (16,), ())
        )
        one[inside] = self._node(after_byte.reshape(-1, 4, 16))
        two[inside] = self._node(one[after_byte].reshape(-1, 16, 16))
        three[inside] = self._node(two[inside])
        leads, lead_of = _distinct(self._after(starts, range(0xC0, 0xF5)))
        of_two, of_three, of_four = np.split(leads, [32, 48], axis=1)  # by their number of bytes
        low = one[of_two].reshape(-1, 8, 16)
        after_zero = [self._node(low[:, 1:]), two[of_three[:, 0], 8:]]
        first = three[of_three]
        pairs = self._pairs(of_four, two)
        first[:, 13] = self._node(np.where(pairs >= 0, pairs, two[of_three[:, 13]]))
        return np.concatenate([low[:, 0, 8:], *after_zero, first[:, 1:]], 1)[lead_of]

    def _pairs(self, leads: States, two: States) -> States:
        """Return the nodes after two digits of a pair's first half, by the second digit."""
        # By bits 12 to 20 of the code point; those of the first half are counted from U+10000.
        seconds = self._after(leads, range(0x80, 0xC0)).reshape(-1, 320)[:, 16:272]
        before, number = np.unique(seconds, return_inverse=True)
        half = np.full((len(before), 4, 16), -1, np.int32)
        half[:, :, 12:] = two[before].reshape(-1, 4, 4)
        node = self._node(half)
        for labels in _HALVES:  # from the digit after `\u` back to the backslash
            node = self._node(node[..., None], labels)
        found = np.full((len(leads), 16), -1, np.int32)
        rows = node[number.reshape(-1)].reshape(-1, 4, 16, 16)
        found[:, 8:12] = self._node(self._node(rows))
        return found

    def _after(self, states: States, read: Sequence[int]) -> States:
        """Return the states after reading each of some bytes in each of some states."""
        found: States = self._step[states[..., None], self._class_of_byte[list(read)]]
        return found

    def _node(self, targets: States, labels: tuple[list[int], list[int]] = _DIGITS) -> States:
        """Return nodes with the given targets, which are on the last axis; -1 without any."""
        flat, number = _distinct(targets.reshape(-1, targets.shape[-1]))
        is_node = (flat >= 0).any(1)
        node = np.where(is_node, self._count - 1 + is_node.cumsum(), -1).astype(np.int32)
        columns, read = labels
        rows = np.full((is_node.sum(), self._step.shape[1]), -1, np.int32)
        rows[:, self._class_of_byte[read]] = flat[is_node][:, columns]
        self.nodes.append(rows)
        self._count += len(rows)
        if self._count > max_states():
            raise StateLimitError(max_states(), what="a JSON string")
        return node[number].reshape(targets.shape[:-1])


def _distinct(rows: States) -> tuple[States, npt.NDArray[np.intp]]:
    """Return the rows of a table without most repetitions, and the number of each row in there."""
    order = np.argsort(rows.astype(np.uint64) @ _HASH[: rows.shape[1]])
    ordered = rows[order]
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    number = np.empty(len(rows), np.intp)
    number[order] = is_new.cumsum() - 1
    return ordered[is_new], number
