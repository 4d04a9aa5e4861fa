"""Folders of databases are read; bad ones, and those without rows, are named."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

import gcd
from experiments import run as experiment
from experiments.evaluate import DataError
from experiments.sql.databases import Question, find_questions, read_databases, read_questions
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


@pytest.fixture(scope="module")
def own():
    return read(composed())


def test_our_questions_are_a_hundred_and_every_gold_query_is_a_measure(own):
    assert len(own.questions.records) == 100
    assert own.questions.skipped == ()
    assert own.judge.unjudged == {}
    for name, database in own.databases.items():
        assert 3 <= len(database.schema.tables) <= 5
        mine = [q for q in own.questions.records if q.database == name]
        assert len(mine) == len({q.text for q in mine}) == len({q.query for q in mine}) == 20
    for question in own.questions.records:
        assert own.judge.prepares(question, question.query.encode())
        assert own.judge.is_correct(question, question.query.encode())


def test_our_gold_queries_are_spelled_as_the_language_has_them(own):
    dialect = gcd.SqlDialect(subquery_tables=1, compound_columns=1)  # enough for all of them
    for name, database in own.databases.items():
        language = gcd.sql(database.schema, dialect)
        for question in own.questions.records:
            if question.database == name:
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


# -- what is read


def test_a_folder_of_sqlite_files_is_read_too(tmp_path):
    folder_of(tmp_path, [ASKED])
    file = sqlite3.connect(tmp_path / "pets.sqlite")
    file.executescript(PETS)
    file.close()
    asked = read(composed(f"data.path={tmp_path}"))
    assert asked.databases["pets"].rows.rows("SELECT pet.name FROM pet") == [("Rex",)]


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


def test_our_own_folder_is_where_it_should_be():
    assert len(read_databases(OWN)) == 5
