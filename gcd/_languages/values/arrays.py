"""Languages of arrays, by their length, their elements, and whether the elements are distinct.

Each function builds a graph whose edges are languages (`gcd._automata.assembly`), and determinizes
it once.

* `array` has a node for each element that must be distinguished: the elements of `head`, and as
  many more as the bounds on the length require.
* `containing` counts the elements that satisfy a schema. It doesn't bound the length; intersect the
  result with `array` for that.
* `distinct` tracks which of finitely many values have been used. This takes 2^k nodes for k values,
  and fewer if few elements are chosen from many values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import Automaton
from gcd._automata.limits import max_states
from gcd._errors import StateLimitError, show_count
from gcd._languages.values.notation import Brackets, Notation, mark


def array(
    notation: Notation,
    items: Automaton,
    *,
    head: Sequence[Automaton] = (),
    minimum: int = 0,
    maximum: int | None = None,
    brackets: Sequence[Brackets] | None = None,
) -> Automaton:
    """Return arrays of `head`, then `items`, with `minimum` to `maximum` elements in all."""
    copies = len(head) if items.is_empty else max(minimum, maximum or 0)
    if maximum is not None:
        copies = min(copies, maximum)
    if copies * max(items.num_states, 2) > max_states():
        raise StateLimitError(
            max_states(),
            what=f"an array of {show_count(copies)} elements with {items.num_states} states each",
        )
    if items.is_empty:
        maximum = len(head) if maximum is None else min(maximum, len(head))
    if maximum is not None and maximum < minimum:
        return Automaton.empty()
    graph = Assembly()
    start, end = graph.node(), graph.node()
    for pair in notation.containers["list"] if brackets is None else brackets:
        opened, closed = mark(pair.open), mark(pair.close)
        if minimum == 0:
            empty = [opened, notation.gap, closed] if pair.empty is None else [mark(pair.empty)]
            graph.insert(start, end, *empty)
        if maximum == 0:
            continue
        before = graph.node()  # node before an element
        graph.insert(start, before, opened, notation.gap)
        # Without an upper bound, the last element is a loop.
        last = maximum if maximum is not None else max(minimum, len(head) + 1)
        if maximum is None and pair.close_single is not None:
            last = max(last, 2)
        for written in range(1, last + 1):
            after = graph.node()
            graph.insert(before, after, head[written - 1] if written <= len(head) else items)
            if written >= minimum:
                single = written == 1 and pair.close_single is not None
                ending = mark(pair.close_single or "") if single else closed
                graph.insert(after, end, notation.gap, ending)
            if written < last:
                before = graph.node()
            if written < last or maximum is None:
                graph.insert(after, before, notation.comma)
    return graph.build(start, end)


class CountedSplit(NamedTuple):
    """Possible elements at one position of an array for which `contains` counts elements."""

    counted: Automaton  # language of the elements that increase the count
    others: Automaton  # language of the elements that don't; it may overlap with `counted`


def containing(
    notation: Notation,
    head: Sequence[CountedSplit],
    rest: CountedSplit,
    fewest: int,
    most: int | None,
    brackets: Brackets,
) -> Automaton:
    """Return arrays of any length with `fewest` to `most` (None: any) counted elements."""
    highest = fewest if most is None else most
    if most is not None and most < fewest:
        return Automaton.empty()
    parts = [*head, rest]
    size = (highest + 1) * sum(p.counted.num_states + p.others.num_states for p in parts)
    if size > max_states():
        raise StateLimitError(
            max_states(), what=f"counting up to {show_count(highest)} elements of an array"
        )
    graph = Assembly()
    start, end = graph.node(), graph.node()
    closed = mark(brackets.close)
    if fewest == 0:
        graph.insert(start, end, mark(brackets.open), notation.gap, closed)
    due = [graph.node() for _ in range(highest + 1)]  # nodes before an element, by the count so far
    graph.insert(start, due[0], mark(brackets.open), notation.gap)
    for position, part in enumerate(parts):
        after = [graph.node() for _ in range(highest + 1)]
        for count in range(highest + 1):
            graph.insert(due[count], after[count], part.others)
            if count < highest:
                graph.insert(due[count], after[count + 1], part.counted)
            elif most is None:
                graph.insert(due[count], after[count], part.counted)
            if count >= fewest:
                graph.insert(after[count], end, notation.gap, closed)
        if position < len(head):
            due = [graph.node() for _ in range(highest + 1)]
        for count in range(highest + 1):
            graph.insert(after[count], due[count], notation.comma)
    return graph.build(start, end)


def distinct(
    notation: Notation,
    head: Sequence[dict[int, Automaton]],
    rest: dict[int, Automaton],
    longest: int,
    brackets: Brackets,
) -> Automaton:
    """Return arrays of at most `longest` distinct values, given their texts by number."""
    graph = Assembly()
    start, end = graph.node(), graph.node()
    closed = mark(brackets.close)
    graph.insert(start, end, mark(brackets.open), notation.gap, closed)
    # Numbers of the values that have been used -> node before the next element.
    due: dict[frozenset[int], int] = {frozenset(): graph.node()}
    graph.insert(start, due[frozenset()], mark(brackets.open), notation.gap)
    last = graph.node()
    graph.insert(last, end, notation.gap, closed)
    for position in range(longest):
        further: dict[frozenset[int], int] = {}
        written: dict[frozenset[int], int] = {}
        for taken, node in due.items():
            table = head[position] if position < len(head) else rest
            if position == longest - 1:  # no need to distinguish the last value
                left = [language for value, language in table.items() if value not in taken]
                graph.insert(node, last, Automaton.union(left))
                continue
            for value, language in table.items():
                if value not in taken:
                    now = taken | {value}
                    if now not in written:
                        written[now] = graph.node()
                        further[now] = graph.node()
                        graph.insert(written[now], end, notation.gap, closed)
                        graph.insert(written[now], further[now], notation.comma)
                    graph.insert(node, written[now], language)
        due = further
    return graph.build(start, end)
