"""Fillings: databases with random rows on which gold queries have informative results.

Public data sets often publish only schemas. Queries can then be compared on random rows, and
queries that agree on several fillings are very likely equivalent (Zhong, Yu, Klein, "Semantic
Evaluation for Text-to-SQL with Distilled Test Suites", arXiv 2010.02840). With uniformly random
rows most results would be empty, so the rows are adapted:

* types: numbers in numeric columns, otherwise words or dates;
* foreign keys: values of the referenced column, some frequent and some never;
* gold queries: half of the rows satisfy all conditions of one gold query, and other values are
  often constants of the queries or numbers close to them.

Later fillings are larger. Everything is a function of the schema, the queries and the seed.
"""

from __future__ import annotations

import random
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from experiments.sql.sandbox import Value
from gcd import Column, SqlSchema, Table
from gcd._languages.sql.schema import fold, quote

_NUMERIC = ("num", "int", "real", "float", "double", "dec", "bool")
_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven")
_WISHED = 0.5  # share of rows that are made for a query
_CONSTANT = 0.5  # share of constants of queries among the other values
_CHILDLESS = 0.25  # share of rows that no foreign key references
Wishes = dict[str, Value]
ColumnName = tuple[str, str]


@dataclass(frozen=True)
class Constants:
    """Constants that gold queries compare columns with.

    Columns are identified by their lowercase names only, as constants of a column with the same
    name in another table do no harm.

    Attributes:
        wishes: for each query, values of columns that satisfy its conditions.
        of_column: all constants of a column.
        summed: columns with sums or averages, which must hold numbers.
    """

    wishes: tuple[Wishes, ...] = ()
    of_column: Mapping[str, list[Value]] = field(default_factory=dict)
    summed: frozenset[str] = frozenset()


def constants_of(queries: Sequence[str]) -> Constants:
    """Collect the constants of queries; queries that can't be parsed are ignored."""
    wishes: list[Wishes] = []
    of_column: dict[str, list[Value]] = defaultdict(list)
    summed: set[str] = set()
    for query in queries:
        try:
            tree = sqlglot.parse_one(query, read="sqlite")
        except SqlglotError:
            continue
        wished: Wishes = {}
        for condition in tree.find_all(exp.Predicate):
            for name, value, wish in _read_condition(condition):
                of_column[name].append(value)
                wished[name] = wish
        if wished:
            wishes.append(wished)
        sums = (node.this for node in tree.find_all(exp.Sum, exp.Avg))
        summed |= {fold(node.name) for node in sums if isinstance(node, exp.Column)}
    return Constants(tuple(wishes), dict(of_column), frozenset(summed))


def _read_condition(condition: Any) -> list[tuple[str, Value, Value]]:
    """Return a condition's column and constants, and a satisfying value for each constant."""
    column = condition.this
    if not isinstance(column, exp.Column):
        return []
    name = fold(column.name)
    if isinstance(condition, exp.Between):
        low, high = _literal(condition.args["low"]), _literal(condition.args["high"])
        return [(name, low, low), (name, high, low)]
    if isinstance(condition, exp.In):
        found = [_literal(option) for option in condition.expressions]
        return [(name, value, value) for value in found if value is not None]
    value = _literal(condition.expression)
    if value is None:
        return []
    if isinstance(condition, exp.Like):
        text = str(value).replace("%", "").replace("_", "x")
        return [(name, text, text)]
    steps: dict[type, int] = {exp.GT: 1, exp.LT: -1, exp.NEQ: 1}
    step = steps.get(type(condition), 0)
    if isinstance(value, str):
        return [(name, value, f"{value} {_WORDS[0]}" if step else value)]
    assert isinstance(value, int | float)
    return [(name, value, value + step)]


def _literal(node: Any) -> Value:
    """Return the value of a constant, or None; double quotes are read as in SQLite."""
    if isinstance(node, exp.Neg):
        inner = _literal(node.this)
        return -inner if isinstance(inner, int | float) else None
    if isinstance(node, exp.Column) and not node.table and node.this.args.get("quoted"):
        return str(node.name)
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return str(node.this)
    return float(node.this) if "." in node.this or "e" in node.this.lower() else int(node.this)


def fill(schema: SqlSchema, constants: Constants, number: int, seed: int) -> sqlite3.Connection:
    """Make a filling in memory.

    Args:
        schema: schema of the database.
        constants: constants of its gold queries.
        number: number of the filling, from zero; later ones have more rows.
        seed: seed of the random numbers.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("BEGIN")
    filler = _Filler(schema, constants, number, random.Random(f"{seed} {number}"))
    for table, statement in zip(schema.tables, schema.create_statements(), strict=True):
        connection.execute(statement)
        marks = ", ".join("?" * len(table.columns))
        insert = f"INSERT INTO {quote(table.name)} VALUES ({marks})"
        connection.executemany(insert, filler.rows(table))
    connection.execute("COMMIT")
    return connection


class _Filler:
    """Shared state of the rows of one filling: keys, and how often they are referenced."""

    def __init__(
        self, schema: SqlSchema, constants: Constants, number: int, rng: random.Random
    ) -> None:
        self._rng = rng
        self._constants = constants
        self._few, self._many = 6 * (number + 1), 20 * (number + 1) ** 2
        self._family = _families(schema)
        self._referred = {
            (fold(key.referred_table), fold(key.referred_column)) for key in schema.foreign_keys
        }
        # Columns linked by foreign keys share a pool; referenced columns have each value once.
        self._pools: dict[ColumnName, list[Value]] = {}
        self._weights = self._popularity()
        by_name = {(fold(t.name), fold(c.name)): c for t in schema.tables for c in t.columns}
        for root in dict.fromkeys(self._family.values()):
            members = [full_name for full_name, its in self._family.items() if its == root]
            known = [v for _, name in members for v in self._find_constants(by_name[root], name)]
            self._pools[root] = self._distinct(by_name[root], known, self._few)

    def rows(self, table: Table) -> list[tuple[Value, ...]]:
        """Make the rows of a table."""
        names = {c.name: (fold(table.name), fold(c.name)) for c in table.columns}
        has_children = any(full_name in self._referred for full_name in names.values())
        count = self._few if has_children else self._many
        columns = []
        wishes = self._constants.wishes
        own = {fold(c.name) for c in table.columns}
        useful = [wish for wish in wishes if own & wish.keys()]
        chosen = [
            self._rng.choice(useful) if useful and self._rng.random() < _WISHED else {}
            for _ in range(count)
        ]
        for column in table.columns:
            full_name = names[column.name]
            root = self._family.get(full_name)
            if root is not None and full_name in self._referred:
                columns.append(self._rng.sample(self._pools[root], count))
            elif root is not None:
                # Also for primary keys, as public files often name only the first column of a
                # composite key.
                columns.append([self._reference(root, full_name[1], wish) for wish in chosen])
            elif table.primary_key == (column.name,):
                columns.append(self._distinct(column, self._find_constants(column), count))
            else:
                columns.append([self._value(column, wish) for wish in chosen])
        return list(zip(*columns, strict=True))

    def _popularity(self) -> list[float]:
        """Return weights for drawing referenced keys: few are frequent, some are never drawn."""
        weights = [1 / (rank + 1) for rank in range(self._few)]
        for rank in range(1, max(2, int(self._few * _CHILDLESS) + 1)):
            weights[-rank] = 0.0
        return weights

    def _reference(self, root: ColumnName, name: str, wish: Wishes) -> Value:
        """Return a value of the referenced column: the one that a query needs, or a random one."""
        if wish.get(name) in self._pools[root]:
            return wish[name]
        return self._rng.choices(self._pools[root], self._weights)[0]

    def _distinct(self, column: Column, known: Sequence[Value], count: int) -> list[Value]:
        """Return distinct values of a key, including constants of queries."""
        first = list(dict.fromkeys(known))[: count // 2]
        if _is_number(column):
            rest: list[Value] = [n for n in range(1, 2 * count + 1) if n not in first]
        else:
            rest = [f"{_WORDS[n % len(_WORDS)]} {n}" for n in range(count)]
        values = [*first, *rest][:count]
        self._rng.shuffle(values)
        return values

    def _find_constants(self, column: Column, name: str | None = None) -> list[Value]:
        """Return the constants that fit a column's type, of columns called `name`.

        By default, `name` is the column's name.
        """
        values = self._constants.of_column.get(name or fold(column.name), [])
        if _is_number(column):
            return [value for value in values if isinstance(value, int | float)]
        return [str(value) for value in values if value is not None]

    def _value(self, column: Column, wish: Wishes) -> Value:
        wished = wish.get(fold(column.name))
        if wished is not None:
            return wished
        known = self._find_constants(column)
        if known and self._rng.random() < _CONSTANT:
            return self._rng.choice(known)
        numbers = [float(str(v)) for v in known if isinstance(v, int | float) or _is_numeral(v)]
        if _is_number(column) or numbers or fold(column.name) in self._constants.summed:
            drawn = self._number(column, numbers)
            return drawn if _is_number(column) else str(drawn)
        if "date" in column.name.lower() or "time" in column.type.lower():
            rng = self._rng
            return f"{rng.randint(2000, 2023)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        return self._rng.choice(_WORDS)

    def _number(self, column: Column, known: Sequence[float]) -> int:
        if known:
            spread = max(5, (max(known) - min(known)) / 2, max(map(abs, known)) / 10)
            low, high = min(known) - spread, max(known) + spread
            return self._rng.randint(int(max(low, 0) if min(known) >= 0 else low), int(high))
        if "year" in column.name.lower():
            return self._rng.randint(1980, 2023)
        return self._rng.randint(1, 100)


def _families(schema: SqlSchema) -> dict[ColumnName, ColumnName]:
    """Map each column with foreign keys to a representative of the columns that it is linked to."""
    root: dict[ColumnName, ColumnName] = {}

    def find(full_name: ColumnName) -> ColumnName:
        while root.setdefault(full_name, full_name) != full_name:
            full_name = root[full_name]
        return full_name

    for key in schema.foreign_keys:
        child = (fold(key.table), fold(key.column))
        root[find(child)] = find((fold(key.referred_table), fold(key.referred_column)))
    return {full_name: find(full_name) for full_name in root}


def _is_number(column: Column) -> bool:
    return any(kind in column.type.lower() for kind in _NUMERIC)


def _is_numeral(value: Value) -> bool:
    return isinstance(value, str) and value.replace(".", "", 1).isdigit()
