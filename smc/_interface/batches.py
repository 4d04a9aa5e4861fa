"""Division of examples into batches that fit into memory.

The limits apply to rows of the language model, bytes of automata, and bytes of lookahead tables
(`Room`). A single example is always admitted, because its particles are never split. Batches are
formed beforehand from examples in a given order, so the division doesn't depend on the sampling,
and a proposal can check each batch before any forward pass.

A batch runs until its last example has finished (`docs/design.md` explains why).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Room(NamedTuple):
    """Amounts of each resource, available or required.

    Attributes:
        rows: rows of the language model.
        automata: bytes of the automata's tables.
        lookahead: bytes of the lookahead tables of proposals.
    """

    rows: float
    automata: float
    lookahead: float

    def holds(self, taken: Room) -> bool:
        """Return whether the required resources fit into these."""
        return all(there >= wanted for there, wanted in zip(self, taken, strict=True))


def in_batches(
    examples: Sequence[int], needs: Callable[[Sequence[int]], Room], room: Room
) -> list[list[int]]:
    """Divide examples into batches, keeping their order.

    Args:
        examples: identities of the examples.
        needs: returns the resources that a list of examples requires together; not fewer with more
            examples.
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
