"""Compressed transition tables, compared with whole tables."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gcd._tokens.distances import UNREACHABLE, distances_to
from gcd._tokens.rows import Rows


@st.composite
def tables(draw):
    """Draw tables in which every state leads somewhere, and columns and patterns repeat."""
    num_states, num_classes = draw(st.integers(1, 7)), draw(st.integers(1, 6))
    cells = st.integers(-1, num_states - 1)
    few = draw(arrays(np.int32, (num_states, num_classes), elements=cells))
    few[:, 0] = np.maximum(few[:, 0], 0)
    return few[:, [0, *draw(st.lists(st.integers(0, num_classes - 1), max_size=9))]]


@given(tables())
def test_rows_are_those_of_the_whole_table(table):
    rows = Rows.of(table)
    assert np.array_equal(rows.dense(table.shape[1]), table)
    for state, row in enumerate(table):
        classes, targets = rows.row(state)
        assert classes.tolist() == np.flatnonzero(row >= 0).tolist()
        assert targets.tolist() == row[row >= 0].tolist()
    edges = {(s, t) for s, row in enumerate(table.tolist()) for t in row if t >= 0}
    assert len(edges) == rows.edges.shape[1]
    assert edges == set(zip(*rows.edges.tolist(), strict=True))
    for token_class in range(table.shape[1]):
        assert np.array_equal(rows.is_allowed(token_class), table[:, token_class] >= 0)
    # States with equal numbers of targets share a pattern.
    places = {
        tuple((c, list(dict.fromkeys(row)).index(t)) for c, t in enumerate(row) if t >= 0)
        for row in table.tolist()
    }
    assert rows.pattern_start.size - 1 <= len(places)


@given(tables(), st.data())
def test_equal_classes_are_equal_columns(table, data):
    rows = Rows.of(table)
    columns = [tuple(column) for column in table.T.tolist()]
    same = rows.equal_classes(len(columns))
    assert same.tolist() == [columns.index(column) for column in columns]
    kept = data.draw(st.permutations(np.unique(same).tolist()))
    number = np.full(len(columns), -1, np.int32)
    number[kept] = np.arange(len(kept))
    assert np.array_equal(rows.renumber_classes(number).dense(len(kept)), table[:, kept])


@given(tables(), st.data())
def test_distances_are_those_of_breadth_first_search(table, data):
    rows, final = Rows.of(table), data.draw(st.integers(0, len(table) - 1))
    found = distances_to(final, rows.edges, len(table))
    expected, layer, depth = np.full(len(table), UNREACHABLE), {final}, 0
    while layer:
        expected[list(layer)] = depth
        before = {s for s, row in enumerate(table.tolist()) if layer & set(row)}
        layer, depth = {s for s in before if expected[s] == UNREACHABLE}, depth + 1
    assert found.tolist() == expected.tolist()
