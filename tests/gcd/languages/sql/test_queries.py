"""Queries in the language, checked by SQLite, and hand-written lists of queries outside it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import pytest

import gcd
from gcd import Automaton, SqlDialect, SqlSchema
from tests.gcd.languages.sql.schemas import AWKWARD, CONCERTS, TINY, Judge
from tests.gcd.random_strings import RandomWalks

DIALECTS = {
    "default": SqlDialect(),
    "deep": SqlDialect(subquery_depth=2, compound_columns=3),
    "any join": SqlDialect(any_join=True, tables=2),
    "values": SqlDialect(values=("it's", "Rome", "")),
    "narrow": SqlDialect(
        tables=2, subquery_tables=1, compound_tables=1, compound_columns=1, grouped_parts=False
    ),
    "plain": SqlDialect(tables=1, subquery_depth=0, compound_columns=0),
}


@pytest.fixture(scope="module")
def language() -> Automaton:
    return gcd.sql(CONCERTS)


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        *(("default", schema) for schema in (CONCERTS, AWKWARD, TINY)),
        *(("deep", AWKWARD), ("any join", TINY), ("any join", AWKWARD), ("values", CONCERTS)),
        *(("narrow", CONCERTS), ("plain", AWKWARD)),
    ],
)
def test_sqlite_prepares_every_random_query(name: str, schema: SqlSchema) -> None:
    walks = RandomWalks(gcd.sql(schema, DIALECTS[name]))
    judge = Judge(schema)
    rng = random.Random(name)
    for _ in range(150):
        query = walks.draw(rng, patience=rng.choice([40, 120, 400]), stop=0.1).decode()
        assert judge.complaint(query) is None, query


def test_random_queries_get_into_all_corners(language: Automaton) -> None:
    walks = RandomWalks(language)
    rng = random.Random(0)
    text = " ".join(walks.draw(rng, patience=400, stop=0.05).decode() for _ in range(500))
    for words in (
        *("JOIN", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "DESC", "UNION", "EXCEPT"),
        *("BETWEEN", "NOT LIKE", "IS NOT NULL", "(SELECT", "IN ('", "COUNT(*)", "DISTINCT", "''"),
    ):
        assert words in text


# Queries that the language has; that SQLite refuses; and that are written otherwise.
QUERIES = {
    "in": """
SELECT DISTINCT singer.name, singer.age FROM singer
SELECT COUNT(DISTINCT singer.name), AVG(singer.age), COUNT(*) FROM singer
SELECT stadium.city FROM stadium JOIN concert ON stadium.id = concert.stadium_id
SELECT singer.name, concert.title FROM singer JOIN singer_in_concert ON singer.id = \
singer_in_concert.singer_id JOIN concert ON singer_in_concert.concert_id = concert.id
SELECT singer.name FROM singer WHERE singer.age > 20 AND singer.name LIKE '%a%' OR singer.id != -1.5
SELECT singer.name FROM singer WHERE singer.name IN ('a', 'O''Hara', 3)
SELECT singer.name FROM singer WHERE singer.age NOT BETWEEN 3 AND 40 AND singer.name NOT LIKE 'x'
SELECT singer.name FROM singer WHERE NOT singer.age > (SELECT AVG(singer.age) FROM singer)
SELECT stadium.city FROM stadium WHERE stadium.id NOT IN (SELECT concert.stadium_id FROM concert \
WHERE concert.year >= 2014)
SELECT stadium.city FROM stadium WHERE stadium.id = (SELECT concert.stadium_id FROM concert \
GROUP BY concert.stadium_id ORDER BY COUNT(*) DESC LIMIT 1)
SELECT concert.year FROM concert GROUP BY concert.year, concert.title HAVING COUNT(*) > 1 AND \
MIN(concert.id) < 3
SELECT concert.year FROM concert GROUP BY concert.year ORDER BY COUNT(*) DESC, concert.year LIMIT 1
SELECT singer.name FROM singer ORDER BY singer.age DESC, singer.name ASC, singer.id LIMIT 12
SELECT singer.name FROM singer WHERE singer.age > 40 INTERSECT SELECT singer.name FROM singer
SELECT singer.name, singer.age FROM singer EXCEPT SELECT singer.name, singer.id FROM singer
SELECT COUNT(*) FROM singer UNION ALL SELECT concert.year FROM concert LIMIT 3
""",
    "refused": """
SELECT concert.title FROM singer
SELECT singer.name FROM singer GROUP BY concert.year
SELECT singer.name FROM singer WHERE singer.age > (SELECT AVG(concert.year) FROM singer)
SELECT SUM(AVG(singer.age)) FROM singer
SELECT singer.name FROM singer GROUP BY COUNT(*)
SELECT singer.name FROM singer ORDER BY COUNT(*)
SELECT singer.name FROM singer JOIN singer ON singer.id = singer.id
SELECT singer.name, singer.age FROM singer UNION SELECT singer.name FROM singer
SELECT singer.name FROM singer UNION SELECT singer.name FROM singer ORDER BY singer.age
SELECT singer.name FROM singer WHERE singer.id IN (SELECT singer.id, singer.age FROM singer)
SELECT singer.name FROM singer WHERE singer.name = 'O'Hara'
""",
    "otherwise": """
SELECT name FROM singer
SELECT T1.name FROM singer AS T1
SELECT singer.name FROM singer WHERE singer.age = 007
SELECT singer.name FROM singer JOIN stadium ON singer.id = stadium.id
SELECT singer.name FROM singer WHERE singer.age > (SELECT AVG(singer.age) FROM singer) LIMIT 1
""",
}


@pytest.mark.parametrize(
    ("kind", "query"),
    [(kind, query) for kind, text in QUERIES.items() for query in text.strip().splitlines()],
)
def test_queries_of_note(language: Automaton, kind: str, query: str) -> None:
    assert language.accepts(query) == (kind == "in")
    assert (Judge(CONCERTS).complaint(query) is None) == (kind != "refused")


def test_all_short_queries_are_those_that_the_grammar_writes() -> None:
    """All queries of at most 44 bytes without literals equal those generated by plain loops."""
    most = 44
    dialect = SqlDialect(subquery_depth=0, compound_columns=1)
    language = gcd.sql(TINY, dialect) & gcd.regex(r"[^0-9']*")
    found = {string.decode() for string in language.enumerate(language.count(most))}
    assert found == set(_written(most))
    assert len(found) > 2_000
    judge = Judge(TINY)
    assert all(judge.complaint(query) is None for query in found)


def _written(most: int) -> Iterator[str]:
    """Yield the queries over TINY with plain loops: heads, tables that contain them, clauses."""
    sources = {
        "t": ["t.a"],
        "u": ["u.b"],
        "t JOIN u ON t.a = u.b": ["t.a", "u.b"],
        "u JOIN t ON u.b = t.a": ["t.a", "u.b"],
    }
    for source, columns in sources.items():
        aggregates = [
            f"{name}({distinct}{column})"
            for name in ("COUNT", "SUM", "AVG", "MIN", "MAX")
            for distinct in ("", "DISTINCT ")
            for column in columns
        ]
        items = [*columns, *aggregates, "COUNT(*)"]
        orders = [column + way for column in columns for way in ("", " ASC", " DESC")]
        first = [a + way for a in [*aggregates, "COUNT(*)"] for way in ("", " ASC", " DESC")]
        tests = [
            f"{negation}{column} IS {null}"
            for negation in ("", "NOT ")
            for column in columns
            for null in ("NULL", "NOT NULL")
        ]
        heads = [
            f"SELECT {distinct}{listed} FROM {source}"
            for distinct in ("", "DISTINCT ")
            for listed in _rows(["*", *items], items, [", "], most - 13 - len(source))
        ]
        for head in heads:
            room = most - len(head)
            wheres = [
                "",
                *(f" WHERE {row}" for row in _rows(tests, tests, [" AND ", " OR "], room)),
            ]
            groups = [f" GROUP BY {row}" for row in _rows(columns, columns, [", "], room)]
            plain = ["", *(f" ORDER BY {row}" for row in _rows(orders, orders, [", "], room))]
            grouped = [f" ORDER BY {row}" for row in _rows([*first, *orders], orders, [", "], room)]
            for where in wheres:
                for order in plain:
                    yield from _if_short(head + where + order, most)
                for group in groups:
                    for order in ["", *grouped]:
                        yield from _if_short(head + where + group + order, most)
    for left, operator, right in product("tu", ("UNION", "UNION ALL", "EXCEPT", "INTERSECT"), "tu"):
        for x, y in product([*sources[left], "COUNT(*)"], [*sources[right], "COUNT(*)"]):
            yield from _if_short(f"SELECT {x} FROM {left} {operator} SELECT {y} FROM {right}", most)


def _rows(first: list[str], later: list[str], between: list[str], room: int) -> Iterator[str]:
    """Yield all lists of words that begin with one of `first`, within `room` bytes."""
    for word in first:
        if len(word) <= room:
            yield word
            for link in between:
                for rest in _rows(later, later, between, room - len(word) - len(link)):
                    yield word + link + rest


def _if_short(query: str, most: int) -> Iterator[str]:
    if len(query) <= most:
        yield query
