"""Readers of database schemas, from SQLite files and from Spider's `tables.json`."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import pathname2url

from gcd._errors import ConstraintError, check_kind
from gcd._languages.sql.catalog import read_catalog, table_names
from gcd._languages.sql.schema import Column, ForeignKey, SqlSchema, Table, quote

_HEADER = b"SQLite format 3\0"


def sql_schema(path: str | os.PathLike[str], name: str | None = None) -> SqlSchema:
    """Return the schema of a SQLite file, or of a database that a `tables.json` lists.

    Args:
        path: a SQLite database, which is opened read-only; or, if it ends in `.json`, a list of
            databases in Spider's format (Yu et al. 2018).
        name: the `db_id` of the database in the list; None for a SQLite file.

    Raises:
        ConstraintError: the file doesn't exist, is damaged or isn't a database; the list doesn't
            contain the database; or the database has no tables.

    Warns:
        UserWarning: tables and views that this version of SQLite cannot query, and columns with
            nonprintable names, are excluded.
    """
    file = _file(path)
    if file.suffix == ".json":
        return schema_of_entry(_entry(file, name))
    if name is not None:
        raise ConstraintError(
            f"expected no name for {file}, which is a single database, got {name!r}; omit it"
        )
    with _open(file) as connection:
        return read_catalog(connection)


def _file(path: str | os.PathLike[str]) -> Path:
    check_kind(path, (str, os.PathLike), "the path of a database", "pass a str or a Path")
    return Path(path)


def sql_values(path: str | os.PathLike[str], *, most: int = 1000) -> tuple[str, ...]:
    """Return the texts in the tables of a SQLite file, in order, for `SqlDialect.values`.

    Texts with nonprintable characters are excluded. Views are not evaluated.

    Args:
        path: the SQLite file.
        most: most different texts.

    Raises:
        ConstraintError: the file cannot be read (see `sql_schema`), or it has more than `most`
            different texts.
    """
    file = _file(path)
    values: set[str] = set()
    with _open(file) as connection:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        tables = table_names(connection)
        for table in read_catalog(connection).tables:
            for column in table.columns if table.name in tables else ():
                name = table.qualified(column.name)
                rows = connection.execute(
                    f"SELECT DISTINCT {name} FROM {quote(table.name)} WHERE typeof({name}) = "
                    f"'text' LIMIT {most + 1}"
                )
                values |= {text for (text,) in rows if text.isprintable() and "\ufffd" not in text}
                if len(values) > most:
                    raise ConstraintError(
                        f"expected at most {most} different texts in {file}, got more; raise `most`"
                        ", or pass values=None to gcd.SqlDialect for any string"
                    )
    return tuple(sorted(values))


def schema_of_entry(entry: Mapping[str, Any]) -> SqlSchema:
    """Return the schema that an entry of Spider's `tables.json` describes.

    Raises:
        ConstraintError: a field is missing or malformed.
    """
    try:
        names = list(entry["table_names_original"])
        columns = [(table, name) for table, name in entry["column_names_original"]]
        primary = {key for keys in entry["primary_keys"] for key in _as_list(keys)}
        tables = tuple(
            Table(
                name,
                tuple(
                    Column(column, str(kind))
                    for (owner, column), kind in zip(columns, entry["column_types"], strict=True)
                    if owner == number
                ),
                tuple(columns[key][1] for key in sorted(primary) if columns[key][0] == number),
            )
            for number, name in enumerate(names)
        )
        keys = tuple(
            ForeignKey(
                names[columns[key][0]],
                columns[key][1],
                names[columns[referred][0]],
                columns[referred][1],
            )
            for key, referred in entry["foreign_keys"]
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, ConstraintError):
            raise
        cause = f"{type(error).__name__}: {error}"
        raise ConstraintError(
            f"expected an entry of Spider's tables.json with valid fields, got {cause}; pass "
            "table_names_original, column_names_original, column_types, primary_keys, foreign_keys"
        ) from error
    return SqlSchema(tables, keys)


def _as_list(keys: int | list[int]) -> list[int]:
    return keys if isinstance(keys, list) else [keys]


def _entry(file: Path, name: str | None) -> Mapping[str, Any]:
    try:
        entries = json.loads(file.read_text(encoding="utf-8-sig"))
        known = {entry["db_id"]: entry for entry in entries}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConstraintError(
            f"expected a list of databases in {file}, got {type(error).__name__}: {error}; pass "
            "Spider's tables.json"
        ) from error
    if name not in known:
        some = ", ".join(sorted(known)[:5]) + (", ..." if len(known) > 5 else "")
        raise ConstraintError(
            f"expected one of the {len(known)} database names in {file} ({some}), got {name!r}; "
            "pass one of these names"
        )
    return known[name]


@contextmanager
def _open(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a SQLite file for reading; convert errors inside the block to `ConstraintError`."""
    try:
        with file.open("rb") as opened:
            header = opened.read(len(_HEADER))
    except OSError as error:
        raise ConstraintError(
            f"cannot read {file} ({error.strerror}); pass a SQLite file"
        ) from error
    if header != _HEADER:
        raise ConstraintError(
            f"expected a SQLite database in {file} (its first bytes are {_HEADER!r}), got "
            f"{header!r} at the beginning; pass a SQLite file"
        )
    try:
        with closing(
            sqlite3.connect(f"file:{pathname2url(str(file.absolute()))}?mode=ro", uri=True)
        ) as connection:
            yield connection
    except sqlite3.Error as error:
        raise ConstraintError(
            f"{file} is a damaged SQLite database ({error}); copy it again"
        ) from error
