"""Normalization of token automata: one final state, no dead ends, few classes.

This is the last step of `gcd.lift` and of automata made by hand. It removes dead ends, merges
classes of tokens that no remaining state distinguishes, and makes the state after EOS the last one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Integer

from gcd._support.kernels.grouping import number_by_first
from gcd._tokens.distances import UNREACHABLE
from gcd._tokens.distances import edges as edges_of
from gcd._tokens.kernels import token_graph as graph
from gcd._tokens.kernels.classes import first_equal

ENDINGS = ("token", "accept")


class TokenTable(NamedTuple):
    """Constructor arguments of a `TokenAutomaton` after its vocabulary, in order."""

    class_of: Int32[np.ndarray, "V"]
    delta: Int32[np.ndarray, "S C"]
    accepting: Bool[np.ndarray, "S"]
    steps_to_accept: Int32[np.ndarray, "S"]
    initial: int
    eos_class: int


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
    edges: Int32[np.ndarray, "E 2"] | None = None,
    *,
    merge: bool = False,
) -> TokenTable | None:
    """Remove the states that aren't on a path from `initial` to the final state (the last).

    `edges` are the pairs (state, next state) of the table, if known. Equal token classes are merged
    if states were removed or `merge` is set. Return None if no tokens lead from `initial` to the
    final state.
    """
    found = trim_numbered(delta, class_of, initial, edges, merge=merge)
    return None if found is None else found[0]


def trim_numbered(
    delta: Int32[np.ndarray, "S C"],
    class_of: Int32[np.ndarray, "V"],
    initial: int,
    edges: Int32[np.ndarray, "E 2"] | None = None,
    *,
    merge: bool = False,
) -> tuple[TokenTable, Int32[np.ndarray, "S"]] | None:
    """Return what `trim` returns, and the new number of each state, -1 if it was removed."""
    edges = edges_of(delta) if edges is None else edges
    num_states = delta.shape[0]
    final, eos_class = num_states - 1, delta.shape[1] - 1
    steps = graph.distances(edges, num_states, final, UNREACHABLE, True)
    if steps[initial] == UNREACHABLE:
        return None
    ahead = graph.distances(edges, num_states, initial, UNREACHABLE, False)
    alive = (ahead < UNREACHABLE) & (steps < UNREACHABLE)
    number = np.full(num_states + 1, -1, np.int32)
    number[:-1][alive] = np.arange(alive.sum())
    if merge or not alive.all():
        delta = number[delta[alive]]
        final, initial = delta.shape[0] - 1, int(number[initial])
        is_eos = class_of == eos_class
        targets, class_of = merge_classes(
            np.ascontiguousarray(delta[:, :eos_class]), np.where(is_eos, 0, class_of), is_eos
        )
        delta = np.concatenate([targets, delta[:, eos_class:]], axis=1)
        eos_class = delta.shape[1] - 1
        class_of = np.where(class_of < 0, eos_class, class_of).astype(np.int32)
        steps = steps[alive]
    table = TokenTable(
        class_of,
        delta,
        delta[:, eos_class] == final,
        steps,
        initial,
        eos_class,
    )
    return table, number[:-1]


def merge_classes(
    table: Int32[np.ndarray, "S C"],
    class_of: Integer[np.ndarray, "V"],
    apart: Bool[np.ndarray, "V"],
) -> tuple[Int32[np.ndarray, "S C2"], Int32[np.ndarray, "V"]]:
    """Merge token classes with equal table columns, and number the classes by first token.

    Tokens marked `apart` get the number -1 instead of a class. Classes without tokens are dropped.
    """
    same = first_equal(table, *table.shape)
    # Number 0 is for the tokens marked `apart`; classes are numbered by their first token.
    merged = np.where(apart, 0, same[class_of] + 1)
    merged, first = number_by_first(np.append(0, merged), same.size + 1)
    kept = class_of[first[1:] - 1]
    return np.ascontiguousarray(table[:, kept]), merged[1:] - 1
