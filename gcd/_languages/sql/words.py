"""Small parts of queries as languages: names, literals, operators, and conditions.

A condition consists of a column, an operator, and a right-hand side. Literals are decimal numbers,
and strings in single quotes, in which quotes are doubled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gcd._automata.automaton import Automaton
from gcd._languages.literal import choice, literal
from gcd._languages.sql.schema import Table
from gcd._languages.text.regex import regex

COMPARISONS = (" = ", " != ", " < ", " <= ", " > ", " >= ")
BEFORE_SUBQUERY = (*(f"{comparison}(" for comparison in COMPARISONS), " IN (", " NOT IN (")
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
    """Return the numbers of rows from 1 to 999,999,999, for LIMIT."""
    return regex(r"[1-9][0-9]{0,8}")


def any_string() -> Automaton:
    """Return literals of all strings of printable ASCII characters."""
    return regex(r"'([ -&(-~]|'')*'")


def string_of(values: Iterable[str]) -> Automaton:
    """Return the literals of the given strings."""
    return choice(["'" + value.replace("'", "''") + "'" for value in values])


def columns(tables: Sequence[Table]) -> Automaton:
    """Return the columns of the given tables, as `table.column`."""
    return choice([t.qualified(column.name) for t in tables for column in t.columns])


def compare(string: Automaton) -> Automaton:
    """Return the operators and literals that may follow a column, without sub-queries.

    `string` contains the literals with which a column may be compared. Patterns of LIKE may be any
    string.
    """
    value = string | number()
    optional_not = choice([" ", " NOT "])
    alternatives = [
        choice(COMPARISONS) + value,
        Automaton.concatenate([optional_not, literal("LIKE "), any_string()]),
        Automaton.concatenate(
            [optional_not, literal("IN ("), _separate_by_commas(value), literal(")")]
        ),
        Automaton.concatenate([optional_not, literal("BETWEEN "), value, literal(" AND "), value]),
        choice([" IS NULL", " IS NOT NULL"]),
    ]
    return Automaton.union(alternatives)


def _separate_by_commas(item: Automaton) -> Automaton:
    return item + (literal(", ") + item).star()
