"""Any query may be tried: none writes, none runs for ever. Results are compared row by row."""

from __future__ import annotations

import itertools
import math
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.sql.databases import QueryError, Sandbox, comparable
from experiments.sql.judge import run_gold

SCRIPT = """
CREATE TABLE t (a INTEGER, b TEXT, c REAL);
INSERT INTO t VALUES (1, 'x', 0.5), (2, 'y', 0.5), (2, 'x', 1.5), (3, 'z', NULL);
"""


def database(script: str = SCRIPT, **options: int) -> Sandbox:
    connection = sqlite3.connect(":memory:")
    connection.executescript(script)
    return Sandbox(connection, **options)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE t",
        "INSERT INTO t VALUES (4, 'w', 1.0)",
        "DELETE FROM t",
        "UPDATE t SET a = 0",
        "CREATE TABLE u (a)",
        "SELECT 1; DROP TABLE t",
        "PRAGMA query_only = OFF",
        "ATTACH DATABASE 'other.sqlite' AS other",
        "WITH w AS (SELECT 1) DELETE FROM t",
        "VACUUM",
        "/* */ VACUUM INTO 'other.sqlite'",
        "BEGIN",
    ],
)
def test_nothing_but_queries_is_compiled_or_run(statement, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sandbox = database()
    before = sandbox.rows("SELECT * FROM t")
    assert not sandbox.prepares(statement)
    with pytest.raises(QueryError):
        sandbox.rows(statement)
    assert sandbox.rows("SELECT * FROM t") == before
    assert list(tmp_path.iterdir()) == []


def test_the_database_itself_refuses_to_be_written_beside_the_authorizer():
    sandbox = database()
    sandbox._connection.set_authorizer(None)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        sandbox._connection.execute("DELETE FROM t")


@pytest.mark.parametrize(
    ("query", "prepares"),
    [
        ("SELECT t.a FROM t", True),
        ("select A from T;", True),
        ("SELECT t.nothing FROM t", False),
        ("SELECT u.a FROM u", False),
        ("SELECT t.a FROM t WHERE", False),
        ("QUERY PLAN SELECT 1", False),
        ("EXPLAIN SELECT 1", False),
        ("", False),
        ("SELECT 'a\0b'", False),
    ],
)
def test_sqlite_prepares_the_same_queries(query, prepares):
    assert database().prepares(query) is prepares


def test_a_query_that_never_ends_is_stopped():
    sandbox = database(instructions=100_000)
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    )
    assert sandbox.prepares(endless)
    for query in (endless, "SELECT SUM(v.a) FROM t, t AS u, t AS v" + ", t" * 12):
        with pytest.raises(QueryError, match="takes too long"):
            sandbox.rows(query)
    assert sandbox.rows("SELECT MAX(t.a) FROM t") == [(3,)]  # the next query has its own count


def test_rows_are_read_as_far_as_asked():
    assert database().rows("SELECT t.a FROM t", most=2) == [(1,), (2,)]


values = st.one_of(
    st.none(), st.integers(0, 2), st.sampled_from([0.0, 1.0, 0.5, 1 / 3]), st.sampled_from("ab")
)
tables = st.lists(st.tuples(values, values), max_size=4)


def alike(one: tuple, other: tuple) -> bool:
    """Compare two rows, number by number, independently of the implementation under test."""

    def same(a, b):
        numbers = isinstance(a, int | float) and isinstance(b, int | float)
        return math.isclose(a, b, rel_tol=1e-9) if numbers else type(a) is type(b) and a == b

    return all(map(same, one, other))


def literal(value) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else repr(value)


def selecting(rows, order: str = "") -> str:
    """A query whose result is these rows, in this order if it is asked for."""
    rows = [(i, *row) for i, row in enumerate(rows)]
    parts = [f"SELECT {', '.join(map(literal, row))}" for row in rows]
    inner = " UNION ALL ".join(["SELECT 0 AS i, 0 AS p, 0 AS q WHERE FALSE", *parts])
    return f"SELECT p, q FROM ({inner}) {order}"


@given(tables, tables)
def test_results_are_equal_if_their_rows_can_be_paired(gold, found):
    """Against brute force over all permutations, in any order and in the order given."""
    sandbox = database()
    truth = len(gold) == len(found) and any(
        all(map(alike, gold, order)) for order in itertools.permutations(found)
    )
    rows = sandbox.rows(selecting(found))
    assert run_gold(selecting(gold), sandbox).equals(rows) is truth
    ordered = run_gold(selecting(gold, "ORDER BY i"), sandbox)
    assert ordered.equals(rows) is (len(gold) == len(found) and all(map(alike, gold, found)))


@pytest.mark.parametrize(
    ("gold", "found", "equal"),
    [
        ("SELECT a FROM t ORDER BY a", "SELECT a FROM t", True),
        ("SELECT a FROM t ORDER BY a DESC", "SELECT a FROM t ORDER BY a", False),
        ("SELECT a FROM t", "SELECT a FROM t ORDER BY a DESC", True),
        # Rows that agree in a may come in any order, others may not.
        ("SELECT b FROM t ORDER BY a", "SELECT b FROM t ORDER BY a, b", True),
        ("SELECT b FROM t ORDER BY a", "SELECT b FROM t ORDER BY a, b DESC", True),
        ("SELECT b FROM t ORDER BY a", "SELECT b FROM t ORDER BY b DESC", False),
        ("SELECT b, a FROM t ORDER BY 2", "SELECT b, a FROM t ORDER BY a, b DESC", True),
        # An inner ORDER BY is none of the result.
        ("SELECT b FROM t WHERE a = (SELECT a FROM t ORDER BY a LIMIT 1)", "SELECT 'x'", True),
        ("SELECT SUM(a) FROM t", "SELECT 8.0", True),
        ("SELECT AVG(c) FROM t", "SELECT (0.5 + 0.5 + 1.5) / 3.0", True),
        ("SELECT a FROM t", "SELECT DISTINCT a FROM t", False),
        ("SELECT a, b FROM t", "SELECT b, a FROM t", False),
        ("SELECT MAX(a) FROM t", "SELECT '3'", False),
    ],
)
def test_order_counts_only_if_the_gold_query_orders(gold, found, equal):
    sandbox = database()
    assert run_gold(gold, sandbox).equals(sandbox.rows(found)) is equal


@pytest.mark.parametrize(
    ("query", "chance"),
    [
        ("SELECT b FROM t ORDER BY a LIMIT 1", False),
        ("SELECT b FROM t ORDER BY a LIMIT 2", True),  # two rows with a = 2, x and y
        ("SELECT a FROM t ORDER BY a LIMIT 2", False),  # the same, but for what is selected
        ("SELECT b FROM t ORDER BY a LIMIT 3", False),
        ("SELECT b FROM t ORDER BY a LIMIT 1 OFFSET 2", True),
        ("SELECT b FROM t LIMIT 1", True),
        ("SELECT b FROM t LIMIT 4", False),
        ("SELECT a FROM t GROUP BY a ORDER BY COUNT(*) DESC LIMIT 1", False),
        ("SELECT a FROM t GROUP BY a ORDER BY COUNT(*) LIMIT 1", True),
        ("SELECT a FROM t WHERE b = (SELECT b FROM t ORDER BY a DESC LIMIT 1)", False),
        ("SELECT a FROM t WHERE b = (SELECT b FROM t ORDER BY c DESC LIMIT 2)", True),
    ],
)
def test_a_result_that_limit_leaves_to_chance_is_no_measure(query, chance):
    assert (run_gold(query, database()) is None) is chance


def test_what_has_no_values_says_nothing():
    sandbox = database()
    for query in ("SELECT a FROM t WHERE a > 9", "SELECT MAX(a) FROM t WHERE a > 9"):
        assert run_gold(query, sandbox).says_nothing
    assert not run_gold("SELECT COUNT(*) FROM t WHERE a > 9", sandbox).says_nothing


def test_whole_numbers_are_exact_and_fractions_are_rounded():
    assert comparable((10**15 + 1, 1e15, 0.1 + 0.2, 2.0, float("inf"))) == (
        10**15 + 1, 10**15, 0.3, 2, float("inf"),
    )  # fmt: skip
