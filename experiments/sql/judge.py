"""Judge of answers by SQLite: whether they compile, and whether they give the gold result.

An answer is correct if its result equals the gold query's on every filling of the database
(execution accuracy). If a gold query fails or has an empty result on every filling, the question is
counted and excluded from execution accuracy only. The judge doesn't use automata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from experiments.sql.databases import Database
from experiments.sql.expected import Expected, run_gold
from experiments.sql.normalize import UnwritableQueryError, normalize
from experiments.sql.questions import Question
from experiments.sql.sandbox import QueryError, Sandbox
from gcd import SqlSchema


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
        self._expected: dict[str, list[tuple[Sandbox, Expected]]] = {}
        self.unjudged: dict[str, str] = {}
        for question in questions:
            try:
                self._expected[question.id] = self._measure(question)
            except QueryError as error:
                self.unjudged[question.id] = str(error)
        # Particles and methods repeat the same answers.
        self.prepares = lru_cache(maxsize=4096)(self._prepares)
        self.is_correct = lru_cache(maxsize=4096)(self._is_correct)
        self.is_exact = lru_cache(maxsize=4096)(self._is_exact)

    def _measure(self, question: Question) -> list[tuple[Sandbox, Expected]]:
        """Run the gold query on every filling."""
        fillings = self._databases[question.database].fillings
        results = [(filling, run_gold(question.query, filling)) for filling in fillings]
        decided = [(filling, result) for filling, result in results if result is not None]
        if not decided:
            raise QueryError("LIMIT leaves the result of the gold query undetermined")
        if all(result.says_nothing for _, result in decided):
            raise QueryError("the gold query has an empty result")
        return decided

    def _prepares(self, question: Question, answer: bytes) -> bool:
        """Return whether SQLite compiles an answer."""
        query = _text(answer)
        filling = self._databases[question.database].fillings[0]
        return query is not None and filling.prepares(query)

    def _is_correct(self, question: Question, answer: bytes) -> bool:
        """Return whether an answer gives the gold result on every filling.

        It is False for a question that can't be judged.
        """
        query = _text(answer)
        measure = self._expected.get(question.id)
        if query is None or measure is None:
            return False
        try:
            # One extra row suffices to detect too many rows.
            return all(
                expected.equals(filling.rows(query, most=expected.size + 1))
                for filling, expected in measure
            )
        except QueryError:
            return False

    def _is_exact(self, question: Question, answer: bytes) -> bool:
        """Return whether an answer equals the gold query after normalization."""
        query = _text(answer)
        schema = self._databases[question.database].schema
        return query is not None and _normalize(query, schema) == _normalize(question.query, schema)


def _normalize(query: str, schema: SqlSchema) -> str:
    """Normalize a query if possible."""
    try:
        return normalize(query, schema)
    except UnwritableQueryError:
        return query.strip()


def _text(answer: bytes) -> str | None:
    try:
        return answer.decode()
    except UnicodeDecodeError:
        return None
