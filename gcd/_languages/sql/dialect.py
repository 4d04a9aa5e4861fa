"""Limits on the supported part of SQL: how many tables are joined, and how deep queries are nested.

Every option costs states, because an automaton's only memory is its state. From the FROM clause to
the end of a query, the state contains the joined tables. Before a set operator, it also contains
the number of selected columns. `SqlDialect.narrower` lists smaller and smaller dialects, and
`gcd.widest_dialect` finds the first one that fits into a number of states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gcd._errors import ConstraintError, check_count


@dataclass(frozen=True)
class SqlDialect:
    """Limits on the SQL statements of a language.

    Attributes:
        tables: maximum number of tables that one SELECT joins.
        subquery_depth: greatest nesting depth of sub-queries; 0 for no sub-queries.
        subquery_tables: maximum number of tables that a sub-query joins.
        compound_columns: maximum number of columns on either side of UNION, INTERSECT and EXCEPT;
            0 for no set operators.
        compound_tables: maximum number of tables that either side of a set operator joins.
        grouped_parts: whether sub-queries and the sides of set operators may have GROUP BY.
        any_join: whether tables may be joined on any two of their columns, rather than only along
            foreign keys.
        values: the strings with which columns are compared; None for any printable ASCII string.

    Raises:
        ConstraintError: a number is negative, or `tables` is 0; `values` is empty, or contains
            something other than strings.
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
            raise ConstraintError(
                "expected at least one string in values, got none; pass None for any string"
            )
        for value in self.values or ():
            if not isinstance(value, str) or "\0" in value:
                raise ConstraintError(
                    f"expected values to be strings without zero bytes, got {value!r}; remove it "
                    "or its zero bytes"
                )

    def narrower(self) -> Iterator[SqlDialect]:
        """Yield this dialect, then dialects with fewer and fewer features.

        Features are removed in a fixed order, rare ones first.
        """
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
