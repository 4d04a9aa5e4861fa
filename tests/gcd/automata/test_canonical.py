"""The compiled normal form against textbook constructions, on random and on awkward automata."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcd import Automaton
from gcd._automata.byte_classes import joint_classes, merge_equal_columns
from gcd._automata.kernels import canonical as kernels

ROOT = Path(__file__).resolve().parents[3]


def moore(delta: np.ndarray, accepting: np.ndarray) -> list[int]:
    """Equivalence by Moore's rounds; blocks numbered by their first states."""
    block = [int(a) for a in accepting]
    while True:
        rows = [
            (block[s], *(block[t] if t >= 0 else -1 for t in row))
            for s, row in enumerate(delta.tolist())
        ]
        number = {row: i for i, row in enumerate(dict.fromkeys(rows))}
        if len(number) == len(set(block)):
            return [number[row] for row in rows]
        block = [number[row] for row in rows]


def trimmed(delta: np.ndarray, accepting: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Remove states that cannot reach acceptance, which are not equivalent to any other."""
    alive = accepting.copy()
    for _ in range(alive.size):
        alive |= ((delta >= 0) & alive[delta]).any(axis=1)
    number = np.append(np.where(alive, np.cumsum(alive) - 1, -1), -1)
    return number[delta[alive]].astype(np.int32), accepting[alive]


def check(table: tuple[np.ndarray, np.ndarray], kernel: ModuleType) -> None:
    """Compare the states of the normal form with Moore's blocks of the states that lead to them."""
    delta, accepting = trimmed(*table)
    if not accepting.size:
        return
    columns = np.minimum(np.arange(256), delta.shape[1] - 1).astype(np.uint8)
    minimal, accepts, column = kernel.canonical(delta, accepting, columns)
    truth, state_of = moore(delta, accepting), {0: 0}
    reached = [0]
    for s in reached:
        assert accepts[state_of[s]] == accepting[s]
        for k, t in enumerate(delta[s].tolist()):
            after = int(minimal[state_of[s], column[k]])
            assert (t < 0) == (after < 0)
            if t >= 0 and t not in state_of:
                state_of[t] = after
                reached.append(t)
            assert t < 0 or state_of[t] == after
    pairs = {(state, truth[s]) for s, state in state_of.items()}
    assert len(pairs) == len({block for _, block in pairs}) == len(accepts)


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Random tables; some are copies of a smaller one, so that there is much to merge."""
    num_states, num_classes = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    copies = draw(st.integers(1, 3))
    own = st.lists(
        st.integers(-1, copies * num_states - 1), min_size=num_classes, max_size=num_classes
    )
    rows = draw(st.lists(own, min_size=num_states, max_size=num_states))
    base = np.array(rows, np.int32)
    shift = draw(st.lists(st.integers(0, copies - 1), min_size=copies, max_size=copies))
    delta = np.concatenate(
        [np.where(base >= 0, (base + s * num_states) % (copies * num_states), -1) for s in shift]
    ).astype(np.int32)
    accepting = np.tile(
        draw(st.lists(st.booleans(), min_size=num_states, max_size=num_states)), copies
    )
    return delta, np.array(accepting, np.bool_)


def ring(size: int, special: int) -> tuple[np.ndarray, np.ndarray]:
    """Make a cycle of accepting states, some with a second symbol; sweeps converge slowly."""
    delta = np.full((size, 2), -1, np.int32)
    delta[:, 0] = (np.arange(size) + 1) % size
    delta[::special, 1] = 0
    return delta, np.ones(size, np.bool_)


def groups(most: int) -> tuple[np.ndarray, np.ndarray]:
    """Make `(abc){0,most}`: only edges away from acceptance tell its groups apart."""
    size = 3 * most + 1
    delta = np.full((size, 3), -1, np.int32)
    delta[np.arange(size - 1), np.arange(size - 1) % 3] = np.arange(1, size)
    return delta, np.arange(size) % 3 == 0


def unrolled(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Make a chain that ends in a loop: one state, though the chain's states have no cycle."""
    after = np.minimum(np.arange(size + 1) + 1, size).astype(np.int32)
    return after[:, None], np.ones(size + 1, np.bool_)


@settings(max_examples=100)
@given(tables())
@example(unrolled(1))
@example(unrolled(17))
@example(groups(40))
@example(ring(40, 40))  # all different
@example(ring(60, 20))  # three times round the same cycle
@example(ring(61, 20))
def test_states_of_one_block_are_those_of_one_residual(table):
    check(table, kernels)


@pytest.fixture(scope="module")
def colliding() -> ModuleType:
    """The kernel as interpreted Python, with random numbers below 8, which are often equal."""
    room = "gcd._automata.kernels"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("gcd._support.kernels.mixing", f"{room}.graph",
                     f"{room}.residuals", f"{room}.canonical"):  # fmt: skip
            path = ROOT / f"{name.replace('.', '/')}.py"
            spec = spec_from_file_location(name, path)
            assert spec is not None
            module = module_from_spec(spec)
            patch.setitem(sys.modules, name, module)
            spec.loader.exec_module(module)
            if name.endswith("mixing"):
                module.mix = lambda value, mix=module.mix: mix(value) & 7
    return module


@settings(max_examples=60)
@given(table=tables())
@example(table=groups(40))
@example(table=ring(40, 40))
def test_equal_sums_by_chance_are_told_apart(colliding, table):
    check(table, colliding)


@pytest.mark.parametrize("seed", range(30))
def test_classes_of_bytes_are_the_coarsest_that_tell_as_much(seed):
    """The classes of several maps of bytes together, and those of equal columns of a table."""
    rng = np.random.default_rng(seed)
    maps = rng.integers(0, rng.integers(1, 5), (rng.integers(1, 5), 256)).astype(np.uint8)
    class_of_byte, columns = joint_classes(list(maps))
    number = {row: i for i, row in enumerate(dict.fromkeys(zip(*maps.tolist(), strict=True)))}
    assert class_of_byte.tolist() == [number[row] for row in zip(*maps.tolist(), strict=True)]
    for array, column in zip(maps, columns, strict=True):
        assert (column[class_of_byte] == array).all()

    table = rng.integers(-1, 2, (seed % 5, rng.integers(1, 7))).astype(np.int32)
    labels = rng.integers(0, table.shape[1], 256).astype(np.uint8)
    merged, classes = merge_equal_columns(table, labels)
    by_byte = [tuple(column) for column in table[:, labels].T.tolist()]
    number = {column: i for i, column in enumerate(dict.fromkeys(by_byte))}
    assert classes.tolist() == [number[column] for column in by_byte]
    assert [tuple(column) for column in merged.T.tolist()] == list(number)


@settings(max_examples=100)
@given(st.binary(max_size=12))
@example(b"")
@example(b"\x00\x00")
@example(bytes(range(256)))
@example(bytes(range(1, 256)))
@example(bytes(range(255)))
def test_one_string_is_in_normal_form_at_once(string):
    automaton = Automaton.literal(string)
    plain = Automaton.minimal(automaton.delta, automaton.accepting, automaton.class_of_byte)
    assert automaton.fingerprint == plain.fingerprint
    assert automaton.accepts(string)
    assert automaton.count(len(string) + 1) == 1


def test_automata_that_begin_alike_are_told_apart():
    letters = Automaton.byte_set(b"ab")
    a, b = letters.repeat(0, 500), letters.repeat(0, 501)
    tails = [Automaton.literal("a" * 400 + "ab"), Automaton.literal("a" * 400 + "ba")]
    assert a != b
    assert tails[0] != tails[1]
    assert hash(tails[0]) == hash(tails[1])  # allowed, and shows that tables are compared
    assert tails[0] == Automaton.literal("a" * 400) + Automaton.literal("ab")
    assert len({a, b, *tails}) == 4
