"""This module puts languages together: finished parts laid between nodes, determinised at once.

Rational operations (union, concatenation, repetition) are cheap on graphs: lay the parts between
nodes, and add skips. One subset construction and one minimisation at the end then give the minimal
deterministic automaton that everything else works with. Doing that once for n parts, not n - 1
times for pairs, is what keeps large schemas linear. A non-deterministic automaton is such a graph
as well: its states are the nodes, and its edges parts that read one byte.

Cost: O(subsets x byte classes x mean subset size), and most subsets are single states.

What comes out is a `TransitionTable`: deterministic, not yet minimal. `Automaton.join` brings it
into normal form; this module does not know automata.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int32, UInt8

from gcd.automata.kernels import joining as kernels
from gcd.automata.limits import kernel_limits, max_states, pay
from gcd.errors import StateLimitError


class TransitionTable(NamedTuple):
    """A deterministic automaton as plain arrays; state 0 is initial.

    Attributes:
        delta: next state for (state, byte class), -1 for none.
        accepting: which states accept.
        class_of_byte: class of each of the 256 bytes.
    """

    delta: Int32[np.ndarray, "S K"]
    accepting: Bool[np.ndarray, S]
    class_of_byte: UInt8[np.ndarray, 256]


@runtime_checkable
class Part(Protocol):
    """What `join` reads of a deterministic automaton, such as `Automaton` or `TransitionTable`."""

    @property
    def delta(self) -> Int32[np.ndarray, "S K"]: ...
    @property
    def accepting(self) -> Bool[np.ndarray, S]: ...
    @property
    def class_of_byte(self) -> UInt8[np.ndarray, 256]: ...
    @property
    def num_states(self) -> int: ...


def join(
    parts: Sequence[Part],
    joints: Sequence[tuple[int, int]],
    *,
    num_nodes: int,
    skips: Sequence[tuple[int, int]] = (),
    start: int,
    end: int,
    absorbing: int = -1,
) -> TransitionTable:
    """Return the language of the strings that paths from node `start` to node `end` spell.

    `parts[i]`, of which there is at least one, leads from one node of `joints[i]` to the other;
    `skips` lead on without a byte. A part may stand in many joints; its table is then looked at
    where it is.
    """
    distinct = {id(part): part for part in parts}
    number = {key: i for i, key in enumerate(distinct)}
    tables = list(distinct.values())
    if sum(part.num_states for part in parts) > max_states():
        raise StateLimitError(max_states())
    delta, accepting, class_of_byte, count, work = kernels.join(
        np.concatenate([part.delta.ravel() for part in tables]),
        np.concatenate([part.accepting for part in tables]),
        np.stack([part.class_of_byte for part in tables]),
        np.cumsum([0, *(part.delta.size for part in tables)]),
        np.cumsum([0, *(part.num_states for part in tables)]),
        np.array([number[id(part)] for part in parts], np.int32),
        np.array(joints, np.int32).reshape(-1, 2),
        np.array(skips, np.int32).reshape(-1, 2),
        num_nodes,
        (start, end, absorbing),
        kernel_limits(),
    )
    pay(count, work)
    return TransitionTable(delta, accepting, class_of_byte)
