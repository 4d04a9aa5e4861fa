"""Examples are sampled in batches, as many together as there is room for.

What is bounded is rows of the language model, bytes of automata, and bytes of the tables that
proposals look ahead with (`Room`). An example alone is admitted whatever it takes, as its particles
are never split. Batches are made beforehand, of examples in a given order, so that the split does
not depend on the sampling, and a proposal can be asked about each batch before any work.

A batch waits for its last example (`docs/design.md` says why).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


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

    def holds(self, taken: Room) -> bool:
        """Whether this fits into it."""
        return all(there >= wanted for there, wanted in zip(self, taken, strict=True))


def in_batches(
    examples: Sequence[int], needs: Callable[[Sequence[int]], Room], room: Room
) -> list[list[int]]:
    """Divide examples into batches, in their order.

    Args:
        examples: what names them.
        needs: what some of them take together.
        room: what there is.
    """
    batches: list[list[int]] = []
    for example in examples:
        if batches and room.holds(needs([*batches[-1], example])):
            batches[-1].append(example)
        else:
            batches.append([example])
    return batches
