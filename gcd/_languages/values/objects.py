"""Languages of objects: ordered members, then undeclared members, with bounds on their number.

Each function builds a graph whose edges are languages, and determinizes it once. If members come in
declared order, the number of nodes is linear in the number of members. The possible continuations
after member i then depend only on i (and on the number of members so far, if it is bounded). If
members come in any order, there is a node for each set of written members, so this is feasible for
few members only.

**Enough names.** Repeated names count once. An automaton cannot compare two names of arbitrary
length, but it can divide names into finitely many classes, and names of different classes are
different. If there are only few possible names, each of them is a class, and the result is exact.
Otherwise, the classes are the values of a checksum. Of all pairs of different names, one in
`_CLASSES` has equal checksums and counts as one name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb
from typing import NamedTuple

import numpy as np

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import Automaton
from gcd._automata.byte_classes import NUM_BYTES
from gcd._automata.limits import cache_with_price, max_states
from gcd._errors import StateLimitError, show_count
from gcd._languages.values.notation import Notation, mark


class Member(NamedTuple):
    """Member of an object."""

    key: Automaton
    value: Automaton
    required: bool
    # True if it is written in a dictionary after two asterisks, in the way that a Python call
    # passes arguments whose names aren't identifiers: `**{"page-size": 3}`. Several unpacked
    # members may share a dictionary.
    unpacked: bool = False


class Frame(NamedTuple):
    """Delimiters around and inside an object.

    The arguments of a Python call are also treated as members, with other delimiters.
    """

    opened: str = "{"
    closed: str = "}"
    # Separator between a key and its value; None for the notation's own
    colon: Automaton | None = None
    # Function that returns whether a name is written without quotes; members with other names are
    # unpacked (`Member.unpacked`). None: all names are written as keys of the notation.
    is_bare: Callable[[str], bool] | None = None
    before: tuple[Automaton, ...] = ()  # text before each key
    comma: Automaton | None = None  # separator between members; None for the notation's own
    # Notation of the members' own strings, if it differs from that of inner strings
    raw: Notation | None = None
    # Function from the texts of a member in `raw` and of its other values to its value
    write: Callable[[Automaton, Automaton], Automaton] | None = None


BRACES = Frame()


def mapping(
    notation: Notation,
    members: Sequence[Member],
    extras: Sequence[Member] = (),
    *,
    count: tuple[int, int | None] = (0, None),
    any_order: bool = False,
    frame: Frame = BRACES,
) -> Automaton:
    """Return objects with the given members in order, then any number of `extras`.

    With `any_order`, all of them may occur in any order, and no member may be unpacked.
    """
    fewest, most = count
    if not notation.objects or (most is not None and most < fewest):
        return Automaton.empty()
    if not extras and fewest > len(members):
        return Automaton.empty()
    if fewest <= sum(member.required for member in members):
        fewest = 0
    if most is not None and not extras and most >= len(members):
        most = None
    if any_order:
        return _in_any_order(notation, members, extras, (fewest, most), frame)
    # Counts above `highest` need no nodes: they are either equivalent to it or not allowed.
    highest = max(1, fewest) if most is None else most
    size = 1 + sum(member.value.num_states for member in [*members, *extras])
    if highest > 1 and highest * size > max_states():
        raise StateLimitError(
            max_states(), what=f"counting up to {show_count(highest)} members of an object"
        )
    colon, comma = frame.colon or notation.colon, frame.comma or notation.comma
    graph = Assembly()
    start, end = graph.node(), graph.node()

    def stage() -> _Stage:
        unpacks = any(member.unpacked for member in members)
        nodes = [graph.node() for _ in range(highest + 1)]
        return _Stage(nodes, [graph.node() for _ in nodes] if unpacks else [])

    def add(member: Member, before: _Stage, after: _Stage) -> None:
        for number in range(1, highest + 1):
            due = graph.node()
            sources = {number - 1, number} if number == highest and most is None else {number - 1}
            for source in sources:
                if source == 0:
                    graph.skip(before.written[0], due)
                else:
                    graph.insert(before.written[source], due, comma)
            if not member.unpacked:
                texts = (*frame.before, member.key, colon, member.value)
                graph.insert(due, after.written[number], *texts)
                continue
            inside = graph.node()
            graph.insert(due, inside, mark("**{"), notation.gap)
            for source in sources - {0}:
                graph.insert(before.open[source], inside, notation.comma)
            graph.insert(inside, after.open[number], member.key, notation.colon, member.value)
            graph.insert(after.open[number], after.written[number], notation.gap, mark("}"))

    here = stage()
    graph.insert(start, here.written[0], mark(frame.opened), notation.gap)
    for member in members:
        after = stage()
        add(member, here, after)
        if not member.required:
            for one, other in zip(here.nodes, after.nodes, strict=True):
                graph.skip(one, other)
        here = after
    for extra in extras:
        add(extra, here, here)
    _close(graph, notation, frame, dict(enumerate(here.written)), fewest, end)
    return graph.build(start, end)


class _Stage(NamedTuple):
    """Nodes of the graph before or after a member, by the number of members so far."""

    written: list[int]  # nodes outside of dictionaries `**{...}`
    open: list[int]  # nodes inside such a dictionary; empty if no member is `unpacked`

    @property
    def nodes(self) -> list[int]:
        return self.written + self.open


def _in_any_order(
    notation: Notation,
    members: Sequence[Member],
    extras: Sequence[Member],
    count: tuple[int, int | None],
    frame: Frame,
) -> Automaton:
    fewest, most = count
    highest = max(1, fewest) if most is None else most
    size = sum(member.value.num_states for member in members) * 2 ** max(0, len(members) - 1)
    if size * highest > 4 * max_states():
        raise StateLimitError(
            max_states(), what=f"an object of {len(members)} members in any order"
        )
    colon = frame.colon or notation.colon
    graph = Assembly()
    start, end = graph.node(), graph.node()
    nodes: dict[tuple[frozenset[int], int], int] = {}  # (declared members written, all members)

    def node(key: tuple[frozenset[int], int]) -> int:
        if key not in nodes:
            nodes[key] = graph.node()
            pending.append(key)
        return nodes[key]

    pending: list[tuple[frozenset[int], int]] = []
    graph.insert(start, node((frozenset(), 0)), mark(frame.opened), notation.gap)
    needed = frozenset(i for i, member in enumerate(members) if member.required)
    while pending:
        done, number = key = pending.pop()
        here, due = nodes[key], graph.node()
        if number:
            graph.insert(here, due, notation.comma)
        else:
            graph.skip(here, due)
        more = number + 1
        if more > highest:
            more = highest if most is None else -1
        if more >= 0:
            for i, member in enumerate(members):
                if i not in done:
                    target = node((done | {i}, more))
                    graph.insert(due, target, member.key, colon, member.value)
            for extra in extras:
                graph.insert(due, node((done, more)), extra.key, colon, extra.value)
        if done >= needed:
            _close(graph, notation, frame, {number: here}, fewest, end)
    return graph.build(start, end)


def _close(
    graph: Assembly,
    notation: Notation,
    frame: Frame,
    written: dict[int, int],
    fewest: int,
    end: int,
) -> None:
    for number, node in written.items():
        if number >= fewest:
            gap = [notation.gap] if number else []  # the opening delimiter already includes one
            graph.insert(node, end, *gap, mark(frame.closed))


# Parameters of the checksum. Names that differ in one letter have different checksums.
_CLASSES, _FACTOR = 13, 5
_MAX_SETS = 120  # maximum number of sets of classes that are tracked


def can_tell(fewest: int, classes: int) -> bool:
    """Return whether counting `fewest` names in these classes takes few enough states."""
    return fewest <= classes and sum(comb(classes, taken) for taken in range(fewest)) <= _MAX_SETS


@cache_with_price(maxsize=1)
def checksums() -> tuple[Automaton, ...]:
    """Return the texts of each checksum.

    A text is read as the digits of a number modulo a prime. All non-ASCII characters count as the
    same digit, because distinguishing their escapes takes too many states.
    """
    sums, values = np.arange(_CLASSES)[:, None], np.arange(NUM_BYTES)[None, :]
    digits = np.where(values < 0x80, values, 0)
    continues = (values >= 0x80) & (values < 0xC0)  # a byte inside a character
    table = np.where(continues, sums, (sums * _FACTOR + digits + 1) % _CLASSES)
    return tuple(
        Automaton.from_transitions(table, np.arange(_CLASSES) == checksum)
        for checksum in range(_CLASSES)
    )


def enough_names(
    notation: Notation,
    members: Sequence[Member],
    extras: Sequence[Member],
    fewest: int,
    classes: Sequence[Automaton],
) -> Automaton:
    """Return objects with at least `fewest` different names, which are in different `classes`."""
    graph = Assembly()
    start, end, enough = graph.node(), graph.node(), graph.node()
    written = [graph.node() for _ in range(fewest)]  # nodes by the number of declared members
    graph.insert(start, written[0], mark("{"), notation.gap)
    done = graph.node()  # node with enough names
    for member in members:
        after = [graph.node() for _ in range(fewest)]
        satisfied = graph.node()
        parts = (member.key, notation.colon, member.value)
        for number, node in enumerate(written):
            comma = [notation.comma] if number else []
            graph.insert(node, after[number + 1] if number + 1 < fewest else satisfied,
                         *comma, *parts)  # fmt: skip
            if not member.required:
                graph.skip(node, after[number])
        graph.insert(done, satisfied, notation.comma, *parts)
        if not member.required:
            graph.skip(done, satisfied)
        written, done = after, satisfied
    graph.skip(done, enough)
    keys = [[extra.key & each for each in classes] for extra in extras]
    seen = {(number, frozenset[int]()): node for number, node in enumerate(written)}
    pending = list(seen)
    while pending:
        number, taken = key = pending.pop()
        comma = [notation.comma] if number or taken else []
        for extra, table in zip(extras, keys, strict=True):
            names = dict(enumerate(table))
            known = Automaton.union([names.pop(each) for each in sorted(taken)])
            more = number + len(taken) + 1
            ways: list[tuple[int, Automaton]] = [(seen[key], known)] if taken else []
            if more >= fewest:
                ways.append((enough, Automaton.union(list(names.values()))))
                names = {}
            for each, name in names.items():
                now = (number, taken | {each})
                if now not in seen:
                    seen[now] = graph.node()
                    pending.append(now)
                ways.append((seen[now], name))
            for target, name in ways:
                if not name.is_empty:
                    graph.insert(seen[key], target, *comma, name, notation.colon, extra.value)
    for extra in extras:
        graph.insert(enough, enough, notation.comma, extra.key, notation.colon, extra.value)
    graph.insert(enough, end, notation.gap, mark("}"))
    return graph.build(start, end)
