"""Databases of questions, read from a folder, on which untrusted queries can run safely.

A folder has text files `NAME.sql` with CREATE TABLE and INSERT, or SQLite files. Every database
needs rows, as queries are judged by their results.

Queries come from a language model and aren't trusted. SQLite refuses everything other than a SELECT
of the tables (an authorizer checks every operation of a compiled statement), the database is in
memory and read-only, and long statements are interrupted. The limit counts instructions of SQLite's
virtual machine instead of seconds, so verdicts don't depend on the machine or its load.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.evaluate import DataError, read_text
from gcd import ConstraintError, SqlSchema, sql_schema
from gcd._languages.sql.database import quote

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


# -- files


@dataclass(frozen=True)
class Database:
    """A database with rows to run queries on.

    Attributes:
        schema: its tables.
        rows: the database in memory.
        digest: digest of all rows.
    """

    schema: SqlSchema
    rows: Sandbox
    digest: str


def read_databases(folder: Path) -> dict[str, Database]:
    """Read all databases of a folder, by name.

    Raises:
        DataError: the folder is missing or has no database, or a database is damaged.
    """
    if not folder.is_dir():
        raise DataError(f"expected a folder of databases, but data.path={folder} does not exist")
    found = {}
    for path in sorted([*folder.glob("*.sql"), *folder.glob("*.sqlite"), *folder.glob("*.db")]):
        if path.stem in found:
            raise DataError(
                f"expected databases of different names in data.path={folder}, got two called "
                f"{path.stem}; remove one"
            )
        found[path.stem] = _read_file(path)
    if not found:
        raise DataError(
            f"expected databases in data.path={folder}, got none; give files NAME.sql (CREATE "
            "TABLE and INSERT) or SQLite files NAME.sqlite"
        )
    return found


def _read_file(path: Path) -> Database:
    """Read a SQLite file or a SQL script, which is converted to a SQLite file first."""
    with TemporaryDirectory() as scratch:
        file = path
        if path.suffix == ".sql":
            file = Path(scratch) / f"{path.stem}.sqlite"
            _run_script(path, file)
        try:
            schema = sql_schema(file)
        except ConstraintError as error:
            # Errors about a file name it; errors about a schema don't.
            named = str(error) if str(path) in str(error) else f"{path}: {error}"
            raise DataError(f"data.path: {named}") from error
        content = _rows_of(file, schema, path)
        digest = hashlib.sha256("\n".join(content.iterdump()).encode()).hexdigest()[:16]
        return Database(schema, Sandbox(content), digest)


def _rows_of(path: Path, schema: SqlSchema, given: Path) -> sqlite3.Connection:
    """Copy a SQLite file into memory; refuse a damaged file, and one without rows."""
    content = sqlite3.connect(":memory:")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as file:
            verdict = file.execute("PRAGMA quick_check(1)").fetchone()[0]
            file.backup(content)
        counts = [f"SELECT EXISTS (SELECT 1 FROM {quote(t.name)})" for t in schema.tables]
        filled = any(content.execute(count).fetchone()[0] for count in counts)
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict != "ok":
        raise DataError(f"expected an intact SQLite database in {path} ({verdict}); copy it again")
    if not filled:
        raise DataError(
            f"expected a database with rows in {given}, got none; add INSERT statements, as "
            "queries are judged by their results"
        )
    return content


def _run_script(script: Path, file: Path) -> None:
    """Run a SQL script that creates a database; the script can't access other files."""

    def authorize(operation: int, *_: object) -> int:
        refused = operation == sqlite3.SQLITE_ATTACH
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    text = read_text(script)
    try:
        with closing(sqlite3.connect(file)) as made:
            made.set_authorizer(authorize)
            made.executescript(text)
            made.commit()
            wrong = made.execute("PRAGMA foreign_key_check").fetchone()
            empty = made.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    except sqlite3.Error as error:
        raise DataError(f"expected SQL that SQLite accepts in {script}, got {error}") from error
    if empty:
        raise DataError(f"expected CREATE TABLE and INSERT in {script}, got no table")
    if wrong is not None:
        raise DataError(
            f"expected foreign keys of existing rows in {script}, but row {wrong[1]} of {wrong[0]} "
            f"refers to a missing row of {wrong[2]}"
        )
