"""A dialect says how large a part of SQL a language has: how much is joined, nested and combined.

Every option costs states, because an automaton has no memory but its state: from the FROM clause to
the end it remembers which tables are joined, before a set operator how many columns were selected
too. `SqlDialect.widest` finds the largest dialect of a list that fits into a number of states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gcd.errors import ConstraintError, check_count


@dataclass(frozen=True)
class SqlDialect:
    """How much of SQL a language has.

    Attributes:
        tables: most tables that one SELECT joins.
        subquery_depth: how deep sub-queries are nested, 0 for none.
        subquery_tables: most tables that a sub-query joins.
        compound_columns: most columns on either side of UNION, INTERSECT, EXCEPT; 0 for no set
            operators.
        compound_tables: most tables that either side of a set operator joins.
        grouped_parts: whether sub-queries and the sides of set operators may have GROUP BY.
        any_join: whether tables may be joined on any two of their columns, and not along foreign
            keys alone.
        values: the strings that columns are compared with; None for any printable ASCII.

    Raises:
        ConstraintError: a number is negative, or `tables` is 0; `values` is empty, or holds
            something that is no text.
    """

    tables: int = 3
    subquery_depth: int = 1
    subquery_tables: int = 3
    compound_columns: int = 2
    compound_tables: int = 3
    grouped_parts: bool = True
    any_join: bool = False
    values: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        lowest = {
            "tables": 1,
            "subquery_depth": 0,
            "subquery_tables": 1,
            "compound_columns": 0,
            "compound_tables": 1,
        }
        for name, least in lowest.items():
            check_count(name, getattr(self, name), least)
        if self.values is not None and not self.values:
            raise ConstraintError("values are empty; give None for any string, or some values")
        for value in self.values or ():
            if not isinstance(value, str) or "\0" in value:
                raise ConstraintError(f"a value must be a text without zero bytes, got {value!r}")

    def narrower(self) -> Iterator[SqlDialect]:
        """Yield this dialect, then ones with less and less of what is rare in practice."""
        dialect = self
        yield dialect
        for limits in (
            {"any_join": False},
            {"compound_columns": 1},
            {"subquery_tables": 2, "compound_tables": 2},
            {"subquery_tables": 1},
            {"grouped_parts": False},
            {"compound_tables": 1},
            {"compound_columns": 0},
            {"tables": 2},
            {"subquery_depth": 0},
            {"tables": 1},
        ):
            smaller = {name: min(getattr(dialect, name), limit) for name, limit in limits.items()}
            reduced = replace(dialect, **smaller)
            if reduced != dialect:
                dialect = reduced
                yield dialect
