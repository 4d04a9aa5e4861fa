"""Normalization of token automata: one final state, no dead ends, few classes.

This is the last step of `gcd.lift` and of automata made by hand. It removes dead ends, merges
classes of tokens that no remaining state distinguishes, and makes the state after EOS the last one.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int32

from gcd._support.kernels.grouping import number_by_first
from gcd._tokens.distances import UNREACHABLE, distances_to
from gcd._tokens.rows import Rows

ENDINGS = ("token", "accept")


TokenTable = tuple[
    Int32[np.ndarray, "V"], Rows, Bool[np.ndarray, "_"], Int32[np.ndarray, "_"], int, int
]
"""Constructor arguments of a `TokenAutomaton` after its vocabulary, in order."""


def with_final(
    targets: Int32[np.ndarray, "S C"],
    accepting: Bool[np.ndarray, "S"],
    class_of: Int32[np.ndarray, "V"],
    eos: str,
) -> tuple[Int32[np.ndarray, "S1 C1"], Int32[np.ndarray, "V"]]:
    """Add a final state and an EOS class to a table, as the last row and the last column.

    In `class_of`, EOS ids have class -1. With `eos="accept"`, accepting states have no outgoing
    edges, and edges to them lead to the final state instead.
    """
    final = accepting.size
    if eos == "accept":
        targets = np.where((targets >= 0) & accepting[targets], final, targets)
    delta = np.full((final + 1, targets.shape[1] + 1), -1, np.int32)
    delta[:-1, :-1] = targets
    add_end(delta, accepting)
    return delta, np.where(class_of < 0, targets.shape[1], class_of).astype(np.int32)


def add_end(delta: Int32[np.ndarray, "S1 C1"], accepting: Bool[np.ndarray, "S"]) -> None:
    """Write the transitions of EOS to the last row and column of a table, where all were -1."""
    final = accepting.size
    delta[:-1, -1] = np.where(accepting, final, -1)
    delta[-1, -1] = final


def trim(
    delta: Int32[np.ndarray, "S C"],
    class_of: Int32[np.ndarray, "V"],
    initial: int,
    *,
    merge: bool = False,
) -> TokenTable | None:
    """Remove states not on a path from `initial` to the last state; return None if none is left."""
    rows, eos_class = Rows.of(delta), delta.shape[1] - 1
    alive, steps = _measure(rows, initial)
    if not alive[initial]:
        return None
    if not merge and alive.all():
        return class_of, rows, rows.is_allowed(eos_class), steps, initial, eos_class
    number = np.full(delta.shape[0] + 1, -1, np.int32)
    number[:-1][alive] = np.arange(alive.sum())
    rows, class_of, eos_class = _merge_classes(Rows.of(number[delta[alive]]), class_of, eos_class)
    accepting = rows.is_allowed(eos_class)
    return class_of, rows, accepting, steps[alive], int(number[initial]), eos_class


def trim_rows(
    rows: Rows, class_of: Int32[np.ndarray, "V"], initial: int, num_classes: int
) -> TokenTable | None:
    """Do the same as `trim` for a compressed table, in which dead ends are rare."""
    alive, steps = _measure(rows, initial)
    if alive.all():
        ends = rows.is_allowed(num_classes - 1)
        return class_of, rows, ends, steps, initial, num_classes - 1
    return trim(rows.dense(num_classes), class_of, initial) if alive[initial] else None


def _measure(rows: Rows, initial: int) -> tuple[Bool[np.ndarray, "S"], Int32[np.ndarray, "S"]]:
    """Return which states are on a path from `initial` to the last, and their distances to it."""
    edges, num_states = rows.edges, rows.pattern_of.size
    steps = distances_to(num_states - 1, edges, num_states)
    ahead = distances_to(initial, edges[::-1], num_states)
    return (ahead < UNREACHABLE) & (steps < UNREACHABLE), steps


def _merge_classes(
    rows: Rows, class_of: Int32[np.ndarray, "V"], eos_class: int
) -> tuple[Rows, Int32[np.ndarray, "V"], int]:
    """Merge equal classes, drop empty ones, and number them by first token; EOS is last."""
    same, is_eos = rows.equal_classes(eos_class + 1), class_of == eos_class
    # Number 0 is for EOS; other classes are numbered by their first token.
    merged = np.where(is_eos, 0, same[class_of] + 1)
    merged, first = number_by_first(np.append(0, merged), eos_class + 2)
    number = np.full(eos_class + 1, -1, np.int32)
    number[same[class_of[first[1:] - 1]]] = np.arange(first.size - 1)
    number[eos_class] = first.size - 1
    class_of = np.where(is_eos, first.size - 1, merged[1:] - 1).astype(np.int32)
    return rows.renumber_classes(number), class_of, first.size - 1
