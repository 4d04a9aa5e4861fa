"""Groups of examples that run at the same time share every forward pass of the language model.

An algorithm is written for one group of examples, as a generator. Where it wants prefixes read, it
yields a `Reading`, and is sent what the model says after them. So several groups, each at a step of
its own, can be under way together (`smc.schedule`): `JointRows` holds their rows side by side,

    rows of group 1 | rows of group 2 | ...

answers one reading of each of them in one pass, and takes new groups in and drops finished ones on
the way. What a group does otherwise (its automata, proposal, particles, records) it does by itself,
so its results are those that it has alone, up to how the model's sums round in another batch.

Cost beside the pass: moving the rows' caches, and padding of runs to the longest one, which is cut
where it would make most of the pass padding.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from smc.language_model import JoiningRows, Rows

MOST_READ = 1 << 26
"""Numbers of log-probabilities that come out of one forward pass, at most, if it can be helped."""

LEAST_FILLED = 0.5
"""The part of a pass that groups' runs fill at least, where their lengths differ."""

Result = TypeVar("Result")


class Reading(NamedTuple):
    """What a group of examples wants to have read.

    Attributes:
        rows: with its first reading, the group hands over the rows of its prompts; None later.
        ancestors: which of the group's rows, as its last reading left them, each of R rows goes on
            from.
        runs: tokens to read.
        lengths: how many of them, of each row.
        most_rows: most rows that the group will ask for from now on.
    """

    rows: Rows | None
    ancestors: Int64[Tensor, "R"]
    runs: Int64[Tensor, "R T"]
    lengths: Int64[Tensor, "R"]
    most_rows: int


Steps: TypeAlias = Generator[Reading, Tensor, Result]
"""An algorithm under way. What it is sent are log-probabilities [R, t, V] after each of the first t
tokens of the runs, where t is at least one, and less than T where all at once would be too many; it
asks for the others again."""


class Run(Generic[Result]):
    """An algorithm under way, up to its next reading.

    Attributes:
        reading: what it waits for; None once it has ended.
        result: what it came to, then.
    """

    reading: Reading | None
    result: Result

    def __init__(self, steps: Steps[Result]) -> None:
        self._steps = steps
        self._go_on(None)

    def send(self, said: Float[Tensor, "R t V"]) -> None:
        """Goes on with what the model says."""
        self._go_on(said)

    @torch.inference_mode()
    def _go_on(self, said: Tensor | None) -> None:
        try:
            self.reading = next(self._steps) if said is None else self._steps.send(said)
        except StopIteration as end:
            self.reading, self.result = None, end.value


class JointRows:
    """The rows of several groups of examples, side by side.

    Args:
        vocabulary_size: V, by which the width of a pass is bounded.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._rows: Rows | None = None
        self._sizes: dict[int, int] = {}  # rows of each group, in their order

    @torch.inference_mode()
    def read(self, readings: Mapping[int, Reading]) -> dict[int, Float[Tensor, "R t V"]]:
        """Reads what these groups want, in one pass; a group without a reading leaves for good.

        Args:
            readings: by the number of the group; those that were not there before enter, which
                takes `JoiningRows` where others are.
        """
        self._move(readings)
        width = self._width(list(readings.values()))
        runs, lengths = [], []
        for number in self._sizes:
            run = readings[number].runs[:, :width]
            runs.append(torch.nn.functional.pad(run, (0, width - run.shape[1])))
            lengths.append(readings[number].lengths.clamp(max=width))
        assert self._rows is not None, "some group has rows"
        said = self._rows.extend(torch.cat(runs), torch.cat(lengths))
        parts = said.split(list(self._sizes.values()))
        return {
            number: part[:, : readings[number].runs.shape[1]]
            for number, part in zip(self._sizes, parts, strict=True)
        }

    def _width(self, readings: Sequence[Reading]) -> int:
        """The longest run to read at once: a group's, unless most of the pass would be padding.

        The rest of a run that is cut goes with what the others read next.
        """
        total = sum(len(reading.ancestors) for reading in readings)
        width = 1
        for longest in sorted({reading.runs.shape[1] for reading in readings}):
            read = sum(min(each.runs.shape[1], longest) * len(each.ancestors) for each in readings)
            if read >= LEAST_FILLED * total * longest:
                width = longest
        return max(1, min(width, MOST_READ // (total * self._vocabulary_size)))

    def _move(self, readings: Mapping[int, Reading]) -> None:
        """Makes the rows those that the readings go on from; new groups come last."""
        first, moved, sizes = 0, [], {}
        for number, size in self._sizes.items():
            if number in readings:
                moved.append(readings[number].ancestors + first)
                sizes[number] = len(moved[-1])
            first += size
        if self._rows is not None and moved:
            self._rows.reorder(torch.cat(moved))
        else:
            self._rows = None
        for number, reading in readings.items():
            if number in sizes:
                continue
            assert reading.rows is not None, "a group hands over its rows with its first reading"
            reading.rows.reorder(reading.ancestors)
            sizes[number] = len(reading.ancestors)
            if self._rows is None:
                self._rows = reading.rows
            else:
                assert isinstance(self._rows, JoiningRows), "rows that cannot join are alone"
                self._rows.join(reading.rows)
        self._sizes = sizes


def alone(steps: Steps[Result], vocabulary_size: int) -> Result:
    """Runs an algorithm on one group of examples, with nobody beside it."""
    rows, run = JointRows(vocabulary_size), Run(steps)
    while run.reading is not None:
        run.send(rows.read({0: run.reading})[0])
    return run.result
