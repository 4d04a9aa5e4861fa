"""Compiler from the schema of a database to the language of its queries."""

from __future__ import annotations

import os

from gcd._automata.automaton import Automaton
from gcd._automata.limits import count_work, state_limit
from gcd._errors import LimitError, StateLimitError, check_count, check_kind
from gcd._languages.sql.dialect import SqlDialect
from gcd._languages.sql.queries import Queries
from gcd._languages.sql.reading import sql_schema
from gcd._languages.sql.schema import SqlSchema


def sql(schema: SqlSchema | str | os.PathLike[str], dialect: SqlDialect | None = None) -> Automaton:
    """Return the language of SELECT statements that SQLite accepts for databases of a schema.

    Every table and column in a statement exists, and every column belongs to a table that the
    statement joins. Each statement has one spelling: keywords in capitals, single spaces, columns
    as `table.column`, names as the schema spells them, and no aliases. `docs/sql.md` has the
    grammar.

    Args:
        schema: tables, columns and foreign keys (`gcd.sql_schema`), or the path of a SQLite file.
        dialect: limits on joins, sub-queries and set operators; None for the default.

    Raises:
        ConstraintError: the file is not a SQLite database, or its schema has no tables.
        StateLimitError: the schema has too many tables for the dialect. `widest_dialect` finds a
            dialect that fits.
        WorkLimitError: compiling takes too much work, for the same reason.
    """
    dialect = SqlDialect() if dialect is None else dialect
    check_kind(dialect, SqlDialect, "a gcd.SqlDialect", "make one, or omit it")
    if not isinstance(schema, SqlSchema):
        schema = sql_schema(schema)
    with count_work():
        try:
            return Queries(schema, dialect).build()
        except LimitError as error:
            what = (
                f"the language of queries that join {dialect.tables} of "
                f"{len(schema.tables)} tables (gcd.widest_dialect finds a dialect that fits)"
            )
            raise type(error)(error.limit, what) from error


def widest_dialect(
    schema: SqlSchema, max_states: int, dialect: SqlDialect | None = None
) -> SqlDialect:
    """Return the widest form of a dialect whose automaton has at most `max_states` states.

    `SqlDialect.narrower` defines the order in which features are removed. A form with fewer
    features has fewer states, so the search is a bisection. The result doesn't depend on the
    machine.

    Args:
        schema: tables, columns and foreign keys.
        max_states: maximum number of states of the language's automaton. A token automaton takes
            four bytes for each pair of a state and a token class, and there are 400 to 1,000
            classes.
        dialect: the form with all features; None for the default dialect.

    Raises:
        StateLimitError: even the narrowest form has more states.
    """
    check_count("max_states", max_states, 1)
    dialects = list((dialect or SqlDialect()).narrower())
    if _fits(schema, dialects[0], max_states):
        return dialects[0]
    fails, fits = 0, len(dialects) - 1
    if not _fits(schema, dialects[fits], max_states):
        raise StateLimitError(
            max_states, what=f"every language of queries on {len(schema.tables)} tables"
        )
    while fits - fails > 1:
        middle = (fails + fits) // 2
        if _fits(schema, dialects[middle], max_states):
            fits = middle
        else:
            fails = middle
    return dialects[fits]


def _fits(schema: SqlSchema, dialect: SqlDialect, max_states: int) -> bool:
    # Automata that are not minimal yet are larger, by less than this factor for all examined
    # schemas.
    try:
        with state_limit(4 * max_states):
            return sql(schema, dialect).num_states <= max_states
    except LimitError:
        return False
