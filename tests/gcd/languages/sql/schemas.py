"""Schemas of the tests, and SQLite as an oracle for membership in a language."""

from __future__ import annotations

import sqlite3

from gcd import Column, ForeignKey, SqlSchema, Table


def table(name: str, *columns: str, key: str | None = None) -> Table:
    return Table(name, tuple(map(Column, columns)), (key,) if key else ())


CONCERTS = SqlSchema(
    (
        table("singer", "id", "name", "age", key="id"),
        table("concert", "id", "title", "stadium_id", "year", key="id"),
        table("singer_in_concert", "singer_id", "concert_id"),
        table("stadium", "id", "city", key="id"),
    ),
    (
        ForeignKey("concert", "stadium_id", "stadium", "id"),
        ForeignKey("singer_in_concert", "singer_id", "singer", "id"),
        ForeignKey("singer_in_concert", "concert_id", "concert", "id"),
    ),
)

AWKWARD = SqlSchema(
    (
        table("order", "group", "18_49 rating", 'say "so"', "COUNT"),
        table("COUNT", "select", "order", "naïve"),
        table("Count_of", "rowid", "order"),
    ),
    (
        ForeignKey("order", "group", "COUNT", "select"),
        ForeignKey("Count_of", "order", "order", "COUNT"),
    ),
)

TINY = SqlSchema((table("t", "a"), table("u", "b")), (ForeignKey("u", "b", "t", "a"),))


class Judge:
    """An empty SQLite database of a schema."""

    def __init__(self, schema: SqlSchema) -> None:
        self._connection = sqlite3.connect(":memory:")
        for statement in schema.create_statements():
            self._connection.execute(statement)

    def complaint(self, query: str) -> str | None:
        """Return why SQLite rejects a query, or None. EXPLAIN prepares it without running it."""
        try:
            self._connection.execute(f"EXPLAIN {query}")
        except sqlite3.Error as error:
            return str(error)
        return None
