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
from typing import Any

from experiments.harness.records import DataError, read_text
from experiments.sql.fillings import constants_of, fill
from experiments.sql.questions import Question
from experiments.sql.sandbox import Sandbox
from gcd.errors import ConstraintError
from gcd.languages.sql.schema import Column, ForeignKey, SqlSchema, Table, quoted

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
        raise DataError(f"data.path={folder}: no such folder; give one with databases and questions")
    tables = folder / "tables.json"
    if tables.exists():
        return dict(_read_spider(folder, tables))
    found = {}
    for path in sorted([*folder.glob("*.sql"), *folder.glob("*.sqlite"), *folder.glob("*.db")]):
        if path.stem in found:
            raise DataError(f"data.path={folder}: two databases are called {path.stem}; remove one")
        content = _run_script(path) if path.suffix == ".sql" else _open(path)
        found[path.stem] = _source(path, content)
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
        sources: by name.
        questions: all that the folder has, as generated rows suit their gold queries.
        fillings: how many to generate for a database without rows.
    """
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


def _read_spider(folder: Path, tables: Path) -> list[tuple[str, Source]]:
    try:
        entries = json.loads(read_text(tables))
        schemas = {entry["db_id"]: schema_of_entry(entry) for entry in entries}
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DataError(f"{tables} is not in Spider's form: {error!r}") from error
    if not schemas:
        raise DataError(f"{tables} names no database")
    found = []
    for name, schema in schemas.items():
        places = (
            folder / "databases" / f"{name}.sqlite",
            folder / "database" / name / f"{name}.sqlite",
        )
        path = next((place for place in places if place.exists()), None)
        content = None if path is None else _open(path)
        found.append((name, Source(schema, content if content and _has_rows(content) else None)))
    return found


def _source(path: Path, content: sqlite3.Connection) -> Source:
    try:
        schema = schema_of_database(content)
    except ConstraintError as error:
        raise DataError(f"{path}: {error}") from error
    return Source(schema, content if _has_rows(content) else None)


def _open(path: Path) -> sqlite3.Connection:
    """Copy a SQLite file into memory."""
    content = sqlite3.connect(":memory:")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as file:
            verdict = file.execute("PRAGMA quick_check(1)").fetchone()[0]
            file.backup(content)
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict != "ok":
        raise DataError(f"{path} is no SQLite database, or is damaged ({verdict}); replace it")
    return content


def _run_script(path: Path) -> sqlite3.Connection:
    """Make the database that a text file of SQL describes; it may not touch other files."""
    content = sqlite3.connect(":memory:")
    content.set_authorizer(
        lambda operation, *_: (
            sqlite3.SQLITE_DENY if operation == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK
        )
    )
    try:
        content.executescript(read_text(path))
        content.commit()
        content.set_authorizer(None)
        wrong = content.execute("PRAGMA foreign_key_check").fetchone()
    except sqlite3.Error as error:
        raise DataError(f"{path}: SQLite refuses it: {error}") from error
    if wrong is not None:
        raise DataError(f"{path}: row {wrong[1]} of {wrong[0]} refers to no row of {wrong[2]}")
    return content


def _has_rows(content: sqlite3.Connection) -> bool:
    names = content.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    counts = (f"SELECT EXISTS (SELECT 1 FROM {quoted(name)})" for (name,) in names)
    return any(content.execute(count).fetchone()[0] for count in counts)


def schema_of_entry(entry: Mapping[str, Any]) -> SqlSchema:
    names, columns = entry["table_names_original"], entry["column_names_original"]
    types, keys = entry["column_types"], entry["primary_keys"]
    tables = tuple(
        Table(
            name,
            tuple(Column(c, types[i]) for i, (t, c) in enumerate(columns) if t == number),
            tuple(columns[k][1] for k in keys if columns[k][0] == number),
        )
        for number, name in enumerate(names)
    )
    foreign = tuple(
        ForeignKey(names[columns[a][0]], columns[a][1], names[columns[b][0]], columns[b][1])
        for a, b in entry["foreign_keys"]
    )
    return SqlSchema(tables, foreign)


def schema_of_database(content: sqlite3.Connection) -> SqlSchema:
    names = content.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    tables, foreign = [], []
    for (name,) in names:
        info = content.execute(f"PRAGMA table_info({quoted(name)})").fetchall()
        columns = tuple(Column(row[1], row[2]) for row in info)
        tables.append(Table(name, columns, tuple(row[1] for row in info if row[5])))
        for row in content.execute(f"PRAGMA foreign_key_list({quoted(name)})"):
            foreign.append(ForeignKey(name, row[3], row[2], row[4]))
    return SqlSchema(tuple(tables), tuple(foreign))
