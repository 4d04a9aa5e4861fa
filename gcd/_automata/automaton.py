"""Finite automata over bytes, and operations on them.

A language here is a set of byte strings, stored as its **minimal deterministic automaton**. Every
state is reachable and leads to acceptance, no two states are equivalent, and states are numbered in
breadth-first order. This form is unique, so two languages are equal if and only if their arrays are
equal.

Languages are combined as a graph whose edges are automata or empty strings (`Automaton.join`). For
n parts, this takes one subset construction and one minimization instead of n - 1, so that large
schemas compile in linear time. A nondeterministic automaton is also such a graph: each of its edges
is a part of one byte.

The alphabet is bytes because tokens are byte strings that ignore character boundaries.

Costs, with S states and K byte classes:

* Minimization: O(S K) where fingerprints decide equivalence, O(S K log S) otherwise
  (`gcd._automata.kernels.residuals`).
* Product of two automata: O(S1 S2 K) over reachable pairs.
* Determinization: O(subsets x K x mean subset size); most subsets are single states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import blake2b
from itertools import islice
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int32, Integer, UInt8

from gcd._automata import strings
from gcd._automata.byte_classes import NUM_BYTES, joint_classes
from gcd._automata.horizon import Caveat, holds_as_far_as_its_parts, refuse_unchecked
from gcd._automata.kernels import graph, joining, subsets
from gcd._automata.kernels.canonical import canonical
from gcd._automata.limits import kernel_limits, max_states, pay, spend
from gcd._errors import EmptyLanguageError, StateLimitError, check_kind

_INTERSECTION, _UNION, _DIFFERENCE = 0, 1, 2
_HASHED = 64  # states that are hashed
SPECIAL = b"\xff"  # before and after the text of a special token
# Units of work to normalize a table, per entry and per state.
_PER_ENTRY, _PER_STATE = 12, 64
# Units of work of interpreted loops, per byte of a set of strings and per row of a table.
_PER_BYTE, _PER_ROW = 40, 1000


@dataclass(frozen=True, eq=False)
class Automaton:
    """Regular language over bytes, stored as its minimal deterministic automaton.

    Attributes:
        delta: next state for (state, byte class); -1 if no accepted string continues with this
            byte.
        accepting: for each state, whether a string that leads to it is in the language.
        class_of_byte: class of each byte; bytes that always lead to the same state share a class.
        max_bytes: greatest length in bytes up to which the automaton is exact; longer strings are
            not accepted (`gcd._automata.horizon`). None: it is exact for all strings.
        factors: automata that were combined into this one by Boolean operations; used by
            `gcd.lift`.
        caveats: parts of the constraint that the automaton does not enforce in every text.
        specials: texts of the special tokens that the language contains (`special`).

    State 0 is initial. The empty language has one state, which does not accept.
    """

    delta: Int32[np.ndarray, "S K"]
    accepting: Bool[np.ndarray, "S"]
    class_of_byte: UInt8[np.ndarray, "256"]
    max_bytes: int | None = None
    factors: tuple[Automaton, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    specials: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for array in (self.delta, self.accepting, self.class_of_byte):
            array.flags.writeable = False

    # -- making automata ---------------------------------------------------------------------

    @classmethod
    def minimal(
        cls,
        delta: Integer[np.ndarray, "S K"],
        accepting: Bool[np.ndarray, "S"],
        class_of_byte: UInt8[np.ndarray, "256"],
    ) -> Automaton:
        """Return the minimal automaton for a deterministic table; its initial state is 0."""
        _spend_on(delta)
        table, accepting, class_of_byte = canonical(
            _plain(delta, np.int32), _plain(accepting), np.ascontiguousarray(class_of_byte)
        )
        if accepting.size == 0:
            return cls.empty()
        return cls(table, accepting, class_of_byte)

    @classmethod
    def from_transitions(
        cls,
        transitions: Integer[np.ndarray, "S 256"],
        accepting: Bool[np.ndarray, "S"],
        initial: int = 0,
    ) -> Automaton:
        """Build an automaton from a table of next states by byte, -1 for none.

        Raises:
            ValueError: a state is out of range.
        """
        num_states = transitions.shape[0]
        if not 0 <= initial < num_states:
            raise ValueError(f"expected an initial state in 0..{num_states - 1}, got {initial}")
        if transitions.min(initial=-1) < -1 or transitions.max(initial=-1) >= num_states:
            raise ValueError(
                f"expected transitions in -1..{num_states - 1}, got "
                f"{transitions.min()}..{transitions.max()}"
            )
        order = np.arange(num_states)
        order[[0, initial]] = initial, 0  # exchanges the two states
        table = np.where(transitions >= 0, order[transitions], -1)[order]
        return cls.minimal(table, accepting[order], np.arange(NUM_BYTES, dtype=np.uint8))

    @classmethod
    def from_nfa(
        cls,
        num_states: int,
        edges: Iterable[tuple[int, Iterable[int], int]],
        *,
        accepting: Iterable[int],
        initial: Iterable[int] = (0,),
        epsilon: Iterable[tuple[int, int]] = (),
    ) -> Automaton:
        """Build an automaton from the edges of a nondeterministic one.

        `edges` are triples (source, bytes that may be read, target). `epsilon` edges are pairs
        (source, target) that are connected without reading a byte.
        """
        start, end = num_states, num_states + 1
        read: dict[tuple[int, ...], Automaton] = {}  # by bytes, which are often the same
        parts, joints = [], []
        for source, values, target in edges:
            labels = tuple(values)
            if labels not in read:
                read[labels] = cls.byte_set(labels)
            parts.append(read[labels])
            joints.append((source, target))
        skips = [*epsilon, *((start, s) for s in initial), *((s, end) for s in accepting)]
        return cls.join(parts, joints, num_nodes=num_states + 2, skips=skips, start=start, end=end)

    @classmethod
    @holds_as_far_as_its_parts
    def join(
        cls,
        parts: Sequence[Automaton],
        joints: Sequence[tuple[int, int]],
        *,
        num_nodes: int,
        skips: Sequence[tuple[int, int]] = (),
        start: int,
        end: int,
        absorbing: int = -1,
    ) -> Automaton:
        """Return the language of the strings along all paths of a graph between two nodes.

        Args:
            parts: languages on the edges; `parts[i]` connects the two nodes of `joints[i]`.
            joints: pairs (source node, target node), one for each part.
            num_nodes: number of nodes, which are numbered from 0.
            skips: epsilon edges: pairs (source node, target node) that are connected without
                reading a byte.
            start, end: nodes where strings begin and end.
            absorbing: index of a part that leads to `end` and accepts every string of the other
                paths from its source node to `end`, which are then not followed; -1 for none.
        """
        if not parts:  # only epsilon edges: the result is the empty string or the empty language
            parts, joints = [cls.empty()], [(start, start)]
        # A part may be in many joints; its table is not copied.
        distinct = {id(part): part for part in parts}
        number = {key: i for i, key in enumerate(distinct)}
        tables = list(distinct.values())
        if sum(part.num_states for part in parts) > max_states():
            raise StateLimitError(max_states())
        *table, count, work = joining.join(
            [part.delta for part in tables],
            [part.accepting for part in tables],
            [part.class_of_byte for part in tables],
            [number[id(part)] for part in parts],
            joints,
            skips,
            num_nodes,
            (start, end, absorbing),
            kernel_limits(),
        )
        pay(count, work)
        return cls.minimal(*table)

    @classmethod
    def empty(cls) -> Automaton:
        """Return the language that contains no string."""
        return _without_bytes(False)

    @classmethod
    def epsilon(cls) -> Automaton:
        """Return the language that contains only the empty string."""
        return _without_bytes(True)

    @classmethod
    def any_bytes(cls) -> Automaton:
        """Return the language of all byte strings."""
        return cls(np.zeros((1, 1), np.int32), np.ones(1, bool), np.zeros(NUM_BYTES, np.uint8))

    @classmethod
    def byte_set(cls, values: Iterable[int]) -> Automaton:
        """Return the language of all strings of one byte from `values`."""
        labels = list(values)
        if labels and not 0 <= min(labels) <= max(labels) < NUM_BYTES:
            raise ValueError(f"expected bytes in 0..255, got {min(labels)}..{max(labels)}")
        is_read = np.zeros(NUM_BYTES, np.uint8)
        is_read[labels] = 1
        return cls.minimal(np.array([[-1, 1], [-1, -1]]), np.array([False, True]), is_read)

    @classmethod
    def literal(cls, text: str | bytes) -> Automaton:
        """Return the language that contains only the string `text`."""
        return cls.from_strings([text])

    @classmethod
    def special(cls, text: str) -> Automaton:
        """Return the language of one special token, which other tokens can't write.

        The token is written as its text between two bytes that don't occur in UTF-8. `gcd.lift`
        finds its id (`Vocabulary.special_ids`).
        """
        return replace(cls.literal(SPECIAL + text.encode() + SPECIAL), specials=(text,))

    @classmethod
    def from_strings(cls, texts: Iterable[str | bytes]) -> Automaton:
        """Return the language of the given strings; the cost is linear in their total length."""
        ordered = sorted({_as_bytes(text) for text in texts})
        spend(_PER_BYTE * sum(map(len, ordered)), "the set of strings")
        if len(ordered) != 1:
            return cls.minimal(*strings.prefix_tree(ordered))
        table = strings.chain(ordered[0])  # already in its normal form
        _spend_on(table.delta)
        return cls(*table)

    @staticmethod
    @holds_as_far_as_its_parts
    def union(parts: Sequence[Automaton]) -> Automaton:
        """Return the union of several languages, with a single determinization."""
        parts = [p for p in map(_language, parts) if not p.is_empty]
        if len(parts) < 2:
            return parts[0] if parts else Automaton.empty()
        if len(parts) == 2:
            return parts[0]._product(parts[1], _UNION)
        return Automaton.join(parts, [(0, 1)] * len(parts), num_nodes=2, start=0, end=1)

    @staticmethod
    @holds_as_far_as_its_parts
    def concatenate(parts: Sequence[Automaton]) -> Automaton:
        """Return the language of concatenations of one string from each part, in order."""
        if any(p.is_empty for p in map(_language, parts)):
            return Automaton.empty()
        empty_string = Automaton.epsilon()
        parts = [p for p in parts if p != empty_string]
        if len(parts) < 2:
            return parts[0] if parts else empty_string
        count = len(parts)
        chain = [(i, i + 1) for i in range(count)]
        return Automaton.join(parts, chain, num_nodes=count + 1, start=0, end=count)

    # -- the algebra ------------------------------------------------------------------------

    def __or__(self, other: Automaton) -> Automaton:
        """Return the union of two languages."""
        return self._product(other, _UNION)

    def __and__(self, other: Automaton) -> Automaton:
        """Return the intersection of two languages."""
        return self._product(other, _INTERSECTION)

    def __sub__(self, other: Automaton) -> Automaton:
        """Return the strings that aren't in `other`, which must enforce its whole constraint."""
        refuse_unchecked(_language(other).caveats)
        return self._product(other, _DIFFERENCE)

    def __invert__(self) -> Automaton:
        """Return all byte strings that are not in this language, including invalid UTF-8."""
        return Automaton.any_bytes() - self

    def __add__(self, other: Automaton) -> Automaton:
        """Return the concatenations of a string of this language and a string of the other one."""
        return Automaton.concatenate([self, other])

    @holds_as_far_as_its_parts
    def repeat(self, minimum: int, maximum: int | None = None) -> Automaton:
        """Return concatenations of `minimum` to `maximum` strings; None means no upper limit."""
        if minimum < 0 or (maximum is not None and maximum < minimum):
            raise ValueError(f"expected 0 <= minimum <= maximum, got {minimum} and {maximum}")
        if maximum == 0 or self.is_empty:
            return Automaton.epsilon() if minimum == 0 else Automaton.empty()
        table = strings.TransitionTable(self.delta, self.accepting, self.class_of_byte)
        if strings.is_one_way(table):
            return Automaton.minimal(*strings.in_a_row(table, minimum, maximum))
        copies = max(minimum, 1) if maximum is None else maximum
        size = self.num_states
        if copies * size > max_states():
            what = f"a repetition ({copies} copies of {size} states)"
            raise StateLimitError(max_states(), what)
        chain = [(i, i + 1) for i in range(copies)]
        skips = [(i, copies) for i in range(minimum, copies)]
        if maximum is None:
            skips.append((copies, copies - 1))
        return Automaton.join(
            [self] * copies, chain, num_nodes=copies + 1, skips=skips, start=0, end=copies
        )

    def star(self) -> Automaton:
        """Return concatenations of any number of strings of this language."""
        return self.repeat(0)

    def optional(self) -> Automaton:
        """Return the union of this language and the empty string."""
        return self | Automaton.epsilon()

    @holds_as_far_as_its_parts
    def reverse(self) -> Automaton:
        """Return the language of the reversed strings."""
        edges = [
            (int(after), np.flatnonzero(row == after).tolist(), state)
            for state, row in enumerate(self.transitions)
            for after in np.unique(row[row >= 0])
        ]
        ends = np.flatnonzero(self.accepting).tolist()
        return Automaton.from_nfa(self.num_states, edges, accepting=[0], initial=ends)

    @holds_as_far_as_its_parts
    def _product(self, other: Automaton, mode: int) -> Automaton:
        _language(other)
        class_of_byte, (mine, theirs) = joint_classes([self.class_of_byte, other.class_of_byte])
        delta, accepting, count, work = subsets.product(
            np.ascontiguousarray(self.delta),
            self.accepting,
            mine,
            np.ascontiguousarray(other.delta),
            other.accepting,
            theirs,
            mode,
            kernel_limits(),
        )
        pay(count, work, "a product of automata")
        known = self.factors or other.factors
        factors = (*(self.factors or (self,)), *(other.factors or (other,))) if known else ()
        return replace(Automaton.minimal(delta, accepting, class_of_byte), factors=factors)

    # -- asking questions -------------------------------------------------------------------

    initial: ClassVar[int] = 0

    @property
    def num_states(self) -> int:
        return self.delta.shape[0]

    @property
    def is_empty(self) -> bool:
        """True if the language contains no string."""
        return self.num_states == 1 and not self.accepting[0]

    @cached_property
    def transitions(self) -> Int32[np.ndarray, "S 256"]:
        """Next state for (state, byte), -1 for none."""
        return self.delta[:, self.class_of_byte]

    def run(self, text: str | bytes, state: int = 0) -> int:
        """Return the state that `text` leads to from `state`; -1 if there is no such state."""
        try:
            string = _as_bytes(text)
        except UnicodeEncodeError:  # a lone surrogate is in no language
            return -1
        for byte in string:
            state = int(self.delta[state, self.class_of_byte[byte]])
            if state < 0:
                return -1
        return state

    def accepts(self, text: str | bytes) -> bool:
        """Return whether a string is in the language; a `str` is encoded as UTF-8."""
        state = self.run(text)
        is_known = self.max_bytes is None or state < 0 or len(_as_bytes(text)) <= self.max_bytes
        return state >= 0 and bool(self.accepting[state]) and is_known

    def shortest(self, state: int = 0) -> bytes:
        """Return the shortest string that leads from a state to acceptance.

        Raises:
            EmptyLanguageError: the language is empty.
        """
        if self.is_empty:
            raise EmptyLanguageError(
                "expected a language with at least one string, got an empty language"
            )
        return graph.shortest(self.delta, self.accepting, self.class_of_byte, state)

    @cached_property
    def longest_length(self) -> int | None:
        """Length in bytes of the longest string; None if unbounded, -1 if the language is empty."""
        spend(_PER_ROW * self.num_states, "the longest length of a language")
        if self.is_empty:
            return -1
        # Every state is on the path of an accepted string, so a cycle makes the language infinite.
        longest = graph.longest_path(self.delta)
        return None if longest < 0 else longest

    def count(self, max_length: int) -> int:
        """Return the exact number of strings of at most `max_length` bytes."""
        longest = max_length if self.max_bytes is None else min(max_length, self.max_bytes)
        return _count(self.delta, self.accepting, self.class_of_byte, longest)

    def enumerate(self, limit: int) -> list[bytes]:
        """Return the first `limit` strings, sorted by length, then in byte order."""
        return list(islice(self, max(limit, 0)))

    def __iter__(self) -> Iterator[bytes]:
        """Yield all strings, sorted by length, then in byte order; there may be infinitely many."""
        bounds = [n for n in (self.longest_length, self.max_bytes) if n is not None]
        longest = min(bounds, default=None)
        return _in_order(self.delta, self.accepting, self.transitions, longest)

    # -- equality of languages --------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> bytes:
        """Digest of the arrays; equal languages have equal digests."""
        digest = blake2b(digest_size=16)
        digest.update(np.array([*self.delta.shape, self.max_bytes or 0], np.int64).tobytes())
        for array in (self.delta, self.accepting, self.class_of_byte):
            digest.update(array.tobytes())
        return digest.digest()

    def __eq__(self, other: object) -> bool:
        """Return whether two automata accept the same language up to the same `max_bytes`."""
        if not isinstance(other, Automaton):
            return NotImplemented
        return self is other or (
            hash(self) == hash(other)
            and self.max_bytes == other.max_bytes
            and np.array_equal(self.class_of_byte, other.class_of_byte)
            and np.array_equal(self.accepting, other.accepting)
            and np.array_equal(self.delta, other.delta)
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Hash only the first states: tables may have megabytes, and few of them begin alike.
        beginning = (self.delta[:_HASHED], self.accepting[:_HASHED], self.class_of_byte)
        return hash((self.delta.shape, *(array.tobytes() for array in beginning)))

    def __repr__(self) -> str:
        return f"Automaton({self.num_states} states, {self.delta.shape[1]} byte classes)"


@cache
def _without_bytes(has_empty_string: bool) -> Automaton:
    table, classes = np.full((1, 1), -1, np.int32), np.zeros(NUM_BYTES, np.uint8)
    return Automaton(table, np.array([has_empty_string]), classes)


def _spend_on(delta: np.ndarray) -> None:
    spend(_PER_ENTRY * delta.size + _PER_STATE * delta.shape[0], "a minimal automaton")


def _plain(array: np.ndarray, dtype: type | None = None) -> np.ndarray:
    """Return the array, or a copy if it isn't contiguous and writable."""
    plain = np.ascontiguousarray(array, dtype)
    return plain if plain.flags.writeable else plain.copy()


def _as_bytes(text: str | bytes) -> bytes:
    if isinstance(text, str):
        return text.encode()
    check_kind(text, (bytes, bytearray, memoryview), "a text as str or bytes", "encode it")
    return bytes(text)


def _language(part: Automaton) -> Automaton:
    check_kind(part, Automaton, "a gcd.Automaton", "make one with gcd.literal(text)")
    return part


def _count(
    delta: Int32[np.ndarray, "S K"],
    accepting: Bool[np.ndarray, "S"],
    class_of_byte: UInt8[np.ndarray, "256"],
    max_length: int,
) -> int:
    """Return the exact number of strings of at most `max_length` bytes."""
    width = np.bincount(class_of_byte, minlength=delta.shape[1])
    source, label = np.nonzero(delta >= 0)
    pairs, inverse = np.unique(
        np.stack([source, delta[source, label]], axis=1), axis=0, return_inverse=True
    )
    ways = np.bincount(inverse.reshape(-1), width[label]).astype(int).astype(object)
    counts = accepting.astype(int).astype(object)
    found = 0
    for _ in range(max_length + 1):
        found += int(counts[0])
        if counts.any():
            after = counts * 0
            np.add.at(after, pairs[:, 0], ways * counts[pairs[:, 1]])
            counts = after
    return found


def _in_order(
    delta: Int32[np.ndarray, "S K"],
    accepting: Bool[np.ndarray, "S"],
    transitions: Int32[np.ndarray, "S 256"],
    longest: int | None,
) -> Iterator[bytes]:
    """Yield all strings of at most `longest` bytes (None: any), by length, then in byte order."""
    # `ends_in[r][s]`: whether some string of exactly r bytes leads from state s to acceptance.
    ends_in = [accepting]
    length = 0
    while longest is None or length <= longest:
        yield from _of_length(transitions, length, ends_in)
        after = np.concatenate([ends_in[-1], [False]])
        ends_in.append(after[delta].any(axis=1))
        length += 1


def _of_length(
    transitions: Int32[np.ndarray, "S 256"], length: int, ends_in: list[Bool[np.ndarray, "S"]]
) -> Iterator[bytes]:
    """Yield the strings of exactly `length` bytes, in byte order."""
    if not ends_in[length][0]:
        return
    stack = [(0, b"")]
    while stack:
        state, prefix = stack.pop()
        left = length - len(prefix)
        if left == 0:
            yield prefix
            continue
        after = transitions[state]
        good = np.flatnonzero((after >= 0) & ends_in[left - 1][after])
        stack.extend((int(after[b]), prefix + bytes([b])) for b in good[::-1])
