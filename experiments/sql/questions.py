"""Questions with the name of their database and the gold query, read from a file, and prompts.

The format is Spider's: objects with `db_id`, `question` and `query`, as JSON lines or in one list.

**Prompts** follow Loula et al. (arXiv 2504.13139): CREATE TABLE statements of the database, three
solved examples, and an instruction to reply with the statement only. The examples use a separate
small database, so their schema appears once. They also show the form `table.column`. `compact` is
plain text that ends with a line `SQL:`; `chat` uses the tokenizer's chat template.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.evaluate import DataError, ReadResult, read_file
from experiments.models import chat, is_chat
from gcd import Column, SqlSchema, Table
from gcd._languages.sql.database import fold, quote

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


# -- prompts

EXAMPLE_TABLES = (
    "CREATE TABLE film (film_id INTEGER PRIMARY KEY, title TEXT, director TEXT, year INTEGER);\n"
    "CREATE TABLE screening (screening_id INTEGER PRIMARY KEY, film_id INTEGER REFERENCES film "
    "(film_id), hall TEXT, visitors INTEGER);"
)
EXAMPLES = (
    (
        "List the titles of the films made before 1980.",
        "SELECT film.title FROM film WHERE film.year < 1980",
    ),
    (
        "How many screenings did each film have? Give the title and the number.",
        "SELECT film.title, COUNT(*) FROM screening JOIN film ON screening.film_id = film.film_id "
        "GROUP BY film.film_id",
    ),
    (
        "Which hall had the screening with the most visitors?",
        "SELECT screening.hall FROM screening ORDER BY screening.visitors DESC LIMIT 1",
    ),
)
_INSTRUCTION = (
    "You write SQLite queries that answer questions to a database. Write every column as "
    "table.column, use only tables and columns of the schema, and reply with just the SQL "
    "statement: no comment, no explanation, on one line."
)


def build_prompt(schema: SqlSchema, question: str, *, tokenizer: Any, kind: str) -> str:
    """Build a prompt, to be tokenized without adding special tokens.

    Args:
        schema: schema of the database.
        question: question in English.
        tokenizer: tokenizer whose chat template is used, if it has one.
        kind: "compact", "chat", or "auto".

    Raises:
        ValueError: the kind is unknown, or is `chat` without a chat template.
    """
    solved = "\n".join(f"Question: {asked}\nSQL:\n{query}" for asked, query in EXAMPLES)
    known = f"{EXAMPLE_TABLES}\n{solved}"
    asked = f"{create_statements(schema)}\nQuestion: {question}\nSQL:\n"
    if not is_chat(kind, tokenizer):
        return f"{known}\n\n{asked}"
    instruction = f"{_INSTRUCTION}\n\nExamples, for another database:\n{known}"
    return chat(tokenizer, instruction, asked.rstrip("\n"))


def create_statements(schema: SqlSchema) -> str:
    """Return CREATE TABLE statements, one per line, with keys and references."""
    return "\n".join(
        f"CREATE TABLE {quote(table.name)} "
        f"({', '.join(_column(schema, table, column) for column in table.columns)});"
        for table in schema.tables
    )


def _column(schema: SqlSchema, table: Table, column: Column) -> str:
    words = [quote(column.name), column.type]
    if table.primary_key == (column.name,):
        words.append("PRIMARY KEY")
    for key in schema.foreign_keys:
        if (fold(key.table), fold(key.column)) == (fold(table.name), fold(column.name)):
            target = f"{quote(key.referred_table)} ({quote(key.referred_column)})"
            words.append(f"REFERENCES {target}")
    return " ".join(word for word in words if word)
