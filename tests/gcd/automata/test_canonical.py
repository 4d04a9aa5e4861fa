"""The compiled normal form against its definition, on random and on awkward automata."""

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
from tests.gcd.oracles import assert_canonical

ROOT = Path(__file__).resolve().parents[3]


def check(table: tuple[np.ndarray, np.ndarray]) -> None:
    """Compare a table with its normal form, state by state along all strings."""
    delta, accepting = table
    width = delta.shape[1]
    columns = np.minimum(np.arange(256), width - 1).astype(np.uint8)
    automaton = Automaton.minimal(delta, accepting, columns)
    assert_canonical(automaton)
    (one, ends), (other, finals) = (
        (np.vstack([moves, np.full((1, width), -1)]), np.append(ends, False))
        for moves, ends in (table, (automaton.transitions[:, :width], automaton.accepting))
    )
    pairs = [(0, 0)]  # -1, the last row, is the state without strings
    for s, t in pairs:
        assert ends[s] == finals[t]
        after = dict.fromkeys(zip(one[s].tolist(), other[t].tolist(), strict=True))
        pairs += [pair for pair in after if pair not in pairs]


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
def test_a_table_and_its_normal_form_accept_the_same(table):
    check(table)


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gcd._automata.automaton.canonical", colliding.canonical)
        check(table)


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
