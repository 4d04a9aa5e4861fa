"""Groups of examples enter a running batch as soon as there is room for them.

Examples end at different times: some answers are short, some budgets small. In a batch that waits
for its last example, the model soon reads a few rows in a pass that costs nearly as much as one of
many. So the first group of examples fills the batch, and the others wait in smaller groups; when
enough rows have left, the next group has its prompts read and joins (`smc.reading.JointRows`).

What is bounded, over all groups under way: rows of the language model, and bytes of automata and
of tables that proposals look ahead with (`Room`). With a group go its tables. A group alone is
admitted whatever it takes, as examples are never split.

Groups are made beforehand, of examples in a given order. So it depends on nothing random who shares
tables with whom, and a proposal can be asked about each of them before any work.

Cost: what algorithms do beside the language model is done group by group, so up to `MOST_GROUPS`
times in the time of one pass, on fewer rows each. It pays where that is little beside a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

from torch import Tensor

from smc.language_model import JoiningRows
from smc.reading import JointRows, Result, Run, Steps

ENTERING = 2
"""Groups that enter later are this part of a full batch: larger ones wait longer for room, smaller
ones share less of the work beside the model. 1: a batch waits for its last example."""
MOST_GROUPS = 3
"""Groups under way, at most; otherwise the last examples of many would each have steps alone."""


class Room(NamedTuple):
    """What there is of each resource, or what is taken of it.

    Attributes:
        rows: of the language model.
        automata: bytes of the automata's tables.
        lookahead: bytes of the tables that proposals look ahead with.
    """

    rows: float
    automata: float
    lookahead: float

    def holds(self, taken: Iterable[Room]) -> bool:
        """Whether all of these fit into it."""
        sums = [sum(column) for column in zip(*taken, strict=True)]
        return all(there >= sum_ for there, sum_ in zip(self, sums, strict=True))


@dataclass(frozen=True)
class Group(Generic[Result]):
    """Examples that enter together.

    Attributes:
        needs: what they take when they enter.
        start: begins to sample them.
    """

    needs: Room
    start: Callable[[], Steps[Result]]


@dataclass(frozen=True)
class Ended(Generic[Result]):
    """What became of a group.

    Attributes:
        number: its place among the groups.
        result: what its algorithm came to.
        seconds: its own time, and its share of the passes that it was part of, by rows.
    """

    number: int
    result: Result
    seconds: float


def in_groups(
    examples: Sequence[int], needs: Callable[[Sequence[int]], Room], room: Room
) -> list[list[int]]:
    """Divides examples into groups, in their order: one for a full batch, the others smaller.

    Args:
        examples: what names them.
        needs: what some of them take together.
        room: what there is.
    """
    groups: list[list[int]] = []
    full: int | None = None  # examples of a whole batch
    for example in examples:
        rows = needs([example]).rows
        full = max(1, int(room.rows // rows))
        most = full if len(groups) <= 1 else -(-full // ENTERING)
        last = groups[-1] if groups else []
        if last and len(last) < most and room.holds([needs([*last, example])]):
            last.append(example)
        else:
            groups.append([example])
    return groups


class _Member(Generic[Result]):
    """A group under way."""

    def __init__(self, group: Group[Result]) -> None:
        started = time.perf_counter()
        self._needs = group.needs
        self.run = Run(group.start())
        reading = self.run.reading
        self.joins = reading is not None and isinstance(reading.rows, JoiningRows)
        self.seconds = time.perf_counter() - started

    @property
    def needs(self) -> Room:
        """What it takes from now on: rows leave, tables stay to the end."""
        reading = self.run.reading
        assert reading is not None, "a group without a reading has ended"
        return self._needs._replace(rows=reading.most_rows)

    def send(self, said: Tensor) -> None:
        """Goes on with what the model says."""
        started = time.perf_counter()
        self.run.send(said)
        self.seconds += time.perf_counter() - started


def run(
    groups: Sequence[Group[Result]], room: Room, vocabulary_size: int
) -> Iterator[Ended[Result]]:
    """Runs all groups, as many at a time as there is room for; yields each as soon as it ends."""
    joint = JointRows(vocabulary_size)
    members: dict[int, _Member[Result]] = {}
    waiting = 0
    while waiting < len(groups) or members:
        while waiting < len(groups) and _may_enter(groups[waiting], members, room):
            members[waiting] = _Member(groups[waiting])
            waiting += 1
            yield from _ended(members)
        if not members:
            continue
        readings = {n: m.run.reading for n, m in members.items() if m.run.reading is not None}
        started = time.perf_counter()
        said = joint.read(readings)
        seconds = time.perf_counter() - started
        total = sum(len(reading.ancestors) for reading in readings.values())
        for number, reading in readings.items():
            members[number].seconds += seconds * len(reading.ancestors) / total
            members[number].send(said.pop(number))
        yield from _ended(members)


def _may_enter(group: Group[Result], members: dict[int, _Member[Result]], room: Room) -> bool:
    if not members:
        return True
    if len(members) >= MOST_GROUPS:
        return False
    joins = all(member.joins for member in members.values())
    return joins and room.holds([group.needs, *(member.needs for member in members.values())])


def _ended(members: dict[int, _Member[Result]]) -> Iterator[Ended[Result]]:
    """Takes those groups out that have come to their end."""
    for number in [n for n, member in members.items() if member.run.reading is None]:
        member = members.pop(number)
        yield Ended(number, member.run.result, member.seconds)
