"""This module has what the right-hand sides of rules are made of, whatever dialect they are in.

Texts and classes of characters are finished automata. An expression that refers to nothing but
rules whose languages are finished too is laid out between two nodes of a graph of parts, as a
regular expression is (`gcd.languages.text.thompson`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gcd.automata.assembly import Assembly
from gcd.automata.automaton import Automaton
from gcd.automata.limits import spend
from gcd.errors import LimitError

PER_STEP = 400  # units for a node or an edge, which interpreted code makes one by one
PER_KEPT_ENTRY = 16  # units for an entry of a table that is kept until the end


@dataclass(frozen=True, eq=False)
class Reference:
    """What the rule of this name describes."""

    name: str


@dataclass(frozen=True, eq=False)
class Sequence:
    """One after the other."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Choice:
    """Any one of these."""

    options: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """The body `minimum` to `maximum` times in a row; None: no upper bound."""

    body: Expression
    minimum: int
    maximum: int | None


Expression = Automaton | Reference | Sequence | Choice | Repeat


@dataclass(frozen=True)
class Grammar:
    """Rules by their names, in the order of the text, and the one that texts begin with."""

    rules: dict[str, Expression]
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


def references(expression: Expression) -> Iterator[str]:
    """Yield the names that an expression refers to, each as often as it does."""
    pending = [expression]
    while pending:
        match pending.pop():
            case Reference(name):
                yield name
            case Sequence(parts) | Choice(parts):
                pending += parts
            case Repeat(body):
                pending.append(body)


def automaton_of(expression: Expression, language: Callable[[str], Automaton]) -> Automaton:
    """Return the texts of an expression, given those of the rules it refers to."""
    if isinstance(expression, Automaton):
        return expression
    if isinstance(expression, Reference):
        return language(expression.name)
    graph = Assembly()
    start, end = graph.node(), graph.node()
    _lay(graph, expression, start, end, language)
    return graph.build(start, end)


def _lay(
    graph: Assembly,
    expression: Expression,
    source: int,
    target: int,
    language: Callable[[str], Automaton],
) -> None:
    """Lay an expression out between two nodes; only loops lead back, to nodes of their own."""
    spend(PER_STEP)
    match expression:
        case Sequence(parts):
            for part in parts:
                following = graph.node()
                _lay(graph, part, source, following, language)
                source = following
            graph.skip(source, target)
        case Choice(options):
            for option in options:
                _lay(graph, option, source, target, language)
        case Repeat(body, 0 | 1 as minimum, None):
            loop = graph.node()
            if minimum:
                _lay(graph, body, source, loop, language)
            else:
                graph.skip(source, loop)
            _lay(graph, body, loop, loop, language)
            graph.skip(loop, target)
        case Repeat(body, 0, 1):
            graph.skip(source, target)
            _lay(graph, body, source, target, language)
        case Repeat(body, minimum, maximum):
            once = automaton_of(body, language)
            graph.insert(source, target, once.repeat(minimum, maximum))
        case _:
            graph.insert(source, target, automaton_of(expression, language))
