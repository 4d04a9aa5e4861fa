"""Division of examples into batches that fit into memory.

A batch is limited by the number of its model rows, the bytes of its automata, and the bytes of its
lookahead tables (`Room`). The particles of an example are never split, so a batch with a single
example may exceed the limits.

Batches are formed before any forward pass, from examples in a given order. Therefore the division
doesn't depend on the sampling, and a proposal can check each batch beforehand.

A batch runs until its last example has finished (`docs/design.md` explains why).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Room(NamedTuple):
    """Amount of each resource that limits a batch: either the available or the required amount.

    Attributes:
        rows: number of rows of the language model.
        automata: bytes of the automata's tables.
        lookahead: bytes of the proposals' lookahead tables.
    """

    rows: float
    automata: float
    lookahead: float

    def holds(self, taken: Room) -> bool:
        """Return whether a batch that requires the amounts `taken` fits into these amounts."""
        return all(there >= wanted for there, wanted in zip(self, taken, strict=True))


def in_batches(
    examples: Sequence[int], needs: Callable[[Sequence[int]], Room], room: Room
) -> list[list[int]]:
    """Divide examples into batches, keeping their order.

    Args:
        examples: numbers of the examples.
        needs: function that returns the resources that a list of examples requires together; more
            examples never require less.
        room: the available resources.
    """
    batches: list[list[int]] = []
    start = 0
    while start < len(examples):
        # Double the batch while it fits, then bisect; one call per example would be quadratic.
        count, step, grows = 1, 1, True
        while step:
            end = start + count + step
            if end <= len(examples) and room.holds(needs(examples[start:end])):
                count += step
            else:
                grows = False
            step = 2 * step if grows else step // 2
        batches.append(list(examples[start : start + count]))
        start += count
    return batches
