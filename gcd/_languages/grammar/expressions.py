"""Result of parsing a grammar: rules whose right-hand sides are syntax trees.

Texts and classes of characters in them are finished automata (`gcd._languages.text.syntax`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gcd._errors import LimitError
from gcd._languages.text.syntax import Choice, Node, Reference, Repeat, Sequence

PER_STEP = 400  # units for a node or an edge, made by interpreted code
PER_KEPT_ENTRY = 16  # units for a table entry that is kept until the end


@dataclass(frozen=True)
class Grammar:
    """Rules by name, in the order of the text, and the start rule."""

    rules: dict[str, Node]
    start: str


class RuleLimitError(Exception):
    """Cause of a limit error that already names a rule."""


@contextmanager
def blamed(what: Callable[[], str]) -> Iterator[None]:
    """Name a rule or terminal in limit errors that don't name one yet."""
    try:
        yield
    except LimitError as error:
        if isinstance(error.__cause__, RuleLimitError):
            raise
        raise type(error)(error.limit, what()) from RuleLimitError(str(error))


def references(expression: Node) -> Iterator[str]:
    """Yield the names that an expression refers to, with repetitions."""
    pending: list[Node] = [expression]
    while pending:
        match pending.pop():
            case Reference(name):
                yield name
            case Sequence(parts) | Choice(parts):
                pending += parts
            case Repeat(body):
                pending.append(body)
