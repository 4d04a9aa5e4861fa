"""Objects with enough different names: a name that comes twice counts once.

No automaton compares two names of any length. It can sort names into finitely many classes, and two
names of different classes are different. So an object has enough names if its declared members and
the classes of its undeclared ones are as many. Where names are few, each is a class by itself, and
this is exact. In general the classes are those of a checksum of the name, so that of all pairs of
different names one in `_CLASSES` is taken for one name.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from gcd.automata.assembly import Assembly
from gcd.automata.automaton import Automaton
from gcd.automata.byte_classes import NUM_BYTES
from gcd.automata.limits import priced_cache
from gcd.languages.values.notation import Notation, mark
from gcd.languages.values.objects import Member

_CLASSES, _FACTOR = 13, 5  # of the checksum, in which names that differ in one letter differ
_MAX_SETS = 120  # of classes that are remembered


def can_tell(fewest: int, classes: int) -> bool:
    """Return whether so many different names can be told apart, out of so many classes."""
    return fewest <= classes and sum(comb(classes, taken) for taken in range(fewest)) <= _MAX_SETS


@priced_cache(maxsize=1)
def checksums() -> tuple[Automaton, ...]:
    """Return the texts of each checksum: the characters are the digits of a number, modulo a prime.

    All characters outside of ASCII are the same digit, as escapes of each take states.
    """
    sums, values = np.arange(_CLASSES)[:, None], np.arange(NUM_BYTES)[None, :]
    digits = np.where(values < 0x80, values, 0)
    continues = (values >= 0x80) & (values < 0xC0)  # a byte inside of a character
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
    """Return objects of `gcd.languages.values.objects.mapping` with `fewest` different names.

    Args:
        members, extras: what may be there, as in `mapping`; braces stand around them.
        fewest: how many names there must be.
        classes: keys, quotes included, in languages that do not overlap; keys of different
            languages are different names.
    """
    graph = Assembly()
    start, end, enough = graph.node(), graph.node(), graph.node()
    written = [graph.node() for _ in range(fewest)]  # so many declared members
    graph.insert(start, written[0], mark("{"), notation.gap)
    done = graph.node()  # enough of them
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
