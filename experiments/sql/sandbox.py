"""In-memory databases on which untrusted queries can run safely.

Queries come from a language model and aren't trusted. SQLite refuses everything other than a SELECT
of the tables (an authorizer checks every operation of a compiled statement), the database is
read-only, and long statements are interrupted. The limit counts instructions of SQLite's virtual
machine instead of seconds, so verdicts don't depend on the machine or its load.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence

Value = int | float | str | bytes | None
Rows = list[tuple[Value, ...]]

INSTRUCTIONS = 20_000_000  # limit per query: about a second
_EXPLAINED = 8  # number of columns of EXPLAIN
_STEP = 1000  # instructions between two checks of the limit
_LENGTH = 1_000_000  # limit in bytes of a text, a row, and a query
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


class QueryError(ValueError):
    """Raised for queries that SQLite refuses to compile or to run, or that take too long."""


class Sandbox:
    """A read-only database for queries.

    Args:
        connection: the database, which is copied into memory.
        instructions: limit of virtual machine instructions per query.
    """

    def __init__(self, connection: sqlite3.Connection, instructions: int = INSTRUCTIONS) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.backup(self._connection)
        self._connection.text_factory = lambda text: text.decode("utf-8", errors="replace")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LENGTH)
        self._connection.execute("PRAGMA query_only = ON")
        self._connection.set_authorizer(_authorize)
        self._most = max(1, math.ceil(instructions / _STEP))
        self._left = 0
        self._connection.set_progress_handler(self._is_spent, _STEP)

    def check(self, query: str) -> None:
        """Compile a query without running it.

        Raises:
            QueryError: it doesn't compile or isn't a query.
        """
        program = self._run(f"EXPLAIN {query}", None)
        # SQLite compiles VACUUM without calling the authorizer (running it would fail). EXPLAIN
        # also accepts "QUERY PLAN SELECT 1", which isn't a query, with other columns.
        if any(len(line) != _EXPLAINED or line[1] == "Vacuum" for line in program):
            raise QueryError("expected a SELECT, got another statement")

    def prepares(self, query: str) -> bool:
        """Return whether SQLite compiles a query."""
        try:
            self.check(query)
        except QueryError:
            return False
        return True

    def rows(self, query: str, most: int | None = None) -> Rows:
        """Run a query.

        Args:
            query: one statement.
            most: maximum number of rows to read; None for all.

        Raises:
            QueryError: it doesn't compile, isn't a query, or takes too long.
        """
        self.check(query)
        return self._run(query, most)

    def _run(self, statement: str, most: int | None) -> Rows:
        self._left = self._most
        try:
            cursor = self._connection.execute(statement)
            rows: Rows = cursor.fetchall() if most is None else cursor.fetchmany(most)
            cursor.close()
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
            spent = " (it takes too long)" if self._left < 0 else ""
            raise QueryError(f"{error}{spent}") from error
        return rows

    def _is_spent(self) -> bool:
        self._left -= 1
        return self._left < 0


def _authorize(operation: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if operation in _ALLOWED else sqlite3.SQLITE_DENY


def comparable(row: Sequence[Value]) -> tuple[Value, ...]:
    """Round the fractions of a row to ten digits, so that rows can be compared by `==`.

    The last digits of a sum depend on the order of its terms.
    """
    return tuple(_comparable(value) for value in row)


def _comparable(value: Value) -> Value:
    if not isinstance(value, float) or value.is_integer() or not math.isfinite(value):
        return value
    return float(f"{value:.10g}")
