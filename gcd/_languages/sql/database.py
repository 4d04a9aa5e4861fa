"""Database schemas: tables, their columns, and the foreign keys between them.

A language of queries needs only this part of a database: which names exist, and on which columns
tables may be joined. Names are compared as in SQLite, ignoring the case of ASCII letters. They are
written as the schema spells them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from gcd._errors import ConstraintError

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_WORDS = """
    abort action add after all alter always analyze and as asc attach autoincrement before begin
    between by cascade case cast check collate column commit conflict constraint create cross
    current current_date current_time current_timestamp database default deferrable deferred delete
    desc detach distinct do drop each else end escape except exclude exclusive exists explain fail
    filter first following for foreign from full generated glob group groups having if ignore
    immediate in index indexed initially inner insert instead intersect into is isnull join key last
    left like limit match materialized natural no not nothing notnull null nulls of offset on or
    order others outer over partition plan pragma preceding primary query raise range recursive
    references regexp reindex release rename replace restrict returning right rollback row rows
    savepoint select set table temp temporary then ties to transaction trigger unbounded union
    unique update using vacuum values view virtual when where window with without
"""
KEYWORDS = frozenset(_WORDS.split())
"""Keywords of SQLite's grammar; tables and columns with these names are quoted."""


def quote(name: str) -> str:
    """Return a name as written in a query, in double quotes if necessary."""
    if _PLAIN.fullmatch(name) and name.lower() not in KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Column:
    """Column of a table, with its name and its declared type (`""` if it has none)."""

    name: str
    type: str = ""


@dataclass(frozen=True)
class Table:
    """Table with its name, its columns, and the names of the columns of its primary key."""

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()

    def column(self, name: str) -> Column | None:
        """Return the column with the given name, ignoring case; None if there is none."""
        return next((c for c in self.columns if fold(c.name) == fold(name)), None)

    def spelling(self, name: str) -> str:
        """Return the name of a column as the table spells it.

        Raises:
            KeyError: there is no such column.
        """
        column = self.column(name)
        if column is None:
            raise KeyError(name)
        return column.name

    def qualified(self, column: str) -> str:
        """Return `table.column` as written in a query."""
        return f"{quote(self.name)}.{quote(column)}"


@dataclass(frozen=True)
class ForeignKey:
    """Foreign key: a column of one table that refers to a column of another table."""

    table: str
    column: str
    referred_table: str
    referred_column: str


@dataclass(frozen=True)
class SqlSchema:
    """Tables of a database, and the foreign keys between them.

    Raises:
        ConstraintError: there are no tables; a table has no columns; a name is malformed; two
            tables, or two columns of a table, have the same name; or a foreign key names a missing
            column.
    """

    tables: tuple[Table, ...]
    foreign_keys: tuple[ForeignKey, ...] = ()

    def __post_init__(self) -> None:
        if not self.tables:
            raise ConstraintError(
                "expected a schema with at least one table, got none; create tables in the "
                "database first"
            )
        _check_names((table.name for table in self.tables), "the names of tables")
        for table in self.tables:
            if not table.columns:
                raise ConstraintError(
                    f"expected columns in table {table.name!r}, got none; remove the table"
                )
            _check_names(
                (c.name for c in table.columns), f"the names of columns in table {table.name!r}"
            )
        for key in self.foreign_keys:
            for name, column in (
                (key.table, key.column),
                (key.referred_table, key.referred_column),
            ):
                table_of_key = self.table(name)
                if table_of_key is None or table_of_key.column(column) is None:
                    raise ConstraintError(
                        f"the foreign key {key.table}.{key.column} -> "
                        f"{key.referred_table}.{key.referred_column} names {name}.{column}, which "
                        "is not in the schema; correct the key or remove it"
                    )

    @cached_property
    def _by_name(self) -> dict[str, Table]:
        return {fold(table.name): table for table in self.tables}

    def table(self, name: str) -> Table | None:
        """Return the table with the given name, ignoring case; None if there is none."""
        return self._by_name.get(fold(name))

    def __getitem__(self, name: str) -> Table:
        """Return the table with the given name, ignoring case.

        Raises:
            KeyError: there is no such table.
        """
        return self._by_name[fold(name)]

    def create_statements(self) -> list[str]:
        """Return a CREATE TABLE statement for each table, without constraints."""
        return [
            f"CREATE TABLE {quote(table.name)} "
            f"({', '.join(f'{quote(c.name)} {c.type}'.rstrip() for c in table.columns)})"
            for table in self.tables
        ]


def fold(name: str) -> str:
    """Return a name with ASCII letters in lower case; SQLite compares names in this form."""
    return "".join(c.lower() if c.isascii() else c for c in name)


def _check_names(names: Iterable[str], what: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not name or not name.isprintable():
            raise ConstraintError(
                f"expected {what} to be non-empty and printable, got {name!r}; rename it"
            )
        if fold(name) in seen:
            raise ConstraintError(
                f"expected {what} to be different, got {seen[fold(name)]!r} and {name!r}, which "
                "SQLite considers equal; rename one of them"
            )
        seen[fold(name)] = name
