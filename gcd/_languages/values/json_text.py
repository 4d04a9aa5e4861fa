"""JSON strings with a given content.

A `pattern`, a `format` or a set of names describes the *content* of a string. RFC 8259 allows
several spellings of the same content. A code point may be written as itself, unless it is a control
character, a quote or a backslash. Some characters have the short escapes `\\" \\\\ \\/ \\b \\f \\n
\\r \\t`. Every code point can also be written as `\\uXXXX` with digits of either case, and above
U+FFFF as two of these, a surrogate pair.

JSON writers escape a printable ASCII character only if it is a quote or a backslash. A model that
escapes others, such as the digits of a date, usually does so because nothing else is allowed. So
these escapes are left out by default, unless *every* spelling is needed.

`quote` converts an automaton over the content. Between two code points, the automaton is in one of
its states, and the next code point leads to another state. All spellings of the code point have to
lead to the same state. So raw bytes keep their transitions, and every state between two code points
gets an additional tree of escapes (`gcd._automata.kernels.escaping`). The result is deterministic,
because a raw character never begins with a backslash. Cost: linear in the number of states and
the number of nodes of their trees.
"""

from __future__ import annotations

import numpy as np

from gcd._automata.automaton import Automaton
from gcd._automata.byte_classes import NUM_BYTES, joint_classes
from gcd._automata.kernels import escaping
from gcd._automata.limits import cache_with_price, max_states
from gcd._errors import StateLimitError
from gcd._languages.text.texts import texts

_HEX = b"0123456789abcdefABCDEF"
_LETTERS = b'"\\/bfnrtu'  # of short escapes, as in `escaping.LETTERS`, and `u`
_QUOTE, _BACKSLASH = b'"\\'
_NOT_RAW = [*range(0x20), _QUOTE, _BACKSLASH]
_PLAIN = [byte for byte in range(0x20, 0x7F) if byte not in _NOT_RAW]  # need no escape
# For each kind of node, the columns of its targets, and the bytes that lead to them.
_COLUMNS = (
    (escaping.DIGIT, [*range(16), *range(10, 16)], list(_HEX)),
    (escaping.BEFORE_U, [0], list(b"u")),
    (escaping.BEFORE_BACKSLASH, [0], [_BACKSLASH]),
    (escaping.AFTER_BACKSLASH, list(range(9)), list(_LETTERS)),
)
# Byte classes that escapes need: each of these bytes is a class, and so are the control characters
# and the other plain characters.
_STRUCTURE = np.zeros(NUM_BYTES, np.uint8)
_STRUCTURE[:0x20] = 1
_STRUCTURE[_PLAIN] = 2
for _number, _byte in enumerate(sorted({*_HEX, *_LETTERS})):
    _STRUCTURE[_byte] = _number + 3


@cache_with_price(maxsize=256)
def quote(language: Automaton, *, every: bool) -> Automaton:
    """Return the JSON strings, including quotes, whose content is a text of the language.

    Byte strings of the language that aren't valid UTF-8 are left out.

    Args:
        language: the contents.
        every: whether printable ASCII characters other than quotes and backslashes may be escaped.
    """
    content = language & texts()
    if content.is_empty:
        return content
    own_states = content.num_states
    class_of_byte, (own, _) = joint_classes([content.class_of_byte, _STRUCTURE])
    raw = np.ascontiguousarray(content.delta[:, own])
    escaped = raw.copy()
    if not every:
        escaped[:, class_of_byte[_PLAIN]] = -1
    after_backslash, targets, kinds = escaping.escapes(escaped, class_of_byte, max_states())
    opening, closing, first_node = own_states, own_states + 1, own_states + 2
    count = first_node + kinds.size
    if count > max_states():
        raise StateLimitError(max_states(), what="a JSON string")

    table = np.full((count, own.size), -1, np.int32)
    table[:own_states] = raw
    table[:own_states, class_of_byte[_NOT_RAW]] = -1
    table[:own_states, class_of_byte[_BACKSLASH]] = after_backslash
    quote = class_of_byte[_QUOTE]
    table[opening, quote] = 0
    table[np.flatnonzero(content.accepting), quote] = closing
    for kind, columns, bytes_of_columns in _COLUMNS:
        nodes = np.flatnonzero(kinds == kind)
        table[(first_node + nodes)[:, None], class_of_byte[bytes_of_columns]] = targets[
            nodes[:, None], columns
        ]
    accepting = np.zeros(count, bool)
    accepting[closing] = True
    order = np.arange(count)
    order[[0, opening]] = opening, 0  # exchanges the two states
    table = np.where(table >= 0, order[table], -1)[order]
    return Automaton.minimal(table, accepting, class_of_byte)
