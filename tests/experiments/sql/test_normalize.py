"""Queries as people write them become the one spelling of the language, or are refused by name."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

import gcd
from experiments.sql.normalize import UnwritableQueryError, normalize
from tests.gcd.languages.sql.schemas import AWKWARD, CONCERTS, Judge
from tests.gcd.oracles import shared

WRITTEN = [
    ("select NAME from Singer;", "SELECT singer.name FROM singer"),
    ("SELECT s.* FROM singer s", "SELECT * FROM singer"),
    (
        "SELECT T2.city ,  count( * ) AS n FROM concert AS T1 JOIN stadium AS T2 "
        "ON t2.id = t1.stadium_id GROUP BY T1.stadium_id HAVING count(*) >= 2",
        "SELECT stadium.city, COUNT(*) FROM concert JOIN stadium ON concert.stadium_id = stadium.id"
        " GROUP BY concert.stadium_id HAVING COUNT(*) >= 2",
    ),
    (
        'SELECT count(distinct name) FROM singer WHERE name = "O\'Hara" or 20 < age',
        "SELECT COUNT(DISTINCT singer.name) FROM singer WHERE singer.name = 'O''Hara' "
        "OR singer.age > 20",
    ),
    (
        "SELECT name FROM singer WHERE id NOT IN (SELECT singer_id FROM singer_in_concert) "
        "AND (age BETWEEN 3 AND -4 AND name NOT LIKE 'a%') AND NOT age <> 3 AND name IS NOT NULL",
        "SELECT singer.name FROM singer WHERE singer.age BETWEEN 3 AND -4 AND singer.name NOT LIKE "
        "'a%' AND NOT singer.age != 3 AND singer.name IS NOT NULL AND singer.id NOT IN "
        "(SELECT singer_in_concert.singer_id FROM singer_in_concert)",
    ),
    (
        "SELECT age FROM singer WHERE NOT name NOT LIKE 'a' OR NOT name LIKE 'b' OR id NOT IN (1)",
        "SELECT singer.age FROM singer WHERE singer.name LIKE 'a' OR singer.name NOT LIKE 'b' "
        "OR singer.id NOT IN (1)",
    ),
    (
        "SELECT age FROM singer EXCEPT SELECT age FROM singer WHERE name IN ('a', 3)",
        "SELECT singer.age FROM singer EXCEPT SELECT singer.age FROM singer "
        "WHERE singer.name IN ('a', 3)",
    ),
    (
        "SELECT year FROM concert GROUP BY year ORDER BY max(id) desc, year asc LIMIT 2",
        "SELECT concert.year FROM concert GROUP BY concert.year "
        "ORDER BY MAX(concert.id) DESC, concert.year LIMIT 2",
    ),
]

REFUSED = [
    ("SELECT FROM WHERE (", "not SQL"),
    ("SELECT name FROM singers", "the table 'singers'"),
    ("SELECT nome FROM singer", "belongs to no table"),
    ("SELECT id FROM singer JOIN concert ON singer.id = concert.id", "belongs to several tables"),
    ("SELECT a.name FROM singer a JOIN singer b ON a.id = b.id", "singer joined with itself"),
    ("SELECT name FROM singer, concert", "an outer, cross or natural join"),
    ("SELECT name FROM singer JOIN concert", "a join on something else"),
    ("SELECT name FROM singer LEFT JOIN concert ON singer.id = concert.id", "an outer"),
    ("SELECT name FROM (SELECT name FROM singer)", "sub-query in FROM"),
    ("SELECT age + 1 FROM singer", "the expression age \\+ 1"),
    ("SELECT name FROM singer WHERE age = id", "id in place of a number"),
    ("SELECT name FROM singer WHERE age = 1 AND (id = 2 OR id = 3)", "OR in parentheses"),
    ("SELECT age FROM singer UNION SELECT id FROM singer ORDER BY 1", "behind UNION"),
    ("WITH a AS (SELECT 1) SELECT name FROM singer", "the clause WITH"),
    ("SELECT 1", "without FROM"),
    ("DELETE FROM singer", "of the kind DELETE"),
]


@pytest.mark.parametrize(("query", "written"), WRITTEN)
def test_queries_are_written_in_canonical_spelling(query: str, written: str) -> None:
    assert normalize(query, CONCERTS) == written
    assert normalize(written, CONCERTS) == written
    assert Judge(CONCERTS).complaint(query) is None
    assert Judge(CONCERTS).complaint(written) is None


def test_normal_forms_are_in_the_language() -> None:
    language = gcd.sql(CONCERTS)
    assert all(language.accepts(normalize(query, CONCERTS)) for query, _ in WRITTEN)
    query = 'SELECT "group" FROM "order" WHERE "say ""so""" = 1'
    written = normalize(query, AWKWARD)
    assert written == 'SELECT "order"."group" FROM "order" WHERE "order"."say ""so""" = 1'
    assert gcd.sql(AWKWARD).accepts(written)


@pytest.mark.parametrize(("query", "reason"), REFUSED)
def test_unwritable_queries_are_refused_with_the_reason(query: str, reason: str) -> None:
    with pytest.raises(UnwritableQueryError, match=reason):
        normalize(query, CONCERTS)


def test_another_spelling_has_the_same_rows() -> None:
    """On filled tables, a query and its normal form give the same."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in CONCERTS.create_statements():
            connection.execute(statement)
        for table in CONCERTS.tables:
            for row in range(6):
                values = [(row * 7 + i * i) % 5 for i in range(len(table.columns))]
                marks = ", ".join("?" * len(values))
                connection.execute(f"INSERT INTO {table.name} VALUES ({marks})", values)
        for query, written in WRITTEN:
            rows = connection.execute(query).fetchall()
            assert sorted(map(str, connection.execute(written).fetchall())) == sorted(
                map(str, rows)
            )


def test_gold_queries_are_in_the_language() -> None:
    lines = shared("data/spider/dev_10_databases.jsonl").read_text(encoding="utf-8").splitlines()
    tables = shared("data/spider/tables.json")
    records = [json.loads(line) for line in lines]
    for name, least in (("pets_1", 42), ("museum_visit", 18)):
        schema = gcd.sql_schema(tables, name)
        language = gcd.sql(schema)
        gold = [record["query"] for record in records if record["db_id"] == name]
        assert (
            sum(language.accepts(normalize(query, schema)) for query in gold) == least == len(gold)
        )
