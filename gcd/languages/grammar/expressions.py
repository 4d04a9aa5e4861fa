"""This module has what dialects read grammars into: rules whose right-hand sides are syntax trees.

Texts and classes of characters in them are finished automata (`gcd.languages.text.syntax`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gcd.errors import LimitError
from gcd.languages.text.syntax import Choice, Node, Reference, Repeat, Sequence

PER_STEP = 400  # units for a node or an edge, which interpreted code makes one by one
PER_KEPT_ENTRY = 16  # units for an entry of a table that is kept until the end


@dataclass(frozen=True)
class Grammar:
    """Rules by their names, in the order of the text, and the one that texts begin with."""

    rules: dict[str, Node]
    start: str


class RuleLimitError(Exception):
    """Marks, as a cause, that an error on limits names a rule already."""


@contextmanager
def blamed(what: Callable[[], str]) -> Iterator[None]:
    """Let errors on limits say which rule or terminal it was, unless they do already."""
    try:
        yield
    except LimitError as error:
        if isinstance(error.__cause__, RuleLimitError):
            raise
        raise type(error)(error.limit, what()) from RuleLimitError(str(error))


def references(expression: Node) -> Iterator[str]:
    """Yield the names that an expression refers to, each as often as it does."""
    pending: list[Node] = [expression]
    while pending:
        match pending.pop():
            case Reference(name):
                yield name
            case Sequence(parts) | Choice(parts):
                pending += parts
            case Repeat(body):
                pending.append(body)
