"""How values are written: one description of values, several notations.

A schema says what values are allowed; a notation says how they look. JSON and Python literals
differ in their words (`true`, `True`), their strings and their brackets, and in nothing else, so
whatever is built from a schema is built from the pieces below, for either.

Cost: an array or object is one subset construction over its wired parts. Object members come in
a fixed order, and the number of states is linear in the members, optional ones included: what may
follow member i depends only on i and on whether anything was written before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gcd.automaton import Automaton
from gcd.errors import ConstraintError, StateLimitError
from gcd.languages.assembly import Assembly
from gcd.languages.numbers import numbers
from gcd.limits import max_states


class Brackets(NamedTuple):
    """What stands around the elements of an array.

    `empty` is written for no elements at all (None: `open` and `close` with a gap between), and
    `close_single` after exactly one (None: as after several). With `of_hashable` the elements
    are written in the notation's `hashable` form.
    """

    open: str
    close: str
    empty: str | None = None
    close_single: str | None = None
    of_hashable: bool = False


@dataclass(frozen=True, eq=False)
class Notation:
    """How values are written.

    Attributes:
        gap: what may stand next to a bracket.
        comma, colon: separators, with the whitespace that goes with them.
        null, true, false: the three words.
        string: (shortest, longest or None) length in code points -> all strings, all spellings.
        choice: strings -> the spellings they are written in as keys or constants.
        spell_all: a string -> all its spellings.
        containers: kind of array ("list", "tuple", "set") -> brackets it may have.
        objects: whether there are objects at all.
        hashable: the part of this notation that may stand in brackets `of_hashable`.
    """

    gap: Automaton
    comma: Automaton
    colon: Automaton
    null: Automaton
    true: Automaton
    false: Automaton
    string: Callable[[int, int | None], Automaton]
    choice: Callable[[Iterable[str]], Automaton]
    spell_all: Callable[[str], Automaton]
    containers: dict[str, tuple[Brackets, ...]]
    objects: bool = True
    hashable: Notation | None = None

    def spell(self, text: str) -> Automaton:
        """One string as a key or a constant."""
        return _spelled(self, text)


@lru_cache(maxsize=4096)
def _spelled(notation: Notation, text: str) -> Automaton:
    return notation.choice([text])


class Member(NamedTuple):
    """A member of an object: its key, its value, whether it must be there."""

    key: Automaton
    value: Automaton
    required: bool


class Separators(NamedTuple):
    """What stands next to brackets, between elements, and between a label and its value."""

    gap: Automaton
    comma: Automaton
    colon: Automaton


@lru_cache(maxsize=64)
def mark(text: str) -> Automaton:
    """A bracket or another short sign."""
    return Automaton.literal(text)


@lru_cache(maxsize=16)
def separators(
    whitespace: str, colon: str = ":", *, after: str = " ", blanks: bytes = b" \t\n\r"
) -> Separators:
    """The separators of a whitespace style; `ConstraintError` for an unknown one.

    `after` is what the style "spaced" puts behind a colon, `blanks` what "flexible" admits.
    """
    nothing = Automaton.epsilon()
    match whitespace:
        case "compact":
            return Separators(nothing, mark(","), mark(colon))
        case "spaced":
            return Separators(nothing, mark(", "), mark(colon + after))
        case "flexible":
            gap = Automaton.byte_set(blanks).star()
            padded = (Automaton.concatenate([gap, mark(m), gap]) for m in (",", colon))
            return Separators(gap, *padded)
        case _:
            raise ConstraintError(
                f'whitespace must be "compact", "spaced" or "flexible", got {whitespace!r}'
            )


def array(
    notation: Notation,
    items: Automaton,
    *,
    head: Sequence[Automaton] = (),
    minimum: int = 0,
    maximum: int | None = None,
    brackets: Sequence[Brackets] | None = None,
) -> Automaton:
    """Arrays of `minimum` to `maximum` elements: those of `head` first, then any of `items`.

    They stand in any of the brackets, by default in those of a list.
    """
    copies = len(head) if items.is_empty else max(minimum, maximum or 0)
    if maximum is not None:
        copies = min(copies, maximum)
    if copies * max(items.num_states, 2) > max_states():
        raise StateLimitError(
            max_states(), f"an array of {copies} elements of {items.num_states} states each"
        )
    if items.is_empty:
        maximum = len(head) if maximum is None else min(maximum, len(head))
    if maximum is not None and maximum < minimum:
        return Automaton.empty()
    graph = Assembly()
    start, end = graph.node(), graph.node()
    for pair in notation.containers["list"] if brackets is None else brackets:
        _add_array(graph, start, end, notation, pair, items, head, minimum, maximum)
    return graph.build(start, end)


def _add_array(
    graph: Assembly,
    start: int,
    end: int,
    notation: Notation,
    brackets: Brackets,
    items: Automaton,
    head: Sequence[Automaton],
    minimum: int,
    maximum: int | None,
) -> None:
    opened, closed = mark(brackets.open), mark(brackets.close)
    if minimum == 0:
        if brackets.empty is None:
            graph.insert(start, end, opened, notation.gap, closed)
        else:
            graph.insert(start, end, mark(brackets.empty))
    if maximum == 0:
        return
    before = graph.node()  # an element is due
    graph.insert(start, before, opened, notation.gap)
    # With no upper bound the last element may come again, from the same place.
    last = maximum if maximum is not None else max(minimum, len(head) + 1)
    if maximum is None and brackets.close_single is not None:
        last = max(last, 2)
    for written in range(1, last + 1):
        after = graph.node()
        graph.insert(before, after, head[written - 1] if written <= len(head) else items)
        if written >= minimum:
            single = written == 1 and brackets.close_single is not None
            ending = mark(brackets.close_single or "") if single else closed
            graph.insert(after, end, notation.gap, ending)
        if written < last:
            before = graph.node()
            graph.insert(after, before, notation.comma)
        elif maximum is None:
            graph.insert(after, before, notation.comma)


def mapping(
    notation: Notation,
    members: Sequence[Member],
    extra: Member | None = None,
    *,
    opened: str = "{",
    closed: str = "}",
    colon: Automaton | None = None,
) -> Automaton:
    """Objects with these members in this order, then any number of `extra` ones.

    What stands around them and after a key may be given: a call's arguments are written likewise.
    """
    if not notation.objects:
        return Automaton.empty()
    colon = colon or notation.colon
    graph = Assembly()
    start, end = graph.node(), graph.node()
    first, later = graph.node(), graph.node()  # nothing written yet; something written
    graph.insert(start, first, Automaton.literal(opened), notation.gap)
    for member in members:
        due, next_first, next_later = graph.node(), graph.node(), graph.node()
        graph.skip(first, due)
        graph.insert(later, due, notation.comma)
        graph.insert(due, next_later, member.key, colon, member.value)
        if not member.required:
            graph.skip(first, next_first)
            graph.skip(later, next_later)
        first, later = next_first, next_later
    if extra is not None:
        due = graph.node()
        graph.skip(first, due)
        graph.insert(later, due, notation.comma)
        graph.insert(due, later, extra.key, colon, extra.value)
    close = mark(closed)
    graph.insert(first, end, close)
    graph.insert(later, end, notation.gap, close)
    return graph.build(start, end)


@lru_cache(maxsize=64)
def any_value(notation: Notation, depth: int) -> Automaton:
    """Any value of nulls, booleans, numbers, strings, and arrays and objects nested to `depth`.

    The automaton remembers which brackets are open, so it doubles with each level.
    """
    scalars = [
        notation.null,
        notation.true,
        notation.false,
        numbers(),
        notation.string(0, None),
    ]
    if depth == 0:
        return Automaton.union(scalars)
    if 10 * 2**depth * scalars[-1].num_states > max_states():  # what it comes to, about
        raise StateLimitError(max_states(), f"a free value nested to a depth of {depth}")
    inner = any_value(notation, depth - 1)
    return Automaton.union([*scalars, array(notation, inner), any_object(notation, inner)])


def any_object(notation: Notation, value: Automaton) -> Automaton:
    """Objects with any keys, and values of one language."""
    return mapping(notation, (), Member(notation.string(0, None), value, False))
