"""Joins: the tables that a query may join, and the columns on which it joins them.

A query lists its tables one after the other. Each table but the first is joined on one of its
columns and one column of a table before it. Draw a graph of all tables with an edge between two
tables that may be joined. The tables of a query are then a connected set of this graph.
"""

from __future__ import annotations

from collections.abc import Iterator

from gcd._automata.automaton import Automaton
from gcd._automata.limits import max_states
from gcd._errors import StateLimitError
from gcd._languages.literal import choice, literal
from gcd._languages.sql import words
from gcd._languages.sql.schema import SqlSchema

TableSet = frozenset[str]  # names of tables

_STATES_PER_SET = 32  # fewest states for a set of tables


class Joins:
    """Possible joins between the tables of a database schema.

    Args:
        schema: tables and foreign keys.
        any_columns: whether two tables may be joined on any of their columns; if not, only along
            foreign keys.
    """

    def __init__(self, schema: SqlSchema, *, any_columns: bool) -> None:
        self._schema = schema
        self._any_columns = any_columns
        names = [table.name for table in schema.tables]
        self._on: dict[str, dict[str, list[str]]] = {name: {} for name in names}
        for old, x, new, y in self._references():
            written = f"{schema[old].qualified(x)} = {schema[new].qualified(y)}"
            self._on[new].setdefault(old, []).append(written)
        self._conditions: dict[tuple[TableSet, str], Automaton] = {}
        self._neighbors: dict[str, set[str]] = {name: set() for name in names}
        for name in names:
            self._neighbors[name] = (set(names) if any_columns else set(self._on[name])) - {name}

    def table_sets(self, most: int) -> set[TableSet]:
        """Return the sets of at most `most` tables that a query may join.

        Raises:
            StateLimitError: an automaton for so many sets would have too many states.
        """
        found: set[TableSet] = set()
        latest = {frozenset([name]) for name in self._neighbors}
        while latest:
            found |= latest
            if len(found) * _STATES_PER_SET > max_states():
                raise StateLimitError(
                    max_states(), what=f"a query over any of {len(found)} sets of tables"
                )
            latest = {
                tables | {name}
                for tables in latest
                if len(tables) < most
                for name in self.neighbors(tables)
            }
        return found

    def condition(self, listed: TableSet, table: str) -> Automaton:
        """Return the conditions after ON that join `table` to one of the tables in `listed`.

        The column of the listed table comes first. The language is empty if there are no columns to
        join on.
        """
        key = listed & self._neighbors[table], table
        if key not in self._conditions:
            if self._any_columns:
                older = words.columns([self._schema[name] for name in sorted(listed)])
                newer = words.columns([self._schema[table]])
                found = Automaton.concatenate([older, literal(" = "), newer])
            else:
                written = [text for old in key[0] for text in self._on[table][old]]
                found = choice(written) if written else Automaton.empty()
            self._conditions[key] = found
        return self._conditions[key]

    def neighbors(self, tables: TableSet) -> set[str]:
        """Return the tables that may be joined with one of the given tables."""
        return {other for table in tables for other in self._neighbors[table]} - tables

    def _references(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the foreign keys in both directions, with names as the schema spells them."""
        for key in self._schema.foreign_keys:
            here = self._schema[key.table]
            there = self._schema[key.referred_table]
            mine = here.spelling(key.column)
            theirs = there.spelling(key.referred_column)
            yield here.name, mine, there.name, theirs
            yield there.name, theirs, here.name, mine
