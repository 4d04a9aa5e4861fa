"""Incremental JSON parser that reports each value as soon as its text is complete.

A string is complete at its closing quote, and an object or array at its closing bracket. A number
is complete when another character follows, or at the end of the text. Values are reported with
their JSON pointers (RFC 6901), and nested values before the value that contains them.
"""

from __future__ import annotations

import json
from typing import Any

Value = tuple[str, Any]
"""A JSON pointer, and the value at this pointer."""

_SPACE, _BARE = " \t\n\r", "+-.0123456789eEaflnrstu"


class JSONReader:
    """An incremental parser of JSON text.

    After invalid JSON, the parser doesn't raise an error, but reports no further values. Callers
    that need the values use a constraint that guarantees valid JSON.
    """

    def __init__(self) -> None:
        self._stack: list[dict[str, Any] | list[Any]] = []
        self._names: list[str | None] = []  # the current member of each object on the stack
        self._lexeme = ""  # an incomplete string, number or word
        self._is_readable = True

    def feed(self, text: str, *, is_end: bool = False) -> list[Value]:
        """Parse more text; return the values that are now complete, with their JSON pointers.

        Args:
            text: the next piece of text.
            is_end: whether this is the last piece.
        """
        found: list[Value] = []
        try:
            for character in text if self._is_readable else "":
                self._take(character, found)
            if is_end and self._lexeme and self._is_readable:
                self._complete(json.loads(self._lexeme), found)
                self._lexeme = ""
        except (ValueError, IndexError, TypeError):
            self._is_readable = False
        return found

    def _take(self, character: str, found: list[Value]) -> None:
        """Parse one character."""
        lexeme = self._lexeme
        if lexeme.startswith('"'):
            self._lexeme += character
            if character == '"' and _is_closed(lexeme):
                self._string(found)
            return
        if lexeme and character not in _BARE:
            self._lexeme = ""
            self._complete(json.loads(lexeme), found)
        if character == '"' or character in _BARE:
            self._lexeme += character
        elif character in "[{":
            self._stack.append([] if character == "[" else {})
            self._names.append(None)
        elif character in "]}":
            value = self._stack.pop()
            self._names.pop()
            if isinstance(value, list) != (character == "]"):
                closing = "]" if isinstance(value, list) else "}"
                raise ValueError(f"expected the closing bracket {closing!r}, got {character!r}")
            self._complete(value, found)
        elif character not in _SPACE + ",:":
            raise ValueError(f"expected JSON, got {character!r}")

    def _string(self, found: list[Value]) -> None:
        """Process a complete string: the name of a member, or a value."""
        text = json.loads(self._lexeme, strict=False)
        self._lexeme = ""
        if self._stack and isinstance(self._stack[-1], dict) and self._names[-1] is None:
            self._names[-1] = text
        else:
            self._complete(text, found)

    def _complete(self, value: Any, found: list[Value]) -> None:
        """Add a value to its container, and report it."""
        pointer = ""
        for container, name in zip(self._stack, self._names, strict=True):
            part = str(len(container)) if name is None else name
            pointer += "/" + part.replace("~", "~0").replace("/", "~1")
        found.append((pointer, value))
        if not self._stack:
            return
        container, name = self._stack[-1], self._names[-1]
        if isinstance(container, list):
            container.append(value)
        elif name is not None:
            container[name], self._names[-1] = value, None
        else:
            raise ValueError("expected the name of a member before its value, got a value")


def _is_closed(lexeme: str) -> bool:
    """Return whether a quote directly after `lexeme`, the beginning of a string, ends the string.

    The quote doesn't end the string if an odd number of backslashes precedes it.
    """
    return (len(lexeme) - len(lexeme.rstrip("\\"))) % 2 == 0
