"""A sandbox is a database in memory on which any query may be tried, and none can do harm.

Queries come from a language model, so nothing is assumed of them. SQLite itself refuses what is
not a SELECT of the tables (an authorizer sees every operation of a statement when it is compiled),
the database is marked as read-only beside that, and a statement that runs for long is stopped.
How long is counted in instructions of SQLite's virtual machine, not in seconds: a verdict must not
depend on the machine, or on how busy it is.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence

Value = int | float | str | bytes | None
Rows = list[tuple[Value, ...]]

INSTRUCTIONS = 20_000_000  # of one query: a second or so
_EXPLAINED = 8  # columns of EXPLAIN
_STEP = 1000  # instructions between two looks at the count
_LENGTH = 1_000_000  # bytes of a text, of a row, of a query
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


class QueryError(ValueError):
    """A query that SQLite does not compile, that it may not run, or that runs for too long."""


class Sandbox:
    """A database that queries can read and nothing else.

    Args:
        connection: of the database, which is copied into memory.
        instructions: of SQLite's virtual machine, that one query may take.
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
        """Have SQLite compile a query, without running it.

        Raises:
            QueryError: it does not compile, or is no query.
        """
        program = self._run(f"EXPLAIN {query}", None)
        # VACUUM alone is compiled without a word to the authorizer (and would fail when it is run);
        # "QUERY PLAN SELECT 1" is explained too, but otherwise, and is no query by itself.
        if any(len(line) != _EXPLAINED or line[1] == "Vacuum" for line in program):
            raise QueryError("it is no query")

    def prepares(self, query: str) -> bool:
        """Tell whether SQLite compiles a query."""
        try:
            self.check(query)
        except QueryError:
            return False
        return True

    def rows(self, query: str, most: int | None = None) -> Rows:
        """Run a query.

        Args:
            query: of one statement.
            most: rows that are read; None for all.

        Raises:
            QueryError: it does not compile, is no query, or takes too long.
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
    """Give a row in the form in which equal rows are equal: 1 = 1.0, and rounding is forgiven.

    A sum depends on the order of its terms in the last digits, so numbers with a fraction count to
    ten digits.
    """
    return tuple(_comparable(value) for value in row)


def _comparable(value: Value) -> Value:
    if not isinstance(value, float) or value.is_integer() or not math.isfinite(value):
        return value
    return float(f"{value:.10g}")
