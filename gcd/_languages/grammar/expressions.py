"""Parsed grammars: rules whose right-hand sides are syntax trees, and productions over symbols.

Literal texts and classes of characters in these trees are already automata
(`gcd._languages.text.syntax`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gcd._automata.automaton import Automaton
from gcd._errors import LimitError
from gcd._languages.text.syntax import Node, Reference, children

Symbol = Automaton | str
Production = tuple[Symbol, ...]
Productions = dict[str, list[Production]]

PER_STEP = 400  # units of work of interpreted code, for each node or edge of a graph
PER_KEPT_ENTRY = 16  # units of work for each table entry that stays in memory


@dataclass(frozen=True)
class Grammar:
    """Rules of a grammar by name, in their order in the grammar."""

    rules: dict[str, Node]  # rules, start: the rules, and the name of the start rule
    start: str
    # Function that makes the texts of the grammar from the texts of the start rule
    finish: Callable[[Automaton], Automaton] = lambda language: language
    # Function that returns the grammar without texts in which longer ignored text hides a terminal;
    # None if there are none
    narrow: Callable[[], Grammar] | None = None
    overlap: float = math.inf  # the fewest bytes of a text that `narrow` leaves out


class RuleLimitError(Exception):
    """Cause (`__cause__`) of a limit error whose message already names a rule."""


@contextmanager
def blame(what: Callable[[], str]) -> Iterator[None]:
    """Add the name of a rule or terminal, from `what`, to limit errors that don't name one yet."""
    try:
        yield
    except LimitError as error:
        if isinstance(error.__cause__, RuleLimitError):
            raise
        raise type(error)(error.limit, what()) from RuleLimitError(str(error))


def references(expression: Node) -> Iterator[str]:
    """Yield the names of all rules that an expression refers to, with repetitions."""
    pending: list[Node] = [expression]
    while pending:
        node = pending.pop()
        if isinstance(node, Reference):
            yield node.name
        pending += children(node)
