"""Non-deterministic byte automata with epsilon edges: how languages are put together.

Rational operations (union, concatenation, repetition) are cheap on non-deterministic automata:
copy the parts, add epsilon edges. One subset construction and one minimisation at the end then
give the minimal deterministic automaton that everything else works with. Doing that once for n
parts, not n - 1 times for pairs, is what keeps large schemas linear.

Cost of `determinize`: O(subsets x byte classes x mean subset size).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int32, Integer, UInt8

from gcd.byte_classes import NUM_BYTES, joint_classes, merge_equal_columns
from gcd.errors import StateLimitError
from gcd.kernels import subsets
from gcd.limits import max_states

if TYPE_CHECKING:
    from gcd.automaton import Automaton


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
        """From edges (source, bytes, target), bytes being any iterable of 0..255."""
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

    @classmethod
    def from_parts(
        cls,
        parts: Sequence[Automaton],
        *,
        extra_states: int = 0,
        epsilon: Iterable[tuple[int, int]] = (),
        initial: Iterable[int],
        accepting: Bool[np.ndarray, S] | None = None,
    ) -> NFA:
        """Deterministic automata side by side, wired by epsilon edges.

        State s of part i is numbered `offsets(parts)[i] + s`; `extra_states` without edges of
        their own follow. `accepting` defaults to the parts' own accepting states.
        """
        starts = part_offsets(parts)
        total = int(starts[-1]) + extra_states
        if total > max_states():
            raise StateLimitError(max_states())
        class_of_byte, columns = joint_classes([p.class_of_byte for p in parts])
        source, labels, target = [], [], []
        for part, start, column in zip(parts, starts, columns, strict=False):
            table = part.delta[:, column]
            s, k = np.nonzero(table >= 0)
            source.append(s + start)
            labels.append(k)
            target.append(table[s, k] + start)
        if accepting is None:
            accepting = np.concatenate(
                [*(p.accepting for p in parts), np.zeros(extra_states, bool)]
            )
        return cls(
            np.concatenate(source).astype(np.int32),
            np.concatenate(labels).astype(np.int32),
            np.concatenate(target).astype(np.int32),
            np.array(list(epsilon), np.int32).reshape(-1, 2),
            np.fromiter(initial, np.int32),
            accepting,
            class_of_byte,
        )

    def determinize(self) -> Automaton:
        """The minimal deterministic automaton of the same language; may raise `StateLimitError`."""
        from gcd.automaton import Automaton

        # Classes that no edge tells apart are merged first: the table of (class -> edges) as sets.
        num_classes = int(self.class_of_byte.max()) + 1
        order = np.lexsort((self.target, self.byte_class, self.source))
        cells = self.source[order].astype(np.int64) * num_classes + self.byte_class[order]
        offsets = _offsets(cells, self.num_states * num_classes)
        eps_order = np.argsort(self.epsilon[:, 0], kind="stable")
        eps_offsets = _offsets(self.epsilon[eps_order, 0].astype(np.int64), self.num_states)
        delta, accepting, count = subsets.determinize(
            offsets,
            np.ascontiguousarray(self.target[order]),
            eps_offsets,
            np.ascontiguousarray(self.epsilon[eps_order, 1]),
            self.initial,
            self.accepting,
            num_classes,
            max_states(),
        )
        if count == subsets.TOO_MANY:
            raise StateLimitError(max_states())
        return Automaton.minimal(delta, accepting, self.class_of_byte)

    def with_joint_classes(self) -> NFA:
        """The same automaton over as few byte classes as its edges tell apart."""
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


def part_offsets(parts: Sequence[Automaton]) -> Int32[np.ndarray, M]:
    """First state number of each part laid side by side, and the number of states in all."""
    return np.cumsum([0, *(p.num_states for p in parts)]).astype(np.int32)


def _indicator(size: int, members: Iterable[int]) -> Bool[np.ndarray, S]:
    result = np.zeros(size, bool)
    result[np.fromiter(members, np.int64)] = True
    return result


def _offsets(sorted_cells: Integer[np.ndarray, E], num_cells: int) -> Integer[np.ndarray, C]:
    counts = np.bincount(sorted_cells, minlength=num_cells)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
