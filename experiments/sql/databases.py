"""Databases of questions: schemas and rows, read from a folder.

A folder has text files `NAME.sql` with CREATE TABLE and INSERT, or SQLite files. Every database
needs rows, as queries are judged by their results.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.records import DataError, read_text
from experiments.sql.sandbox import Sandbox
from gcd import ConstraintError, SqlSchema, sql_schema
from gcd._languages.sql.database import quote


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
