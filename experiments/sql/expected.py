"""What a gold query gives on one database is compared with what an answer gives there.

Without ORDER BY a result is a multiset of rows. Under a top-level ORDER BY it is a sequence, but
only as far as the query says so: rows that agree in everything they are ordered by may come in any
order. So a result is a sequence of multisets, one for each run of such rows; without ORDER BY it is
one multiset.

Some gold queries leave their result to chance: those that cut rows off by LIMIT between two that
agree in what they are ordered by. No answer can be judged by them on that database.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from experiments.sql.sandbox import QueryError, Rows, Sandbox, Value, comparable

Row = tuple[Value, ...]


@dataclass(frozen=True)
class Expected:
    """The result of a gold query.

    Attributes:
        parts: multisets of rows, in this order.
    """

    parts: tuple[Counter[Row], ...]

    @property
    def size(self) -> int:
        """The number of its rows."""
        return sum(part.total() for part in self.parts)

    @property
    def says_nothing(self) -> bool:
        """Whether there is no row with a value in it, as of nothing there is no maximum either."""
        return all(value is None for part in self.parts for row in part for value in row)

    def equals(self, rows: Rows) -> bool:
        """Tell whether the rows of an answer are these."""
        if len(rows) != self.size:
            return False
        start = 0
        for part in self.parts:
            end = start + part.total()
            if Counter(map(comparable, rows[start:end])) != part:
                return False
            start = end
        return True


def expected_of(query: str, database: Sandbox) -> Expected | None:
    """Run a gold query; None if LIMIT leaves its result to chance on this database.

    Raises:
        QueryError: SQLite does not compile it, or it takes too long.
    """
    rows = [comparable(row) for row in database.rows(query)]
    try:
        tree: Any = sqlglot.parse_one(query, read="sqlite")
    except SqlglotError as error:
        raise QueryError(f"it cannot be read: {error}") from error
    if any(_cuts_a_tie(select, database) for select in tree.find_all(exp.Query)):
        return None
    if not tree.args.get("order"):
        return Expected((Counter(rows),))
    keys = _keys(tree, database)
    if keys is None or len(keys) != len(rows):
        return Expected(tuple(Counter([row]) for row in rows))
    runs = groupby(zip(keys, rows, strict=True), key=lambda pair: pair[0])
    return Expected(tuple(Counter(row for _, row in run) for _, run in runs))


def _cuts_a_tie(query: exp.Query, database: Sandbox) -> bool:
    """Whether LIMIT or OFFSET separates different rows that agree in what they are ordered by."""
    ends = _ends(query)
    if ends is None:
        return False
    whole: Any = query.copy()
    whole.set("limit", None)
    whole.set("offset", None)
    try:
        rows = [comparable(row) for row in database.rows(whole.sql("sqlite"))]
    except QueryError:  # a sub-query that needs the query around it: nothing is known of it
        return False
    keys = _keys(whole, database) if query.args.get("order") else [()] * len(rows)
    if keys is None or len(keys) != len(rows):
        return False
    for end in ends:
        if 0 < end < len(rows) and keys[end - 1] == keys[end]:
            alike = {row for key, row in zip(keys, rows, strict=True) if key == keys[end]}
            if len(alike) > 1:
                return True
    return False


def _ends(query: exp.Query) -> tuple[int, int] | None:
    """Where OFFSET and LIMIT cut; None without LIMIT, or with one that is no number."""
    limit, offset = query.args.get("limit"), query.args.get("offset")
    try:
        first = int(offset.expression.this) if offset else 0
        return (first, first + int(limit.expression.this)) if limit else None
    except (AttributeError, TypeError, ValueError):
        return None


def _keys(query: exp.Query, database: Sandbox) -> list[Row] | None:
    """What each row is ordered by, in the order of the rows; None where that cannot be asked."""
    if not isinstance(query, exp.Select) or query.args.get("distinct"):
        return None
    asked: Any = query.copy()
    try:
        terms = [_term(ordered.this, query) for ordered in query.args["order"].expressions]
        asked.set("expressions", terms)
        return [comparable(row) for row in database.rows(asked.sql("sqlite"))]
    except (QueryError, IndexError):  # say, ordered by the name of a column of the result
        return None


def _term(term: Any, query: exp.Select) -> Any:
    """What a term of ORDER BY stands for: a whole number is the number of a column, from one."""
    if isinstance(term, exp.Literal) and not term.is_string:
        return query.expressions[int(term.this) - 1].unalias().copy()
    return term.copy()
