"""This module has the small parts of queries as languages: names, literals, operators, conditions.

A condition is a column, an operator, and what the operator compares with. Literals are strings in
single quotes, with quotes inside doubled, and decimal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gcd.automata.automaton import Automaton
from gcd.languages.literal import choice, literal
from gcd.languages.sql.schema import Table
from gcd.languages.text.regex import regex

COMPARISONS = (" = ", " != ", " < ", " <= ", " > ", " >= ")
SET_OPERATORS = (" UNION ", " UNION ALL ", " INTERSECT ", " EXCEPT ")
CONNECTIVES = (" AND ", " OR ")
DIRECTIONS = ("", " ASC", " DESC")
AGGREGATES = tuple(
    f"{name}({distinct}"
    for name in ("COUNT", "SUM", "AVG", "MIN", "MAX")
    for distinct in ("", "DISTINCT ")
)


def number() -> Automaton:
    """Return decimal numbers without leading zeros, such as `-3` and `0.25`."""
    return regex(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")


def limit() -> Automaton:
    """Return positive numbers of rows, below a milliard: larger ones are none to SQLite."""
    return regex(r"[1-9][0-9]{0,8}")


def any_string() -> Automaton:
    """Return strings of printable ASCII characters."""
    return regex(r"'([ -&(-~]|'')*'")


def string_of(values: Iterable[str]) -> Automaton:
    """Return the string literals that stand for these values."""
    return choice(["'" + value.replace("'", "''") + "'" for value in values])


def columns(tables: Sequence[Table]) -> Automaton:
    """Return the columns of the tables, qualified."""
    return choice([t.qualified(column.name) for t in tables for column in t.columns])


def items(tables: Sequence[Table]) -> Automaton:
    """Return what a SELECT list has of the tables: columns, and aggregates of columns."""
    return columns(tables) | _of_columns(tables)


def aggregates(tables: Sequence[Table]) -> Automaton:
    """Return aggregates of a column of the tables, and the number of rows."""
    return _of_columns(tables) | literal("COUNT(*)")


def _of_columns(tables: Sequence[Table]) -> Automaton:
    return Automaton.concatenate([choice(AGGREGATES), columns(tables), literal(")")])


def conditions(tables: Sequence[Table], string: Automaton) -> Automaton:
    """Return conditions on one column of the tables and on literals, without sub-queries.

    Args:
        tables: the tables of the query.
        string: the strings that a column may be compared with; patterns of LIKE are any strings.
    """
    value = string | number()
    optional_not = choice([" ", " NOT "])
    alternatives = [
        choice(COMPARISONS) + value,
        Automaton.concatenate([optional_not, literal("LIKE "), any_string()]),
        Automaton.concatenate([optional_not, literal("IN ("), _listed(value), literal(")")]),
        Automaton.concatenate([optional_not, literal("BETWEEN "), value, literal(" AND "), value]),
        choice([" IS NULL", " IS NOT NULL"]),
    ]
    return Automaton.concatenate(
        [literal("NOT ").optional(), columns(tables), Automaton.union(alternatives)]
    )


def group_conditions(tables: Sequence[Table]) -> Automaton:
    """Return conditions on one aggregate and a number, such as `COUNT(*) > 1`."""
    return Automaton.concatenate([aggregates(tables), choice(COMPARISONS), number()])


def before_subquery(tables: Sequence[Table]) -> Automaton:
    """Return beginnings of a condition that goes on with a sub-query of one column."""
    operators = [*(f"{comparison}(" for comparison in COMPARISONS), " IN (", " NOT IN ("]
    return Automaton.concatenate([literal("NOT ").optional(), columns(tables), choice(operators)])


def _listed(item: Automaton) -> Automaton:
    return item + (literal(", ") + item).star()
