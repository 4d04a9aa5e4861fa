"""Readable forms of bytes and of sets of bytes, such as `'abc\\n'` and `a-z 0-9 _`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SHOWN_BYTES = 40
_NAMES = {0x20: "space", 0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r", 0x2D: "'-'", 0x7F: "\\x7F"}


_CONTINUATIONS = "".join(map(chr, range(0xDC80, 0xDCC0)))
# Matches the escapes that `repr` writes for a stray byte and for a character up to U+00FF.
_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(udc|x)([89a-f][0-9a-f])")


def readable_bytes(text: bytes, most: int | None = _SHOWN_BYTES) -> str:
    """Quote a byte string, or the whole characters among its last `most` bytes."""
    start = 0 if most is None else max(len(text) - most, 0)
    shown = text[start:].decode(errors="surrogateescape")
    if start:  # the cut may be inside a character; drop its other bytes, at most three
        shown = shown[:3].lstrip(_CONTINUATIONS) + shown[3:]
    quoted = _ESCAPE.sub(lambda m: m[1] + _escape(m[2] == "udc", m[3]), repr(shown))
    return ("..." if start else "") + quoted


def _escape(is_byte: bool, digits: str) -> str:
    return f"\\x{digits.upper()}" if is_byte else f"\\u00{digits}"


def readable_ranges(values: Iterable[int]) -> str:
    """Format a set of byte values as ranges in ascending order; a set of all 256 as `any byte`."""
    ordered = sorted(set(values))
    if len(ordered) == 256:
        return "any byte"
    runs: list[list[int]] = []
    for value in ordered:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return " ".join(_range(low, high) for low, high in runs)


def _range(low: int, high: int) -> str:
    if high - low < 2:
        return " ".join(map(_name, range(low, high + 1)))
    return f"{_name(low)}-{_name(high)}"


def _name(value: int) -> str:
    if value in _NAMES:
        return _NAMES[value]
    return chr(value) if 0x20 < value < 0x7F else f"\\x{value:02X}"
