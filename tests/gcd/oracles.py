"""Oracles by enumeration: every string of tokens, checked against the definition.

Also strategies for random automata, vocabularies and edge lists that are small enough for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from gcd import Automaton, EmptyLanguageError, TokenAutomaton, Vocabulary, lift
from gcd._automata.limits import count_work, work_left

SHARED = Path(__file__).resolve().parents[3] / "shared"

ALPHABET = b"abc"

# Beartype checks a random item of each sequence, which triggers a warning of hypothesis.
checked_inside_strategies = pytest.mark.filterwarnings("ignore:Do not use the `random` module")


def shared(path: str) -> Path:
    """Return a file of the shared data, or skip the test if it is missing."""
    full = SHARED / path
    if not full.exists():
        pytest.skip(f"needs {path}")
    return full


# -- drawing --------------------------------------------------------------------------------


@st.composite
def byte_automata(draw: st.DrawFn, max_states: int = 5) -> Automaton:
    """Automata over the bytes of ALPHABET, including empty languages.

    In some of them, many other bytes behave like the first one, as inside a string literal.
    """
    num_states = draw(st.integers(1, max_states))
    targets = st.integers(-1, num_states - 1)
    table = np.full((num_states, 256), -1, np.int32)
    for byte in ALPHABET:
        table[:, byte] = draw(st.lists(targets, min_size=num_states, max_size=num_states))
    if draw(st.booleans()):
        table[:, 128:] = table[:, [ALPHABET[0]]]
    accepting = draw(st.lists(st.booleans(), min_size=num_states, max_size=num_states))
    return Automaton.from_transitions(table, np.array(accepting))


@st.composite
def vocabularies(draw: st.DrawFn, max_tokens: int = 6, min_eos: int = 1) -> Vocabulary:
    """Vocabularies over ALPHABET with repeated, empty and unusable tokens and several EOS ids."""
    token = st.binary(max_size=3).map(lambda raw: bytes(ALPHABET[b % 3] for b in raw))
    usual = draw(st.lists(st.one_of(token, st.just(b"z")), min_size=1, max_size=max_tokens))
    ends = draw(st.integers(min_eos, 2))
    tokens = draw(st.permutations([*((token, False) for token in usual), *[(b"$", True)] * ends]))
    eos_ids = [index for index, (_, is_eos) in enumerate(tokens) if is_eos]
    return Vocabulary.from_bytes([token for token, _ in tokens], eos_ids)


class EdgeList(NamedTuple):
    """An automaton over token classes as plain Python, deterministic or not."""

    num_states: int
    edges: list[tuple[int, int, int]]
    num_classes: int
    initial: list[int]
    accepting: list[int]


@st.composite
def edge_lists(draw: st.DrawFn, *, looping: bool = False) -> EdgeList:
    """Random NFAs over classes; with `looping`, accepting states loop under some class."""
    num_states, num_classes = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    state, symbol = st.integers(0, num_states - 1), st.integers(0, num_classes - 1)
    edges = draw(st.lists(st.tuples(state, symbol, state), max_size=10))
    initial = draw(st.lists(state, min_size=1, max_size=2, unique=True))
    accepting = draw(st.lists(state, max_size=2, unique=True))
    if looping:
        edges += [(s, draw(symbol), s) for s in accepting]
    return EdgeList(num_states, edges, num_classes, initial, accepting)


# -- enumerating ----------------------------------------------------------------------------


def strings(symbols: Iterable[int], max_length: int) -> Iterator[tuple[int, ...]]:
    """Yield all strings over the symbols, shorter ones first."""
    symbols = tuple(symbols)
    for length in range(max_length + 1):
        yield from itertools.product(symbols, repeat=length)


def texts(automaton: Automaton, vocabulary: Vocabulary, max_tokens: int) -> set[tuple[int, ...]]:
    """Return all sequences of at most `max_tokens` tokens, without EOS, that spell a string."""
    usable = [i for i, token in enumerate(vocabulary.token_bytes) if token]
    return {ids for ids in strings(usable, max_tokens) if automaton.accepts(vocabulary.decode(ids))}


def nfa_states(nfa: EdgeList, start: Iterable[int], string: Sequence[int]) -> set[int]:
    """Return the states that a string of classes leads to."""
    states = set(start)
    for symbol in string:
        states = {t for s, c, t in nfa.edges if s in states and c == symbol}
    return states


def determinised(
    edges: Sequence[tuple[int, Sequence[int], int]],
    epsilon: Sequence[tuple[int, int]],
    start: int,
    end: int,
) -> Automaton:
    """Run the textbook subset construction on edges (source, bytes, target)."""

    def close(states: set[int]) -> frozenset[int]:
        while more := {t for s, t in epsilon if s in states} - states:
            states = states | more
        return frozenset(states)

    subsets = [close({start})]
    rows: list[list[int]] = []
    for subset in subsets:  # grows during the loop
        row = [-1] * 256
        for byte in {byte for s, labels, _ in edges if s in subset for byte in labels}:
            after = close({t for s, labels, t in edges if s in subset and byte in labels})
            if after not in subsets:
                subsets.append(after)
            row[byte] = subsets.index(after)
        rows.append(row)
    return Automaton.from_transitions(np.array(rows), np.array([end in s for s in subsets]))


def accepted(automaton: TokenAutomaton, most: int) -> set[tuple[int, ...]]:
    """Return all accepted sequences of at most `most` tokens, without EOS."""
    found = set()
    waiting: list[tuple[tuple[int, ...], int]] = [((), automaton.initial)]
    while waiting:
        ids, state = waiting.pop()
        if automaton.accepting[state]:
            found.add(ids)
        if len(ids) < most:
            following = automaton.allowed(state).tolist()
            usual = [t for t in following if t not in automaton.vocabulary.eos_ids]
            waiting += [((*ids, token), automaton.step(state, token)) for token in usual]
    return found


def assert_canonical(automaton: Automaton) -> None:
    """Trimmed, minimal by the textbook's table filling, and breadth-first numbered."""
    table, accepting = automaton.delta, automaton.accepting
    num_states = automaton.num_states
    if not automaton.is_empty:
        alive = accepting.copy()
        for _ in range(num_states):
            alive |= ((table >= 0) & alive[table]).any(axis=1)
        assert alive.all()
    distinct = accepting[:, None] != accepting[None, :]
    for _ in range(num_states):
        padded = np.pad(distinct, ((0, 1), (0, 1)), constant_values=True)
        padded[-1, -1] = False
        distinct = distinct | padded[table[:, None, :], table[None, :, :]].any(axis=2)
    assert (distinct | np.eye(num_states, dtype=bool)).all()
    seen = [0]
    for s in range(num_states):
        seen += [t for t in dict.fromkeys(table[s].tolist()) if t >= 0 and t not in seen]
    assert seen == list(range(num_states))
    classes = list(dict.fromkeys(automaton.class_of_byte.tolist()))
    columns = {tuple(c) for c in automaton.delta.T.tolist()}
    assert len(columns) == automaton.delta.shape[1]
    assert classes == list(range(len(columns))), "numbered by their first bytes"


def lift_or_skip(language: Automaton, vocabulary: Vocabulary) -> TokenAutomaton:
    """Lift a drawn language; skip the example if the tokens write none of its texts."""
    try:
        return lift(language, vocabulary)
    except EmptyLanguageError:
        assume(False)
        raise


def up_to(length: int) -> Automaton:
    """All strings of at most this many bytes."""
    return Automaton.byte_set(range(256)).repeat(0, length)


def work_of(build: Callable[[], object]) -> int:
    """Return the units of work that a construction takes."""
    with count_work():
        before = work_left()
        build()
        return before - work_left()


def check_lift(automaton: Automaton, vocabulary: Vocabulary) -> None:
    """Compare a lift with the definition, all states at a time: the state after a token's bytes."""
    step = np.full((automaton.num_states, vocabulary.size), -1)
    for token, text in enumerate(vocabulary.token_bytes):
        after = np.arange(automaton.num_states) if text else np.full(automaton.num_states, -1)
        for byte in text:
            after = np.where(after >= 0, automaton.transitions[after, byte], -1)
        step[:, token] = after
    edges = np.unique(np.argwhere(step >= 0)[:, 0] * automaton.num_states + step[step >= 0])
    source, target = np.divmod(edges, automaton.num_states)
    reached, alive = np.arange(automaton.num_states) == 0, automaton.accepting.copy()
    while True:
        before = reached.sum() + alive.sum()
        reached[target[reached[source]]] = True
        alive[source[alive[target]]] = True
        if reached.sum() + alive.sum() == before:
            break
    kept = np.flatnonzero(reached & alive)
    if 0 not in kept:
        with pytest.raises(EmptyLanguageError):
            lift(automaton, vocabulary)
        return
    lifted = lift(automaton, vocabulary)
    lifted.check()
    final = kept.size
    number = np.full(automaton.num_states + 1, -1)
    number[kept] = np.arange(final)
    truth = np.full((final + 1, vocabulary.size), -1)
    truth[:-1] = number[step[kept]]
    ends = list(vocabulary.eos_ids)
    truth[:, ends] = np.append(np.where(automaton.accepting[kept], final, -1), final)[:, None]
    assert lifted.initial == 0
    assert lifted.final == lifted.num_states - 1 == final
    assert lifted.accepting.tolist() == [*automaton.accepting[kept].tolist(), True]
    assert np.array_equal(lifted.delta[:, lifted.class_of], truth)
    columns = {column.tobytes() for column in lifted.delta[:, : lifted.eos_class].T}
    assert len(columns) == lifted.eos_class, "classes differ"
    # Numbered by their first token, EOS last: the same input gives the same numbers.
    usual = np.setdiff1d(np.arange(vocabulary.size), ends)
    assert list(dict.fromkeys(lifted.class_of[usual].tolist())) == list(range(lifted.eos_class))
    assert set(lifted.class_of[ends].tolist()) <= {lifted.num_classes - 1}


LETTERS = Vocabulary.from_bytes([b"a", b"b", b"ab", b"", b"ba", b"<s>", b"</s>"], [5, 6], size=40)


@st.composite
def token_automata(draw: st.DrawFn) -> TokenAutomaton:
    """Lifted automata whose vocabulary is padded to several mask words."""
    vocabulary = draw(vocabularies())
    size = draw(st.sampled_from([vocabulary.size, 32, 70]))
    if size > vocabulary.size:
        vocabulary = Vocabulary.from_bytes(
            vocabulary.token_bytes, vocabulary.eos_ids, max(size, vocabulary.size)
        )
    return lift_or_skip(draw(byte_automata()), vocabulary)


def ids_of_mask(row: np.ndarray, size: int) -> list[int]:
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:size]
    return np.flatnonzero(bits).tolist()
