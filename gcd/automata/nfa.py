"""This module puts languages together, as non-deterministic byte automata with epsilon edges.

Rational operations (union, concatenation, repetition) are cheap on non-deterministic automata:
lay the parts between nodes (`join`), add epsilon edges. One subset construction and one
minimisation at the end then give the minimal deterministic automaton that everything else works
with. Doing that once for n parts, not n - 1 times for pairs, is what keeps large schemas linear.
What has no deterministic parts is an `NFA` of labelled edges.

Cost: O(subsets x byte classes x mean subset size), and most subsets are single states.

What comes out is a `TransitionTable`: deterministic, not yet minimal. `Automaton.determinize` and
`Automaton.join` bring it into normal form; this module does not know automata.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int32, UInt8

from gcd.automata.byte_classes import NUM_BYTES, merge_equal_columns
from gcd.automata.kernels import joining as kernels
from gcd.automata.kernels import subsets
from gcd.automata.limits import kernel_limits, max_cells, max_states, pay, spend, work_left
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


@dataclass(frozen=True, eq=False)
class NFA:
    """A byte automaton with several initial states, parallel edges and epsilon edges.

    Attributes:
        source, byte_class, target: one entry for each labelled edge.
        epsilon: (source, target) pairs of edges that read nothing.
        initial: indices of the initial states.
        accepting: which states accept.
        class_of_byte: class of each of the 256 bytes.
    """

    source: Int32[np.ndarray, E]
    byte_class: Int32[np.ndarray, E]
    target: Int32[np.ndarray, E]
    epsilon: Int32[np.ndarray, "P 2"]
    initial: Int32[np.ndarray, I]
    accepting: Bool[np.ndarray, S]
    class_of_byte: UInt8[np.ndarray, 256]

    @property
    def num_states(self) -> int:
        return self.accepting.size

    @classmethod
    def from_edges(
        cls,
        num_states: int,
        edges: Iterable[tuple[int, Iterable[int], int]],
        *,
        initial: Iterable[int] = (0,),
        accepting: Iterable[int],
        epsilon: Iterable[tuple[int, int]] = (),
    ) -> NFA:
        """Make an automaton from edges (source, bytes, target), bytes being any of 0..255."""
        rows = [(s, np.fromiter(labels, np.int64), t) for s, labels, t in edges]
        counts = np.array([labels.size for _, labels, _ in rows], np.int64)
        source = np.repeat(np.array([s for s, _, _ in rows], np.int32), counts)
        target = np.repeat(np.array([t for _, _, t in rows], np.int32), counts)
        labels = np.concatenate([r[1] for r in rows]) if rows else np.zeros(0, np.int64)
        if labels.size and (labels.min() < 0 or labels.max() >= NUM_BYTES):
            raise ValueError(f"edge labels are bytes 0..255, got {labels.min()}..{labels.max()}")
        return cls(
            source,
            labels.astype(np.int32),
            target,
            np.array(list(epsilon), np.int32).reshape(-1, 2),
            np.fromiter(initial, np.int32),
            _indicator(num_states, accepting),
            np.arange(NUM_BYTES, dtype=np.uint8),
        )

    def determinize(self) -> TransitionTable:
        """Determinise by the subset construction; `StateLimitError` if the result is too large."""
        num_classes = int(self.class_of_byte.max()) + 1
        if 2 * self.num_states * num_classes > max_cells():  # indices of 8 bytes, not of 4
            spend(work_left() + 1)
        delta, accepting, count, work = subsets.determinize(
            (self.source, self.byte_class, self.target),
            self.epsilon,
            self.initial,
            self.accepting,
            num_classes,
            kernel_limits(),
        )
        pay(count, work)
        return TransitionTable(delta, accepting, self.class_of_byte)

    def with_joint_classes(self) -> NFA:
        """Return the same automaton over as few byte classes as its edges tell apart."""
        num_classes = int(self.class_of_byte.max()) + 1
        edge, inverse = np.unique(
            np.stack([self.source, self.target], axis=1), axis=0, return_inverse=True
        )
        table = np.zeros((edge.shape[0], num_classes), np.int32)
        table[inverse.reshape(-1), self.byte_class] = 1
        merged, class_of_byte = merge_equal_columns(table, self.class_of_byte)
        pair, label = np.nonzero(merged)
        return NFA(
            edge[pair, 0].astype(np.int32),
            label.astype(np.int32),
            edge[pair, 1].astype(np.int32),
            self.epsilon,
            self.initial,
            self.accepting,
            class_of_byte,
        )


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


def _indicator(size: int, members: Iterable[int]) -> Bool[np.ndarray, S]:
    result = np.zeros(size, bool)
    result[np.fromiter(members, np.int64)] = True
    return result
