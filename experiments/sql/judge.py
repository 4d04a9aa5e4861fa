"""Judge of answers by SQLite: whether they compile, and whether they give the gold result.

An answer is correct if its result equals the gold query's (execution accuracy). If a gold query
fails or has an empty or undetermined result, the question is counted and excluded from execution
accuracy only. The judge doesn't use automata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from experiments.sql.databases import Database
from experiments.sql.expected import Expected, run_gold
from experiments.sql.questions import Question
from experiments.sql.sandbox import QueryError


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
