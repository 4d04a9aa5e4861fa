"""Readers of database schemas, from SQLite files and from Spider's `tables.json`.

Views and generated columns are included like tables and columns. Objects that belong to SQLite
itself or to a module are excluded without a warning. These are `sqlite_` tables, the shadow tables
of full-text and R-tree indexes, and the hidden columns of virtual tables, which `*` excludes too.
Tables and views that cannot be queried (a view of a missing table, a virtual table whose module is
missing) are excluded with a warning that names them.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import pathname2url

from gcd._errors import ConstraintError, check_kind
from gcd._languages.sql.database import Column, ForeignKey, SqlSchema, Table, fold, quote

_HEADER = b"SQLite format 3\0"
# PRAGMA table_xinfo also lists generated columns. SQLite has had it since 3.26, and generated
# columns since 3.31.
_COLUMNS = "table_xinfo" if sqlite3.sqlite_version_info >= (3, 26) else "table_info"
_HAS_TABLE_LIST = sqlite3.sqlite_version_info >= (3, 37)
_VIRTUAL = 1  # `hidden` of a virtual table's hidden columns; 2 and 3: generated columns
_SPACE = r"(?:\s|--[^\n]*\n|/\*.*?\*/)"
_NAME = r"""("(?:[^"]|"")*"|'(?:[^']|'')*'|`(?:[^`]|``)*`|\[[^]]*\]|[^\s"'`\[(]+)"""
# Matches the statement that SQLite stores for a virtual table, with the name of its module.
_USING = re.compile(
    rf"CREATE VIRTUAL TABLE {_SPACE}*{_NAME}{_SPACE}*USING{_SPACE}*{_NAME}", re.I | re.S
)
_ERROR = 1  # SQLITE_ERROR, in the lowest byte of an error's code, means an error in the statement
_SHADOWS = {
    "fts3": ("content", "segments", "segdir", "docsize", "stat"),
    "fts4": ("content", "segments", "segdir", "docsize", "stat"),
    "fts5": ("data", "idx", "content", "docsize", "config"),
    "rtree": ("node", "rowid", "parent"),
    "rtree_i32": ("node", "rowid", "parent"),
    "geopoly": ("node", "rowid", "parent"),
}
"""For each module, the suffixes of its shadow tables: t_content and so on for a table t."""


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
        most: maximum number of distinct texts.

    Raises:
        ConstraintError: the file cannot be read (see `sql_schema`), or it has more than `most`
            distinct texts.
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
    """Return the schema that an entry of Spider's `tables.json` describes."""
    try:
        names = list(entry["table_names_original"])
        columns = [(table, name) for table, name in entry["column_names_original"]]
        primary: set[int] = set()
        for keys in entry["primary_keys"]:
            primary.update(keys if isinstance(keys, list) else [keys])
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


def read_catalog(connection: sqlite3.Connection) -> SqlSchema:
    """Return the schema of an open database."""
    shadows = _shadow_names(connection)
    found = connection.execute(
        "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE "
        "'sqlite\\_%' ESCAPE '\\' ORDER BY rowid"
    ).fetchall()
    tables = []
    for name, kind in found:
        table = None if fold(name) in shadows else _table(connection, name, kind)
        if table is not None:
            tables.append(table)
    return SqlSchema(tuple(tables), tuple(_foreign_keys(connection, tables)))


def table_names(connection: sqlite3.Connection) -> set[str]:
    """Return the names of the tables of an open database, without views."""
    return {n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _shadow_names(connection: sqlite3.Connection) -> set[str]:
    """Return the names of shadow tables in lower case.

    PRAGMA table_list marks shadow tables, but only for modules that this process has loaded. So the
    names are also derived from the statements of virtual tables.
    """
    names: set[str] = set()
    for table, sql in connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND rootpage = 0"
    ):
        written = _USING.match(sql)
        module = fold(written[2].strip("\"'`[]")) if written else ""
        names |= {fold(f"{table}_{suffix}") for suffix in _SHADOWS.get(module, ())}
    if _HAS_TABLE_LIST:
        rows = connection.execute(
            "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'shadow'"
        )
        names |= {fold(name) for (name,) in rows}
    return names


def _table(connection: sqlite3.Connection, name: str, kind: str) -> Table | None:
    """Return a table or view; or issue a warning and return None if it cannot be queried."""
    try:
        rows = connection.execute(
            f"SELECT * FROM pragma_{_COLUMNS}(?) ORDER BY cid", (name,)
        ).fetchall()
        connection.execute(f"EXPLAIN SELECT * FROM {quote(name)}").fetchall()
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", _ERROR) & 255 != _ERROR:
            raise  # the error is not in the statement: the file cannot be read
        _warn(f"SQLite cannot query the {kind} {name!r} ({error}), so it is excluded")
        return None
    visible = [row for row in rows if row[6:] != (_VIRTUAL,)]
    columns = tuple(
        Column(row[1], row[2] or "") for row in visible if row[1] and row[1].isprintable()
    )
    if len(columns) < len(visible):
        unnamed = [row[1] for row in visible if not (row[1] and row[1].isprintable())]
        _warn(
            f"the {kind} {name!r} has columns without a printable name, {unnamed}, which are "
            "excluded; name them with AS"
        )
    primary = sorted((row[5], row[1]) for row in visible if row[5])
    return Table(name, columns, tuple(column for _, column in primary)) if columns else None


def _foreign_keys(connection: sqlite3.Connection, tables: Sequence[Table]) -> Iterator[ForeignKey]:
    known = {fold(table.name): table for table in tables}
    for table in tables:
        rows = connection.execute(
            'SELECT "from", "table", "to", seq FROM pragma_foreign_key_list(?) ORDER BY id, seq',
            (table.name,),
        )
        for column, referred, target, index in rows:
            other = known.get(fold(referred))
            if other is None:  # SQLite permits foreign keys to a missing table
                continue
            if target is None and index < len(other.primary_key):
                target = other.primary_key[index]
            if target is not None and other.column(target) and table.column(column):
                yield ForeignKey(table.name, column, other.name, target)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=5)
