"""Prompts of questions: schema, solved examples, the question, and the request for SQL only.

The format follows Loula et al. (arXiv 2504.13139): CREATE TABLE statements of the database, three
solved examples, and an instruction to reply with the statement only. The examples use a separate
small database, so their schema appears once. They also show the form `table.column`.

`compact` is plain text that ends with a line `SQL:`; `chat` uses the tokenizer's chat template.
"""

from __future__ import annotations

from typing import Any

from experiments.models import chat, is_chat
from gcd import Column, ForeignKey, SqlSchema, Table
from gcd._languages.sql.database import fold, quote

EXAMPLE_SCHEMA = SqlSchema(
    (
        Table(
            "film",
            (
                Column("film_id", "INTEGER"),
                Column("title", "TEXT"),
                Column("director", "TEXT"),
                Column("year", "INTEGER"),
            ),
            ("film_id",),
        ),
        Table(
            "screening",
            (
                Column("screening_id", "INTEGER"),
                Column("film_id", "INTEGER"),
                Column("hall", "TEXT"),
                Column("visitors", "INTEGER"),
            ),
            ("screening_id",),
        ),
    ),
    (ForeignKey("screening", "film_id", "film", "film_id"),),
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
    known = f"{create_statements(EXAMPLE_SCHEMA)}\n{solved}"
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
