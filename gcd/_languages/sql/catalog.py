"""Tables and views of an open SQLite database that a query may name.

Views and generated columns are included like tables and columns. Objects that belong to SQLite
itself or to a module are excluded without a warning. These are `sqlite_` tables, the shadow tables
of full-text and R-tree indexes, and the hidden columns of virtual tables, which `*` excludes too.
Tables and views that cannot be queried (a view of a missing table, a virtual table whose module is
missing) are excluded with a warning that names them.
"""

from __future__ import annotations

import re
import sqlite3
import warnings
from collections.abc import Iterator, Sequence

from gcd._languages.sql.schema import Column, ForeignKey, SqlSchema, Table, fold, quote

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


def read_catalog(connection: sqlite3.Connection) -> SqlSchema:
    """Return the schema of an open database.

    Raises:
        ConstraintError: there are no tables that a query may name.
        sqlite3.Error: the database is damaged.
    """
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
