"""Folders of databases are read; rows are generated where there are none; bad ones are named."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

import gcd
from experiments import run as experiment
from experiments.harness.records import DataError
from experiments.sql.databases import make_databases, read_sources
from experiments.sql.fillings import constants_of, fill
from experiments.sql.normalize import UnwritableQueryError, normalize
from experiments.sql.questions import Question, find_questions, read_questions
from experiments.sql.task import OWN, read
from tests.experiments import composing

ROOT = Path(__file__).resolve().parents[3]
SPIDER = ROOT.parent / "shared" / "data" / "spider"
needs_spider = pytest.mark.skipif(not SPIDER.exists(), reason="the folder of Spider is not here")


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


@pytest.fixture(scope="module")
def own():
    return read(composed())


def test_our_questions_are_a_hundred_and_every_gold_query_is_a_measure(own):
    assert len(own.questions.records) == 100
    assert own.questions.skipped == ()
    assert own.judge.unjudged == {}
    for name, database in own.databases.items():
        assert not database.generated
        assert 3 <= len(database.schema.tables) <= 5
        mine = [q for q in own.questions.records if q.database == name]
        assert len(mine) == len({q.text for q in mine}) == len({q.query for q in mine}) == 20
    for question in own.questions.records:
        assert own.judge.prepares(question, question.query.encode())
        assert own.judge.is_correct(question, question.query.encode())
        assert own.judge.is_exact(question, question.query.encode())


def test_our_gold_queries_are_spelled_as_the_language_has_them(own):
    dialect = gcd.SqlDialect(subquery_tables=1, compound_columns=1)  # enough for all of them
    for name, database in own.databases.items():
        language = gcd.sql(database.schema, dialect)
        for question in own.questions.records:
            if question.database == name:
                assert normalize(question.query, database.schema) == question.query
                assert language.accepts(question.query), question.query


def test_no_two_of_our_questions_have_answers_that_are_mistaken_for_each_other(own):
    """Rows are varied enough that another question's query is a wrong answer."""
    mistaken = [
        (one.text, other.text)
        for one in own.questions.records
        for other in own.questions.records
        if one.database == other.database
        and one.id != other.id
        and own.judge.is_correct(one, other.query.encode())
    ]
    assert mistaken == []


# -- generated rows ------------------------------------------------------------


SCHEMA = gcd.SqlSchema(
    (
        gcd.Table("shop", (gcd.Column("id", "number"), gcd.Column("City", "text")), ("id",)),
        gcd.Table("sale", (gcd.Column("shop_id", "number"), gcd.Column("price", "number"))),
    ),
    (gcd.ForeignKey("sale", "shop_id", "shop", "id"),),
)
QUERIES = (
    "SELECT T2.price FROM shop AS T1 JOIN sale AS T2 ON T1.id = T2.shop_id WHERE T1.city = 'Oslo'",
    "SELECT id FROM shop WHERE City LIKE '%berg%'",
    "SELECT shop_id FROM sale WHERE price BETWEEN 500 AND 510 AND shop_id IN (3, 4)",
    'SELECT id FROM shop WHERE City != "Rome"',
    "SELECT count(*) FROM sale WHERE price > 1000.5",
)


def test_constants_are_those_of_the_gold_queries():
    constants = constants_of([*QUERIES, "SELECT ((", "SELECT id FROM shop"])
    assert constants.of_column == {
        "city": ["Oslo", "berg", "Rome"],
        "price": [500, 510, 1000.5],
        "shop_id": [3, 4],
    }
    assert constants.wishes[0] == {"city": "Oslo"}
    assert constants.wishes[1] == {"city": "berg"}
    assert constants.wishes[2]["price"] in (500, 510)
    assert constants.wishes[3]["city"] not in ("Rome", None)
    assert constants.wishes[4] == {"price": 1001.5}


@pytest.mark.parametrize("number", range(4))
def test_a_filling_obeys_its_schema_and_answers_its_queries(number):
    constants = constants_of(QUERIES)
    filling = fill(SCHEMA, constants, number, seed=0)
    shops = filling.execute("SELECT id FROM shop").fetchall()
    assert len(set(shops)) == len(shops)
    assert filling.execute(
        "SELECT COUNT(*) FROM sale WHERE shop_id NOT IN (SELECT id FROM shop)"
    ).fetchone() == (0,)
    assert filling.execute(
        "SELECT COUNT(*) FROM shop WHERE id NOT IN (SELECT shop_id FROM sale)"
    ).fetchone() > (0,)
    types = "SELECT DISTINCT typeof(id), typeof(City) FROM shop"
    assert filling.execute(types).fetchall() == [("integer", "text")]
    again = fill(SCHEMA, constants, number, seed=0)
    assert list(again.iterdump()) == list(filling.iterdump())
    assert list(fill(SCHEMA, constants, number, seed=1).iterdump()) != list(filling.iterdump())


def test_every_gold_query_has_a_result_on_some_filling():
    fillings = [fill(SCHEMA, constants_of(QUERIES), number, seed=0) for number in range(4)]
    for query in QUERIES:
        assert any(filling.execute(query).fetchone() not in (None, (0,)) for filling in fillings)


def test_foreign_keys_in_a_circle_are_filled(tmp_path):
    schema = gcd.SqlSchema(
        (
            gcd.Table("a", (gcd.Column("id", "int"), gcd.Column("b_id", "int")), ("id",)),
            gcd.Table("b", (gcd.Column("id", "int"), gcd.Column("a_id", "int")), ("id",)),
        ),
        (
            gcd.ForeignKey("a", "b_id", "b", "id"),
            gcd.ForeignKey("b", "a_id", "a", "id"),
            gcd.ForeignKey("a", "id", "a", "id"),
        ),
    )
    filling = fill(schema, constants_of([]), 1, seed=0)
    missing = "SELECT COUNT(*) FROM a WHERE b_id NOT IN (SELECT id FROM b)"
    assert filling.execute(missing).fetchone() == (0,)


@needs_spider
def test_almost_all_of_spider_is_measured_and_other_spellings_are_right():
    asked = read(composed(f"data.path={SPIDER}", "task.num_examples=501"))
    assert len(asked.questions.records) == 501
    assert len(asked.judge.unjudged) <= 5
    assert all(database.generated for database in asked.databases.values())
    spelled = 0
    for question in asked.questions.records:
        try:
            query = normalize(question.query, asked.databases[question.database].schema)
        except UnwritableQueryError:
            continue
        assert asked.judge.prepares(question, query.encode())
        assert asked.judge.is_exact(question, query.encode())
        if question.id not in asked.judge.unjudged:
            assert asked.judge.is_correct(question, query.encode()), (question.query, query)
            spelled += 1
    assert spelled > 400


# -- what is read


def test_a_folder_of_sqlite_files_is_read_too(tmp_path):
    folder_of(tmp_path, [ASKED])
    file = sqlite3.connect(tmp_path / "pets.sqlite")
    file.executescript(PETS)
    file.close()
    asked = read(composed(f"data.path={tmp_path}"))
    assert not asked.databases["pets"].generated
    assert asked.databases["pets"].fillings[0].rows("SELECT pet.name FROM pet") == [("Rex",)]


def test_a_database_without_rows_is_filled(tmp_path):
    folder_of(tmp_path, [ASKED], pets="CREATE TABLE pet (id INTEGER PRIMARY KEY, name TEXT);")
    asked = read(composed(f"data.path={tmp_path}", "task.fillings=3"))
    assert asked.databases["pets"].generated
    assert len(asked.databases["pets"].fillings) == 3


def test_rows_do_not_depend_on_which_questions_are_run(tmp_path):
    more = {**ASKED, "query": "SELECT pet.id FROM pet WHERE pet.name = 'Zoe'"}
    folder_of(tmp_path, [ASKED, more], pets="CREATE TABLE pet (id INTEGER, name TEXT);")
    one = read(composed(f"data.path={tmp_path}", "task.num_examples=1"))
    other = read(composed(f"data.path={tmp_path}", "data.offset=1", "seed=7"))
    assert one.databases["pets"].digest == other.databases["pets"].digest


def test_a_list_in_one_file_is_read_as_lines_are(tmp_path):
    (tmp_path / "dev.json").write_text(json.dumps([ASKED, {**ASKED, "db_id": "cats"}]))
    result = read_questions(find_questions(tmp_path), {"pets"})
    assert result.records == (Question("pets-1", "pets", "Which pets?", ASKED["query"]),)
    assert [(s.position, s.reason) for s in result.skipped] == [
        (2, "expected an existing database, got 'cats'")
    ]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{no", "Expecting"),
        ([1], "got list"),
        ({**ASKED, "question": " "}, "question to be a text that isn't empty"),
        ({**ASKED, "query": 3}, "query to be a text that isn't empty, got 3"),
        ({**ASKED, "db_id": "cats"}, "an existing database, got 'cats'"),
    ],
)
def test_a_malformed_question_is_passed_over_with_its_number(tmp_path, bad, reason):
    folder_of(tmp_path, [ASKED, bad], pets=PETS)
    result = read(composed(f"data.path={tmp_path}")).questions
    assert len(result.records) == 1
    assert [s.position for s in result.skipped] == [2]
    assert reason in result.skipped[0].reason


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


def _spider_without_fields(tmp_path: Path) -> None:
    (tmp_path / "tables.json").write_text('[{"db_id": "pets"}]')


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
        (lambda path: (path / "tables.json").mkdir(), "tables.json cannot be read"),
        (lambda path: [folder_of(path, pets=PETS), (path / "questions.jsonl").mkdir()],
         "questions.jsonl cannot be read"),
        (_cut, "pets.sqlite"),
        (_spider_without_fields, "tables.json"),
        (lambda path: (path / "tables.json").write_text("[]"), "expected at least one database"),
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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.fillings=0", "task.fillings to be at least 1"),
        ("task.subquery_depth=-1", "task.subquery_depth to be at least 0"),
        ("task.budget=huge", "expected task.budget to be .*, got 'huge'"),
        ("data.hub=some/set", "expected data.path for this task, got data.hub=some/set"),
    ],
)
def test_settings_are_checked(override, message):
    with pytest.raises(ValueError, match=message):
        experiment.check(composed(override))


def test_two_databases_of_one_name_are_refused(tmp_path):
    folder_of(tmp_path, [ASKED], pets=PETS)
    sqlite3.connect(tmp_path / "pets.db").executescript(PETS).close()
    with pytest.raises(DataError, match="got two called pets"):
        read_sources(tmp_path)


def test_our_own_folder_is_where_it_should_be():
    assert len(make_databases(read_sources(OWN), read(composed()).questions.records, 1)) == 5
