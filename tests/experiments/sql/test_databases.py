"""Folders of databases, read or named; any query may be tried in a sandbox."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcd
from experiments import run as experiment
from experiments.evaluate import DataError
from experiments.sql.databases import (
    QueryError,
    Sandbox,
    comparable,
    read_databases,
)
from experiments.sql.judge import run_gold
from experiments.sql.task import OWN, read
from tests.experiments import composing


def composed(*overrides: str):
    return composing.composed("+task=sql", "task.methods=[lcd,gcd]", *overrides)


def folder_of(tmp_path: Path, questions: object = None, **databases: str) -> Path:
    """A folder with databases as texts, and questions as lines."""
    for name, script in databases.items():
        (tmp_path / f"{name}.sql").write_text(script)
    if questions is not None:
        lines = [q if isinstance(q, str) else json.dumps(q) for q in questions]
        (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    return tmp_path


PETS = "CREATE TABLE pet (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO pet VALUES (1, 'Rex');"
ASKED = {"db_id": "pets", "question": "Which pets?", "query": "SELECT pet.name FROM pet"}


# -- our own data


def test_our_questions_are_a_hundred_and_every_gold_query_is_a_measure():
    """Rows are varied enough that another question's query is a wrong answer."""
    own = read(composed())
    questions = own.questions.records
    assert len(questions) == 100
    assert len(read_databases(OWN)) == len(own.databases) == 5
    assert own.questions.skipped == ()
    assert own.judge.unjudged == {}
    dialect = gcd.SqlDialect(subquery_tables=1, compound_columns=1)  # enough for all of them
    for name, database in own.databases.items():
        assert 3 <= len(database.schema.tables) <= 5
        language = gcd.sql(database.schema, dialect)
        mine = [question for question in questions if question.database == name]
        assert len(mine) == len({q.text for q in mine}) == len({q.query for q in mine}) == 20
        for one in mine:
            assert own.judge.prepares(one, one.query.encode())
            assert language.accepts(one.query), one.query
            right = [q for q in mine if own.judge.is_correct(one, q.query.encode())]
            assert right == [one]


# -- what is read


def test_a_folder_of_sqlite_files_is_read_too(tmp_path):
    folder_of(tmp_path, [ASKED])
    file = sqlite3.connect(tmp_path / "pets.sqlite")
    file.executescript(PETS)
    file.close()
    asked = read(composed(f"data.path={tmp_path}"))
    assert asked.databases["pets"].rows.rows("SELECT pet.name FROM pet") == [("Rex",)]


def _broken(tmp_path: Path) -> None:
    (tmp_path / "pets.sqlite").write_bytes(b"no database at all, but long enough" * 50)


def _cut(tmp_path: Path) -> None:
    file = sqlite3.connect(tmp_path / "pets.sqlite")
    file.executescript(PETS + "CREATE TABLE other (x); CREATE INDEX i ON other (x);")
    file.executemany("INSERT INTO other VALUES (?)", [("x" * 900,)] * 100)
    file.commit()
    file.close()
    content = (tmp_path / "pets.sqlite").read_bytes()
    (tmp_path / "pets.sqlite").write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.rmdir(), "expected a folder of databases"),
        (lambda path: None, "expected databases in data.path"),
        (lambda path: folder_of(path, pets=PETS), "expected a file of questions"),
        (lambda path: folder_of(path, [], pets=PETS), "expected records with"),
        (lambda path: folder_of(path, [{**ASKED, "db_id": "cats"}], pets=PETS),
         "expected an existing database, got 'cats'"),
        (lambda path: folder_of(path, [ASKED], pets="CREATE TABEL pet (id);"), "TABEL"),
        (lambda path: folder_of(path, [ASKED], pets="SELECT 1;"), "got no table"),
        (lambda path: folder_of(path, [ASKED], pets="ATTACH 'x.db' AS x;"), "not authorized"),
        (lambda path: folder_of(path, [ASKED], pets=PETS + "CREATE TABLE cat (p REFERENCES pet"
         " (id)); INSERT INTO cat VALUES (9);"), "refers to a missing row of pet"),
        (_broken, "expected a SQLite database in .*pets.sqlite"),
        (lambda path: (path / "pets.sqlite").mkdir(), "cannot read .*pets.sqlite"),
        (lambda path: (path / "pets.sql").mkdir(), "pets.sql cannot be read"),
        (lambda path: [folder_of(path, pets=PETS), (path / "questions.jsonl").mkdir()],
         "questions.jsonl cannot be read"),
        (_cut, "pets.sqlite"),
        (lambda path: folder_of(path, [ASKED], pets=PETS.partition("INSERT")[0]),
         "expected a database with rows in .*pets.sql, got none"),
        (lambda path: folder_of(path, [{**ASKED, "query": "SELECT pet.age FROM pet"}], pets=PETS),
         "none of 1 can; .*no such column"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_before_any_model_work(tmp_path, make, message, monkeypatch):
    """In one line, with the path once, and without a file left behind."""
    monkeypatch.chdir(tmp_path.parent)
    make(tmp_path)
    monkeypatch.setattr("experiments.sql.task.load_engine", lambda *_: pytest.fail("a model"))
    run_dir = tmp_path.parent / f"{tmp_path.name}-run"
    with pytest.raises(DataError, match=message) as refused:
        experiment.run(composed(f"data.path={tmp_path}", f"run_dir={run_dir}"))
    assert "\n" not in str(refused.value)
    assert str(refused.value).count(str(tmp_path)) == 1
    assert not run_dir.exists()


def test_two_databases_of_one_name_are_refused(tmp_path):
    folder_of(tmp_path, [ASKED], pets=PETS)
    sqlite3.connect(tmp_path / "pets.db").executescript(PETS).close()
    with pytest.raises(DataError, match="got two called pets"):
        read_databases(tmp_path)


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
        "CREATE TABLE u (a)",
        "SELECT 1; DROP TABLE t",
        "PRAGMA query_only = OFF",
        "ATTACH DATABASE 'other.sqlite' AS other",
        "WITH w AS (SELECT 1) DELETE FROM t",
        "VACUUM",
        "/* */ VACUUM INTO 'other.sqlite'",
        "BEGIN",
        "QUERY PLAN SELECT 1",
        "EXPLAIN SELECT 1",
        "SELECT t.nothing FROM t",
        "SELECT u.a FROM u",
        "SELECT t.a FROM t WHERE",
        "",
        "SELECT 'a\0b'",
    ],
)
def test_nothing_but_queries_is_compiled_or_run(statement, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sandbox = database()
    assert sandbox.prepares("SELECT t.a FROM t")
    assert sandbox.prepares("select A from T;")
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


def test_a_query_that_never_ends_is_stopped():
    sandbox = database(instructions=100_000)
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    )
    assert sandbox.prepares(endless)
    for query in (endless, "SELECT SUM(v.a) FROM t, t AS u, t AS v" + ", t" * 12):
        with pytest.raises(QueryError, match="takes too long"):
            sandbox.rows(query)
    # The next query has its own count, and is read as far as asked.
    assert sandbox.rows("SELECT t.a FROM t", most=2) == [(1,), (2,)]


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
