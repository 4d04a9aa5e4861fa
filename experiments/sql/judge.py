"""Judge of answers by SQLite: whether they compile, and whether they give the gold result.

An answer is correct if its result equals the gold query's (execution accuracy). If a gold query
fails or has an empty or undetermined result, the question is counted and excluded from execution
accuracy only. The judge doesn't use automata.

Without ORDER BY, a result is a multiset of rows. With a top-level ORDER BY it is a sequence, but
rows that agree in all ordering terms can be in any order. Such rows form a multiset, so a result is
a sequence of multisets. Without ORDER BY the sequence has a single multiset. The result of some
gold queries is undetermined: LIMIT cuts between two rows that agree in the ordering terms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from experiments.sql.databases import (
    Database,
    QueryError,
    Question,
    Rows,
    Sandbox,
    Value,
    comparable,
)


class Judge:
    """Judge of answers to these questions.

    Args:
        databases: databases by name.
        questions: the questions, whose gold queries are run at once.

    Attributes:
        unjudged: reasons why questions can't be judged, by id.
    """

    def __init__(self, databases: Mapping[str, Database], questions: Sequence[Question]) -> None:
        self._databases = databases
        self._expected: dict[str, Expected] = {}
        self.unjudged: dict[str, str] = {}
        for question in questions:
            try:
                self._expected[question.id] = self._measure(question)
            except QueryError as error:
                self.unjudged[question.id] = str(error)
        # Particles and methods repeat the same answers.
        self.prepares = lru_cache(maxsize=4096)(self._prepares)
        self.is_correct = lru_cache(maxsize=4096)(self._is_correct)

    def _measure(self, question: Question) -> Expected:
        """Run the gold query."""
        result = run_gold(question.query, self._databases[question.database].rows)
        if result is None:
            raise QueryError("LIMIT leaves the result of the gold query undetermined")
        if result.says_nothing:
            raise QueryError("the gold query has an empty result")
        return result

    def _prepares(self, question: Question, answer: bytes) -> bool:
        """Return whether SQLite compiles an answer."""
        query = _text(answer)
        return query is not None and self._databases[question.database].rows.prepares(query)

    def _is_correct(self, question: Question, answer: bytes) -> bool:
        """Return whether an answer gives the gold result; False if that can't be judged."""
        query, expected = _text(answer), self._expected.get(question.id)
        if query is None or expected is None:
            return False
        try:
            # One extra row suffices to detect too many rows.
            rows = self._databases[question.database].rows.rows(query, most=expected.size + 1)
        except QueryError:
            return False
        return expected.equals(rows)


def _text(answer: bytes) -> str | None:
    try:
        return answer.decode()
    except UnicodeDecodeError:
        return None


Row = tuple[Value, ...]


@dataclass(frozen=True)
class Expected:
    """Result of a gold query.

    Attributes:
        parts: multisets of rows, in order.
    """

    parts: tuple[Counter[Row], ...]

    @property
    def size(self) -> int:
        """Number of rows."""
        return sum(part.total() for part in self.parts)

    @property
    def says_nothing(self) -> bool:
        """True if no row has a value; the maximum of no rows is a row with NULL."""
        return all(value is None for part in self.parts for row in part for value in row)

    def equals(self, rows: Rows) -> bool:
        """Return whether the given rows are equal to this result."""
        if len(rows) != self.size:
            return False
        start = 0
        for part in self.parts:
            end = start + part.total()
            if Counter(map(comparable, rows[start:end])) != part:
                return False
            start = end
        return True


def run_gold(query: str, database: Sandbox) -> Expected | None:
    """Run a gold query; None if LIMIT leaves its result undetermined on this database.

    Raises:
        QueryError: SQLite doesn't compile the query, or it takes too long.
    """
    rows = [comparable(row) for row in database.rows(query)]
    try:
        tree: Any = sqlglot.parse_one(query, read="sqlite")
    except SqlglotError as error:
        raise QueryError(f"expected a query that can be parsed, got {error}") from error
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
    """Return whether LIMIT or OFFSET separates different rows that agree in the ordering terms."""
    ends = _ends(query)
    if ends is None:
        return False
    whole: Any = query.copy()
    whole.set("limit", None)
    whole.set("offset", None)
    try:
        rows = [comparable(row) for row in database.rows(whole.sql("sqlite"))]
    except QueryError:  # a correlated sub-query can't be run alone
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
    """Return the positions of OFFSET and LIMIT; None without LIMIT, or if it isn't a number."""
    limit, offset = query.args.get("limit"), query.args.get("offset")
    try:
        first = int(offset.expression.this) if offset else 0
        return (first, first + int(limit.expression.this)) if limit else None
    except (AttributeError, TypeError, ValueError):
        return None


def _keys(query: exp.Query, database: Sandbox) -> list[Row] | None:
    """Return the ordering terms of each row, in order; None if they can't be queried."""
    if not isinstance(query, exp.Select) or query.args.get("distinct"):
        return None
    asked: Any = query.copy()
    try:
        terms = [_term(ordered.this, query) for ordered in query.args["order"].expressions]
        asked.set("expressions", terms)
        return [comparable(row) for row in database.rows(asked.sql("sqlite"))]
    except (QueryError, IndexError):  # for example, ordered by an alias of a result column
        return None


def _term(term: Any, query: exp.Select) -> Any:
    """Return the expression of an ORDER BY term; a whole number is the number of a column."""
    if isinstance(term, exp.Literal) and not term.is_string:
        return query.expressions[int(term.this) - 1].unalias().copy()
    return term.copy()
