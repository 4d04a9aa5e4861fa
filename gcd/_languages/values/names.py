"""Objects with enough different names, where repeated names count once.

An automaton cannot compare two names of arbitrary length. But it can divide names into finitely
many classes, and names of different classes are different. So an object has enough names if the
number of its declared members plus the number of classes of its undeclared members reaches the
required count. If there are only few possible names, each of them is a class, and the result is
exact. Otherwise, the classes are the values of a checksum. Of all pairs of different names, one in
`_CLASSES` has equal checksums and counts as one name.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import Automaton
from gcd._automata.byte_classes import NUM_BYTES
from gcd._automata.limits import cache_with_price
from gcd._languages.values.notation import Notation, mark
from gcd._languages.values.objects import Member

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
