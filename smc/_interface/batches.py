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
        needs: returns the resources that a list of examples requires together.
        room: the available resources.
    """
    batches: list[list[int]] = []
    for example in examples:
        if batches and room.holds(needs([*batches[-1], example])):
            batches[-1].append(example)
        else:
            batches.append([example])
    return batches
