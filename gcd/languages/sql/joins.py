"""This module says which tables a query may join, and on what.

A query lists its tables one after the other; each but the first is joined on a column of its own
and one of a table before it. So the tables of a query are a connected set of the graph that has an
edge wherever two tables may be joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from gcd.automata.automaton import Automaton
from gcd.automata.limits import max_states
from gcd.errors import StateLimitError
from gcd.languages.literal import choice, literal
from gcd.languages.sql import words
from gcd.languages.sql.schema import SqlSchema

TableSet = frozenset[str]

_STATES_PER_SET = 32  # at the least: a set has its own words from WHERE to LIMIT


class Joins:
    """The joins of a schema.

    Args:
        schema: tables and foreign keys.
        any_columns: whether two tables may be joined on any of their columns; if not, on foreign
            keys.
    """

    def __init__(self, schema: SqlSchema, *, any_columns: bool) -> None:
        self._schema = schema
        self._any_columns = any_columns
        names = [table.name for table in schema.tables]
        self._neighbours: dict[str, set[str]] = {name: set() for name in names}
        pairs = combinations(names, 2) if any_columns else self._referring()
        for left, right in pairs:
            self._neighbours[left].add(right)
            self._neighbours[right].add(left)

    def table_sets(self, most: int) -> set[TableSet]:
        """Return the sets of at most so many tables that a query may join.

        Raises:
            StateLimitError: there are so many that no automaton within the limit has them all.
        """
        found: set[TableSet] = set()
        latest = {frozenset([name]) for name in self._neighbours}
        while latest:
            found |= latest
            if len(found) * _STATES_PER_SET > max_states():
                raise StateLimitError(max_states(), f"a choice of {len(found)} sets of tables")
            latest = {
                tables | {name}
                for tables in latest
                if len(tables) < most
                for table in tables
                for name in self._neighbours[table] - tables
            }
        return found

    def condition(self, listed: TableSet, table: str) -> Automaton:
        """Return what may stand after ON where `table` joins those listed, the older column first.

        The language is empty if there is nothing to join on.
        """
        if self._any_columns:
            older = [self._schema[name] for name in sorted(listed)]
            newer = words.columns([self._schema[table]])
            return Automaton.concatenate([words.columns(older), literal(" = "), newer])
        written = [
            f"{self._schema[old].qualified(x)} = {self._schema[table].qualified(y)}"
            for old, x, new, y in self._references()
            if old in listed and new == table
        ]
        return choice(written) if written else Automaton.empty()

    def _references(self) -> Iterator[tuple[str, str, str, str]]:
        """Foreign keys in both directions, names as the schema's tables spell them."""
        for key in self._schema.foreign_keys:
            here = self._schema[key.table]
            there = self._schema[key.referred_table]
            mine = here.spelling(key.column)
            theirs = there.spelling(key.referred_column)
            yield here.name, mine, there.name, theirs
            yield there.name, theirs, here.name, mine

    def _referring(self) -> Iterator[tuple[str, str]]:
        return ((old, new) for old, _, new, _ in self._references() if old != new)
