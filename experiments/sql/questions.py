"""Questions with the name of their database and the gold query, read from a file.

The format is Spider's: objects with `db_id`, `question` and `query`, as JSON lines or in one list.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.records import DataError, ReadResult, read_file

_FIELDS = ("db_id", "question", "query")
_NEEDS = "the fields db_id, question and query, with db_id the name of a database of the folder"
_NAMES = ("questions.jsonl", "dev.jsonl", "dev.json", "dev*.jsonl", "dev*.json")


@dataclass(frozen=True)
class Question:
    """A question to a database.

    Attributes:
        id: name of the database and number in the file.
        database: name of the database.
        text: the question.
        query: the gold query.
    """

    id: str
    database: str
    text: str
    query: str


def find_questions(folder: Path) -> Path:
    """Find the file of questions in a folder.

    Raises:
        DataError: there is none.
    """
    for name in _NAMES:
        for path in sorted(folder.glob(name)):
            return path
    raise DataError(
        f"expected a file of questions in data.path={folder} called {' or '.join(_NAMES)}, got "
        f"none; give one with objects of {', '.join(_FIELDS)}, as JSON lines or in a list"
    )


def read_questions(path: Path, databases: Container[str]) -> ReadResult[Question]:
    """Read the questions of a file; a question to an unknown database is malformed.

    Raises:
        DataError: the file can't be read or has no well-formed question.
    """

    def question_of(row: Any, default_id: str) -> Question:
        if not isinstance(row, Mapping):
            raise ValueError(f"expected a question to be an object, got {type(row).__name__}")
        values = []
        for field in _FIELDS:
            value = row.get(field)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"expected {field} to be a text that isn't empty, got {value!r}")
            values.append(value.strip())
        database, text, query = values
        if database not in databases:
            raise ValueError(f"expected an existing database, got {database!r}")
        return Question(f"{database}-{default_id}", database, text, query)

    return read_file(path, question_of, _NEEDS)
