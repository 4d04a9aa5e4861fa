"""Databases and their questions, read from a folder, prompts, and a sandbox for untrusted queries.

A folder has text files `NAME.sql` with CREATE TABLE and INSERT, or SQLite files. Every database
needs rows, as queries are judged by their results.

Queries come from a language model and aren't trusted. SQLite refuses everything other than a SELECT
of the tables (an authorizer checks every operation of a compiled statement), the database is in
memory and read-only, and long statements are interrupted. The limit counts instructions of SQLite's
virtual machine instead of seconds, so verdicts don't depend on the machine or its load.

**Questions** have the name of their database and the gold query. The format is Spider's: objects
with `db_id`, `question` and `query`, as JSON lines or in one list.

**Prompts** follow Loula et al. (arXiv 2504.13139): CREATE TABLE statements of the database, three
solved examples, and an instruction to reply with the statement only. The examples use a separate
small database, so their schema appears once. They also show the form `table.column`. `compact` is
plain text that ends with a line `SQL:`; `chat` uses the tokenizer's chat template.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Container, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.evaluate import DataError, ReadResult, read_file, read_text
from experiments.models import chat, is_chat
from gcd import Column, ConstraintError, SqlSchema, Table, sql_schema
from gcd._languages.sql.database import fold, quote

Value = int | float | str | bytes | None
Rows = list[tuple[Value, ...]]

INSTRUCTIONS = 20_000_000  # limit per query: about a second
_EXPLAINED = 8  # number of columns of EXPLAIN
_STEP = 1000  # instructions between two checks of the limit
_LENGTH = 1_000_000  # limit in bytes of a text, a row, and a query
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


class QueryError(ValueError):
    """Raised for queries that SQLite refuses to compile or to run, or that take too long."""


class Sandbox:
    """A read-only database for queries.

    Args:
        connection: the database, which is copied into memory.
        instructions: limit of virtual machine instructions per query.
    """

    def __init__(self, connection: sqlite3.Connection, instructions: int = INSTRUCTIONS) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.backup(self._connection)
        self._connection.text_factory = lambda text: text.decode("utf-8", errors="replace")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LENGTH)
        self._connection.execute("PRAGMA query_only = ON")
        self._connection.set_authorizer(_authorize)
        self._most = max(1, math.ceil(instructions / _STEP))
        self._left = 0
        self._connection.set_progress_handler(self._is_spent, _STEP)

    def check(self, query: str) -> None:
        """Compile a query without running it.

        Raises:
            QueryError: it doesn't compile or isn't a query.
        """
        program = self._run(f"EXPLAIN {query}", None)
        # SQLite compiles VACUUM without calling the authorizer (running it would fail). EXPLAIN
        # also accepts "QUERY PLAN SELECT 1", which isn't a query, with other columns.
        if any(len(line) != _EXPLAINED or line[1] == "Vacuum" for line in program):
            raise QueryError("expected a SELECT, got another statement")

    def prepares(self, query: str) -> bool:
        """Return whether SQLite compiles a query."""
        try:
            self.check(query)
        except QueryError:
            return False
        return True

    def rows(self, query: str, most: int | None = None) -> Rows:
        """Run a query.

        Args:
            query: one statement.
            most: maximum number of rows to read; None for all.

        Raises:
            QueryError: it doesn't compile, isn't a query, or takes too long.
        """
        self.check(query)
        return self._run(query, most)

    def _run(self, statement: str, most: int | None) -> Rows:
        self._left = self._most
        try:
            cursor = self._connection.execute(statement)
            rows: Rows = cursor.fetchall() if most is None else cursor.fetchmany(most)
            cursor.close()
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
            spent = " (it takes too long)" if self._left < 0 else ""
            raise QueryError(f"{error}{spent}") from error
        return rows

    def _is_spent(self) -> bool:
        self._left -= 1
        return self._left < 0


def _authorize(operation: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if operation in _ALLOWED else sqlite3.SQLITE_DENY


def comparable(row: Sequence[Value]) -> tuple[Value, ...]:
    """Round the fractions of a row to ten digits, so that rows can be compared by `==`.

    The last digits of a sum depend on the order of its terms.
    """
    return tuple(_comparable(value) for value in row)


def _comparable(value: Value) -> Value:
    if not isinstance(value, float) or value.is_integer() or not math.isfinite(value):
        return value
    return float(f"{value:.10g}")


# -- files


@dataclass(frozen=True)
class Database:
    """A database with rows to run queries on.

    Attributes:
        schema: its tables.
        rows: the database in memory.
        digest: digest of all rows.
    """

    schema: SqlSchema
    rows: Sandbox
    digest: str


def read_databases(folder: Path) -> dict[str, Database]:
    """Read all databases of a folder, by name.

    Raises:
        DataError: the folder is missing or has no database, or a database is damaged.
    """
    if not folder.is_dir():
        raise DataError(f"expected a folder of databases, but data.path={folder} does not exist")
    found = {}
    for path in sorted([*folder.glob("*.sql"), *folder.glob("*.sqlite"), *folder.glob("*.db")]):
        if path.stem in found:
            raise DataError(
                f"expected databases of different names in data.path={folder}, got two called "
                f"{path.stem}; remove one"
            )
        found[path.stem] = _read_file(path)
    if not found:
        raise DataError(
            f"expected databases in data.path={folder}, got none; give files NAME.sql (CREATE "
            "TABLE and INSERT) or SQLite files NAME.sqlite"
        )
    return found


def _read_file(path: Path) -> Database:
    """Read a SQLite file or a SQL script, which is converted to a SQLite file first."""
    with TemporaryDirectory() as scratch:
        file = path
        if path.suffix == ".sql":
            file = Path(scratch) / f"{path.stem}.sqlite"
            _run_script(path, file)
        try:
            schema = sql_schema(file)
        except ConstraintError as error:
            # Errors about a file name it; errors about a schema don't.
            named = str(error) if str(path) in str(error) else f"{path}: {error}"
            raise DataError(f"data.path: {named}") from error
        content = _rows_of(file, schema, path)
        digest = hashlib.sha256("\n".join(content.iterdump()).encode()).hexdigest()[:16]
        return Database(schema, Sandbox(content), digest)


def _rows_of(path: Path, schema: SqlSchema, given: Path) -> sqlite3.Connection:
    """Copy a SQLite file into memory; refuse a damaged file, and one without rows."""
    content = sqlite3.connect(":memory:")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as file:
            verdict = file.execute("PRAGMA quick_check(1)").fetchone()[0]
            file.backup(content)
        counts = [f"SELECT EXISTS (SELECT 1 FROM {quote(t.name)})" for t in schema.tables]
        filled = any(content.execute(count).fetchone()[0] for count in counts)
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict != "ok":
        raise DataError(f"expected an intact SQLite database in {path} ({verdict}); copy it again")
    if not filled:
        raise DataError(
            f"expected a database with rows in {given}, got none; add INSERT statements, as "
            "queries are judged by their results"
        )
    return content


def _run_script(script: Path, file: Path) -> None:
    """Run a SQL script that creates a database; the script can't access other files."""

    def authorize(operation: int, *_: object) -> int:
        refused = operation == sqlite3.SQLITE_ATTACH
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    text = read_text(script)
    try:
        with closing(sqlite3.connect(file)) as made:
            made.set_authorizer(authorize)
            made.executescript(text)
            made.commit()
            wrong = made.execute("PRAGMA foreign_key_check").fetchone()
            empty = made.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    except sqlite3.Error as error:
        raise DataError(f"expected SQL that SQLite accepts in {script}, got {error}") from error
    if empty:
        raise DataError(f"expected CREATE TABLE and INSERT in {script}, got no table")
    if wrong is not None:
        raise DataError(
            f"expected foreign keys of existing rows in {script}, but row {wrong[1]} of {wrong[0]} "
            f"refers to a missing row of {wrong[2]}"
        )


# -- questions

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
