"""Databases are read from a folder: their schemas, and rows that queries can be tried on.

A folder has either text files `NAME.sql` of CREATE TABLE and INSERT or SQLite files, or a file
`tables.json` in Spider's form, which is believed about schemas, beside SQLite files in `databases/`
(or `database/NAME/`, as Spider ships them). Where a database has rows, they are its only filling;
where it has none, as in files that publish schemas alone, fillings are generated.
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
from gcd.errors import ConstraintError
from gcd.languages.sql.reading import schema_of_entry, sql_schema
from gcd.languages.sql.schema import SqlSchema, quoted

_SEED = 0  # rows are data: they do not change with the seed of a run


@dataclass(frozen=True)
class Source:
    """A database as it lies in a folder.

    Attributes:
        schema: its tables.
        content: the database itself, in memory; None where there are no rows.
    """

    schema: SqlSchema
    content: sqlite3.Connection | None


@dataclass(frozen=True)
class Database:
    """A database whose queries can be tried.

    Attributes:
        name: what questions call it.
        schema: its tables.
        fillings: with its own rows, or several with generated ones.
        generated: whether they are.
        digest: of all rows.
    """

    name: str
    schema: SqlSchema
    fillings: tuple[Sandbox, ...]
    generated: bool
    digest: str


def read_sources(folder: Path) -> dict[str, Source]:
    """Read all databases of a folder, by name.

    Raises:
        DataError: no folder, no database in it, or one that is damaged or no database at all.
    """
    if not folder.is_dir():
        raise DataError(f"data.path={folder}: no such folder; give one of databases")
    tables = folder / "tables.json"
    if tables.exists():
        return _read_spider(folder, tables)
    found = {}
    for path in sorted([*folder.glob("*.sql"), *folder.glob("*.sqlite"), *folder.glob("*.db")]):
        if path.stem in found:
            raise DataError(f"data.path={folder}: two databases are called {path.stem}; remove one")
        found[path.stem] = _read_file(path)
    if not found:
        raise DataError(
            f"data.path={folder}: no database there; it needs files NAME.sql (CREATE TABLE and "
            "INSERT), SQLite files NAME.sqlite, or a tables.json in Spider's form"
        )
    return found


def make_databases(
    sources: Mapping[str, Source], questions: Sequence[Question], fillings: int
) -> dict[str, Database]:
    """Make the databases that questions ask, with rows.

    Args:
        questions: all that the folder has, as generated rows suit their gold queries.
        fillings: how many to generate for a database without rows.
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
        raise DataError(f"{tables} is not in Spider's form: {error!r}") from error
    if not schemas:
        raise DataError(f"{tables} names no database")
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
    """Read a SQLite file, or a text from which SQLite makes one; both are read the same way."""
    with TemporaryDirectory() as scratch:
        file = path
        if path.suffix == ".sql":
            file = Path(scratch) / f"{path.stem}.sqlite"
            _run_script(path, file)
        try:
            schema = sql_schema(file)
        except ConstraintError as error:
            # What is wrong with a file names it; what is wrong with a schema does not.
            named = str(error) if str(path) in str(error) else f"{path}: {error}"
            raise DataError(f"data.path: {named}") from error
        return Source(schema, _rows_of(file, schema))


def _rows_of(path: Path, schema: SqlSchema) -> sqlite3.Connection | None:
    """Copy a SQLite file into memory; None if there is no row in it.

    Raises:
        DataError: it is damaged, or does not have the tables of the schema.
    """
    content = sqlite3.connect(":memory:")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as file:
            verdict = file.execute("PRAGMA quick_check(1)").fetchone()[0]
            file.backup(content)
        counts = [f"SELECT EXISTS (SELECT 1 FROM {quoted(t.name)})" for t in schema.tables]
        filled = any(content.execute(count).fetchone()[0] for count in counts)
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict != "ok":
        raise DataError(f"{path} is no SQLite database, or is damaged ({verdict}); copy it again")
    return content if filled else None


def _run_script(script: Path, file: Path) -> None:
    """Make the database that a text of SQL describes; the text may not touch other files."""

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
        raise DataError(f"{script}: SQLite refuses it: {error}; correct the text") from error
    if empty:
        raise DataError(f"{script} creates no table; it needs CREATE TABLE and INSERT")
    if wrong is not None:
        raise DataError(f"{script}: row {wrong[1]} of {wrong[0]} refers to no row of {wrong[2]}")
