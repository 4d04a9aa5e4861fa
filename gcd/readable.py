"""This module writes bytes and sets of bytes for people: `'abc\\n'`, `a-z 0-9 _`, `\\x80-\\xBF`."""

from __future__ import annotations

from collections.abc import Iterable

_SHOWN_BYTES = 40
_NAMES = {0x20: "space", 0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r", 0x2D: "'-'", 0x7F: "\\x7F"}


def readable_bytes(text: bytes) -> str:
    """Quote a byte string, as text where it is UTF-8; of a long one only the end is shown."""
    cut = len(text) > _SHOWN_BYTES
    shown = text[-_SHOWN_BYTES:] if cut else text
    try:
        quoted = repr(shown.decode())
    except UnicodeDecodeError:
        quoted = repr(shown)
    return ("..." if cut else "") + quoted


def readable_ranges(values: Iterable[int]) -> str:
    """Write a set of byte values as ranges in ascending order; all 256 are `any byte`."""
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
