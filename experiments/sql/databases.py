"""Databases of questions: schemas and rows, read from a folder.

A folder has text files `NAME.sql` with CREATE TABLE and INSERT, SQLite files, or `tables.json` in
Spider's format with SQLite files in `databases/` (or `database/NAME/`, as in Spider's release).
`tables.json` defines the schemas. Queries are run on *fillings* of a database, which are sets of
rows. A database that comes with rows has these as its only filling. For a database without rows, as
in data sets that publish only schemas, several fillings are generated.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.harness.records import DataError, read_text
from experiments.sql.questions import Question
from experiments.sql.sandbox import Sandbox
from gcd import ConstraintError, SqlSchema, sql_schema
from gcd._languages.sql.reading import schema_of_entry
from gcd._languages.sql.schema import quote

_SEED = 0  # fixed, as rows are data and must not depend on the seed of a run


@dataclass(frozen=True)
class Source:
    """A database as found in a folder.

    Attributes:
        schema: its tables.
        content: the database in memory; None without rows.
    """

    schema: SqlSchema
    content: sqlite3.Connection | None


@dataclass(frozen=True)
class Database:
    """A database with rows to run queries on.

    Attributes:
        name: name of the database in questions.
        schema: its tables.
        fillings: the database with its own rows, or several fillings with generated rows.
        generated: whether the rows are generated.
        digest: digest of all rows.
    """

    name: str
    schema: SqlSchema
    fillings: tuple[Sandbox, ...]
    generated: bool
    digest: str


def read_sources(folder: Path) -> dict[str, Source]:
    """Read all databases of a folder, by name.

    Raises:
        DataError: the folder is missing or has no database, or a database is damaged.
    """
    if not folder.is_dir():
        raise DataError(f"expected a folder of databases, but data.path={folder} does not exist")
    tables = folder / "tables.json"
    if tables.exists():
        return _read_spider(folder, tables)
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
            "TABLE and INSERT), SQLite files NAME.sqlite, or a tables.json in Spider's format"
        )
    return found


def make_databases(
    sources: Mapping[str, Source], questions: Sequence[Question], fillings: int
) -> dict[str, Database]:
    """Make the databases of the questions, with rows.

    Args:
        sources: databases of the folder, by name.
        questions: all questions of the folder, as generated rows are adapted to their gold queries.
        fillings: number of fillings to generate for a database without rows.
    """
    from experiments.sql.fillings import constants_of, fill  # sqlglot is slow to import

    queries: dict[str, list[str]] = defaultdict(list)
    for question in questions:
        queries[question.database].append(question.query)
    made = {}
    for name, asked in queries.items():
        source = sources[name]
        if source.content is not None:
            contents = [source.content]
        else:
            constants = constants_of(asked)
            contents = [fill(source.schema, constants, n, _SEED) for n in range(fillings)]
        digest = hashlib.sha256()
        for content in contents:
            digest.update("\n".join(content.iterdump()).encode())
        made[name] = Database(
            name=name,
            schema=source.schema,
            fillings=tuple(map(Sandbox, contents)),
            generated=source.content is None,
            digest=digest.hexdigest()[:16],
        )
    return made


def _read_spider(folder: Path, tables: Path) -> dict[str, Source]:
    text = read_text(tables)
    try:
        entries = json.loads(text)
        schemas = {entry["db_id"]: schema_of_entry(entry) for entry in entries}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"expected Spider's format in {tables}, got {error!r}") from error
    if not schemas:
        raise DataError(f"expected at least one database in {tables}, got none")
    found = {}
    for name, schema in schemas.items():
        places = (
            folder / "databases" / f"{name}.sqlite",
            folder / "database" / name / f"{name}.sqlite",
        )
        path = next((place for place in places if place.exists()), None)
        found[name] = Source(schema, None if path is None else _rows_of(path, schema))
    return found


def _read_file(path: Path) -> Source:
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
        return Source(schema, _rows_of(file, schema))


def _rows_of(path: Path, schema: SqlSchema) -> sqlite3.Connection | None:
    """Copy a SQLite file into memory; None if it has no rows.

    Raises:
        DataError: the file is damaged, or doesn't have the tables of the schema.
    """
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
    return content if filled else None


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
