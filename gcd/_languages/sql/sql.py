"""Language of SELECT statements over a schema, as a graph.

A statement is well-formed SQL because of the local order of its words. It is valid for the schema
if all its columns belong to tables that it joins. The states of the automaton enforce the second
condition:

* The SELECT list comes before FROM. In the list, the state is the set of tables to which its
  columns belong; FROM then has to list these tables. A column may follow only if there is a set of
  tables that may be joined, and that contains this column's table and those of the columns before
  it.
* In FROM, the state is the set of tables that have been listed, and the set of those that are still
  missing. The next clauses begin when none is missing.
* After FROM, the state is only the set of joined tables. All clauses may use their columns.
* Where a set operator may follow, the state also includes the number of selected columns, because
  both sides need the same number.

So with T sets of tables that may be joined, and C bytes of column names in a set, there are O(T C)
states for each clause. The construction is a union over sets of tables with shared parts. One
subset construction then resolves the remaining nondeterminism (a prefix that two tables share). A
sub-query ends its WHERE clause and its statement. So inside the sub-query, the state doesn't
include the outer tables, and all outer statements share one copy of the sub-query.

Each table of a query but the first is joined on one of its columns and one column of a table before
it. So the tables of a query are a connected set of the graph of all tables, in which an edge means
that two tables may be joined. `SqlDialect` limits these sets and the nesting of queries, because
every option costs states.

The graph also follows SQLite's other rules. Aggregates don't occur in WHERE or GROUP BY, are not
nested, and occur in ORDER BY only after GROUP BY. HAVING needs a GROUP BY. A sub-query selects one
column. ORDER BY and LIMIT end a statement, not one side of a set operator.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Literal

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import Automaton
from gcd._automata.limits import count_work, max_states, state_limit
from gcd._errors import ConstraintError, LimitError, StateLimitError, check_count, check_kind
from gcd._languages.literal import choice, literal
from gcd._languages.sql.database import SqlSchema, Table, quote
from gcd._languages.sql.reading import sql_schema
from gcd._languages.text.regex import regex

_COMPARISONS = (" = ", " != ", " < ", " <= ", " > ", " >= ")
_BEFORE_SUBQUERY = (*(f"{comparison}(" for comparison in _COMPARISONS), " IN (", " NOT IN (")
_SET_OPERATORS = (" UNION ", " UNION ALL ", " INTERSECT ", " EXCEPT ")
_CONNECTIVES = (" AND ", " OR ")
_DIRECTIONS = ("", " ASC", " DESC")
_AGGREGATES = tuple(
    f"{name}({distinct}"
    for name in ("COUNT", "SUM", "AVG", "MIN", "MAX")
    for distinct in ("", "DISTINCT ")
)

_TableSet = frozenset[str]  # names of tables

_STATES_PER_SET = 32  # fewest states for a set of tables


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
        """Yield this dialect, then dialects with fewer and fewer features."""
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


def sql(schema: SqlSchema | str | os.PathLike[str], dialect: SqlDialect | None = None) -> Automaton:
    """Return the language of SELECT statements that SQLite accepts for databases of a schema.

    Every table and column in a statement exists, and every column belongs to a table that the
    statement joins. Each statement has one spelling: keywords in capitals, single spaces, columns
    as `table.column`, names as the schema spells them, and no aliases. `docs/languages.md` has the
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
            return _Queries(schema, dialect).build()
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


# -- names, literals and conditions ---------------------------------------------------------------


_NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"  # without leading zeros
_ROWS = "[1-9][0-9]{0,8}"  # numbers of rows, for LIMIT
_STRING = "'([ -&(-~]|'')*'"  # literals of printable ASCII characters


def _columns(tables: Sequence[Table]) -> Automaton:
    """Return the columns of the given tables, as `table.column`."""
    return choice([t.qualified(column.name) for t in tables for column in t.columns])


def _comparisons(string: Automaton) -> Automaton:
    """Return the operators and literals (`string` except for LIKE) that may follow a column."""
    value = string | regex(_NUMBER)
    optional_not = choice([" ", " NOT "])
    alternatives = [
        choice(_COMPARISONS) + value,
        Automaton.concatenate([optional_not, literal("LIKE "), regex(_STRING)]),
        Automaton.concatenate(
            [optional_not, literal("IN ("), value, (literal(", ") + value).star(), literal(")")]
        ),
        Automaton.concatenate([optional_not, literal("BETWEEN "), value, literal(" AND "), value]),
        choice([" IS NULL", " IS NOT NULL"]),
    ]
    return Automaton.union(alternatives)


# -- joins ----------------------------------------------------------------------------------------


class _Joins:
    """Possible joins between tables, along foreign keys or, if `any_columns`, on any columns."""

    def __init__(self, schema: SqlSchema, *, any_columns: bool) -> None:
        self._schema = schema
        self._any_columns = any_columns
        names = [table.name for table in schema.tables]
        self._on: dict[str, dict[str, list[str]]] = {name: {} for name in names}
        for old, x, new, y in self._references():
            written = f"{schema[old].qualified(x)} = {schema[new].qualified(y)}"
            self._on[new].setdefault(old, []).append(written)
        self._conditions: dict[tuple[_TableSet, str], Automaton] = {}
        self._neighbors: dict[str, set[str]] = {name: set() for name in names}
        for name in names:
            self._neighbors[name] = (set(names) if any_columns else set(self._on[name])) - {name}

    def table_sets(self, most: int) -> set[_TableSet]:
        """Return the sets of at most `most` tables that a query may join."""
        found: set[_TableSet] = set()
        latest = {frozenset([name]) for name in self._neighbors}
        while latest:
            found |= latest
            if len(found) * _STATES_PER_SET > max_states():
                raise StateLimitError(
                    max_states(), what=f"a query over any of {len(found)} sets of tables"
                )
            latest = {
                tables | {name}
                for tables in latest
                if len(tables) < most
                for name in self.neighbors(tables)
            }
        return found

    def condition(self, listed: _TableSet, table: str) -> Automaton:
        """Return the conditions that join `table` to one in `listed`, whose column is first."""
        key = listed & self._neighbors[table], table
        if key not in self._conditions:
            if self._any_columns:
                older = _columns([self._schema[name] for name in sorted(listed)])
                newer = _columns([self._schema[table]])
                found = Automaton.concatenate([older, literal(" = "), newer])
            else:
                written = [text for old in key[0] for text in self._on[table][old]]
                found = choice(written) if written else Automaton.empty()
            self._conditions[key] = found
        return self._conditions[key]

    def neighbors(self, tables: _TableSet) -> set[str]:
        """Return the tables that may be joined with one of the given tables."""
        return {other for table in tables for other in self._neighbors[table]} - tables

    def _references(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the foreign keys in both directions, with names as the schema spells them."""
        for key in self._schema.foreign_keys:
            here = self._schema[key.table]
            there = self._schema[key.referred_table]
            mine = here.spelling(key.column)
            theirs = there.spelling(key.referred_column)
            yield here.name, mine, there.name, theirs
            yield there.name, theirs, here.name, mine


# -- statements -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scope:
    """Properties of one SELECT that matter for the statements around it."""

    # "first" for the first or only SELECT of a statement, "right" for the right side of a set
    # operator, "nested" for a sub-query
    kind: Literal["first", "right", "nested"]
    # For "first", the number of columns that the other side of a set operator must select, 0 if no
    # set operator may follow; for the other kinds, the number of columns to select
    columns: int = 0
    depth: int = 0  # number of statements around a sub-query; 0 for the other kinds

    @property
    def alone(self) -> _Scope:
        """The same properties, for graph nodes that don't depend on the number of columns."""
        return replace(self, columns=0)


class _Queries:
    """Builder of the graph of all statements, which the module docstring describes."""

    def __init__(self, schema: SqlSchema, dialect: SqlDialect) -> None:
        self._schema = schema
        self._dialect = dialect
        self._graph = Assembly()
        self._states = 0  # number of states on all edges of the graph
        self._nodes: dict[Hashable, int] = {}
        self._columns: dict[_TableSet, Automaton] = {}
        self._texts: dict[tuple[str, ...], Automaton] = {}
        string = regex(_STRING)
        if dialect.values is not None:
            string = choice(["'" + value.replace("'", "''") + "'" for value in dialect.values])
        self._compared = _comparisons(string)
        self._optional_not = literal("NOT ").optional()
        self._number, self._limit = regex(_NUMBER), regex(_ROWS)
        self._joins = _Joins(schema, any_columns=dialect.any_join)
        most = {
            "first": dialect.tables,
            "right": min(dialect.tables, dialect.compound_tables),
            "nested": min(dialect.tables, dialect.subquery_tables),
        }
        # For each kind of scope, the subsets of sets of tables that may be joined.
        sets = {n: _subsets(self._joins.table_sets(n)) for n in set(most.values())}
        self._viable = {kind: sets[n] for kind, n in most.items()}
        added = {n: _additions(viable) for n, viable in sets.items()}
        self._added = {kind: added[n] for kind, n in most.items()}
        self._end = self._graph.node()

    def build(self) -> Automaton:
        """Return the language of all statements."""
        start = self._graph.node()
        self._select(start, _Scope("first"))
        return self._graph.build(start, self._end)

    # -- SELECT ... FROM ... JOIN ... ----------------------------------------------------------

    def _select(self, source: int, scope: _Scope) -> None:
        self._insert(
            source,
            self._before_item(scope, 0, frozenset()),
            self._choice(("SELECT ", "SELECT DISTINCT ")),
        )

    def _before_item(self, scope: _Scope, count: int, used: _TableSet) -> int:
        """Return the node before an item of SELECT, after `count` items over `used` tables."""
        node, is_new = self._node("item", scope, count, used)
        if is_new:
            uncounted = self._dialect.compound_columns + 1
            after = min(count + 1, uncounted) if scope.kind == "first" else count + 1
            for name in self._added[scope.kind][used]:
                target = self._after_item(scope, after, used | {name})
                column = self._column(frozenset([name]))
                self._insert(node, target, column)
                self._insert(node, target, *self._of_column(column))
            self._insert(node, self._after_item(scope, after, used), self._literal("COUNT(*)"))
            if scope.kind == "first" and count == 0:
                self._insert(node, self._after_item(scope, uncounted, used), self._literal("*"))
        return node

    def _after_item(self, scope: _Scope, count: int, used: _TableSet) -> int:
        node, is_new = self._node("after item", scope, count, used)
        if is_new:
            is_first = scope.kind == "first"
            if is_first or count < scope.columns:
                self._insert(node, self._before_item(scope, count, used), self._literal(", "))
            if is_first and count <= self._dialect.compound_columns:
                self._from(node, replace(scope, columns=count), used)
            elif is_first or count == scope.columns:
                self._from(node, scope.alone, used)
        return node

    def _from(self, source: int, scope: _Scope, used: _TableSet) -> None:
        node = self._graph.node()
        self._insert(source, node, self._literal(" FROM "))
        for name in self._added[scope.kind][used]:
            target = self._join(scope, frozenset([name]), used - {name})
            self._insert(node, target, self._literal(quote(name)))

    def _join(self, scope: _Scope, listed: _TableSet, missing: _TableSet) -> int:
        """Return the node after the tables `listed` in FROM, while others are `missing`."""
        if len(listed | missing) > self._dialect.compound_tables:
            scope = scope.alone  # too many tables for a set operator
        node, is_new = self._node("joined", scope, listed, missing)
        if is_new:
            for name in sorted(self._joins.neighbors(listed)):
                if listed | missing | {name} in self._viable[scope.kind]:
                    self._insert(
                        node,
                        self._join(scope, listed | {name}, missing - {name}),
                        self._literal(f" JOIN {quote(name)} ON "),
                        self._joins.condition(listed, name),
                    )
            if not missing:
                self._clauses(node, scope, listed)
        return node

    # -- WHERE ... GROUP BY ... ORDER BY ... LIMIT ... ------------------------------------------

    def _clauses(self, source: int, scope: _Scope, tables: _TableSet) -> None:
        graph = self._graph
        where, condition, filtered = graph.node(), graph.node(), graph.node()
        column = self._column(tables)
        self._insert(source, where, self._literal(" WHERE "))
        self._insert(where, condition, self._optional_not, column, self._compared)
        self._insert(condition, where, self._choice(_CONNECTIVES))
        if scope.depth < self._dialect.subquery_depth:
            nested = _Scope("nested", columns=1, depth=scope.depth + 1)
            begin, is_new = self._node("nested", nested)
            if is_new:
                self._select(begin, nested)
            operator = self._choice(_BEFORE_SUBQUERY)
            self._insert(where, begin, self._optional_not, column, operator)
        graph.skip(condition, filtered)
        graph.skip(source, filtered)
        self._group_by(filtered, scope, tables)
        self._insert(filtered, self._order_by(scope.alone, tables)[0], self._literal(" ORDER BY "))
        self._close(filtered, scope)

    def _group_by(self, source: int, scope: _Scope, tables: _TableSet) -> None:
        if not self._dialect.grouped_parts:
            if scope.kind != "first":
                return
            scope = scope.alone
        graph = self._graph
        begin, is_new = self._node("group by", scope, tables)
        self._insert(source, begin, self._literal(" GROUP BY "))
        if not is_new:
            return
        column, having, compared, condition, grouped = (graph.node() for _ in range(5))
        self._insert(begin, column, self._column(tables))
        self._insert(column, begin, self._literal(", "))
        graph.skip(column, grouped)
        self._insert(column, having, self._literal(" HAVING "))
        self._aggregate(having, compared, tables)
        self._insert(compared, condition, self._choice(_COMPARISONS), self._number)
        self._insert(condition, having, self._choice(_CONNECTIVES))
        graph.skip(condition, grouped)
        if scope.kind != "right":
            order, is_new = self._node("order groups by", scope.alone, tables)
            self._insert(grouped, order, self._literal(" ORDER BY "))
            if is_new:
                # An aggregate may only come first, so that the rest is the same as without groups.
                item, ordered = self._order_by(scope.alone, tables)
                graph.skip(order, item)
                aggregate = graph.node()
                self._aggregate(order, aggregate, tables)
                self._insert(aggregate, ordered, self._choice(_DIRECTIONS))
        self._close(grouped, scope)

    def _order_by(self, scope: _Scope, tables: _TableSet) -> tuple[int, int]:
        """Return the graph's nodes before and after a column in ORDER BY."""
        item, is_new = self._node("order by", scope, tables)
        ordered, _ = self._node("ordered", scope, tables)
        if is_new and scope.kind != "right":
            self._insert(item, ordered, self._column(tables), self._choice(_DIRECTIONS))
            self._insert(ordered, item, self._literal(", "))
            self._close(ordered, scope)
        return item, ordered

    def _close(self, source: int, scope: _Scope) -> None:
        """End a SELECT: with LIMIT, with a set operator and another SELECT, or without either."""
        graph = self._graph
        limit, is_new = self._node("limit", scope.depth)
        self._insert(source, limit, self._literal(" LIMIT "))
        if is_new:
            self._insert(limit, self._end_statement(scope.depth), self._limit)
        graph.skip(source, self._end_statement(scope.depth))
        if scope.kind == "first" and scope.columns:
            right = _Scope("right", columns=scope.columns)
            begin, is_new = self._node("right", right)
            self._insert(source, begin, self._choice(_SET_OPERATORS))
            if is_new:
                self._select(begin, right)

    def _end_statement(self, depth: int) -> int:
        """Return the graph's node after a statement; `depth` closing parentheses follow it."""
        if depth == 0:
            return self._end
        node, is_new = self._node("closed", depth)
        if is_new:
            self._insert(node, self._end_statement(depth - 1), self._literal(")"))
        return node

    # -- the parts -----------------------------------------------------------------------------

    def _node(self, *key: Hashable) -> tuple[int, bool]:
        """Return the graph's node with the given key, and whether this call added it."""
        is_new = key not in self._nodes
        if is_new:
            self._nodes[key] = self._graph.node()
        return self._nodes[key], is_new

    def _insert(self, source: int, target: int, *parts: Automaton) -> None:
        """Connect two nodes of the graph by a sequence of languages."""
        self._graph.insert(source, target, *parts)
        self._states += sum(part.num_states for part in parts)
        if self._states > max_states():
            raise StateLimitError(max_states())

    def _aggregate(self, source: int, target: int, tables: _TableSet) -> None:
        """Connect two nodes of the graph by aggregates of columns, and by `COUNT(*)`."""
        self._insert(source, target, *self._of_column(self._column(tables)))
        self._insert(source, target, self._literal("COUNT(*)"))

    def _of_column(self, column: Automaton) -> tuple[Automaton, ...]:
        return self._choice(_AGGREGATES), column, self._literal(")")

    def _column(self, tables: _TableSet) -> Automaton:
        """Return the qualified columns of a set of tables; results are cached."""
        if tables not in self._columns:
            self._columns[tables] = _columns([self._schema[name] for name in sorted(tables)])
        return self._columns[tables]

    def _literal(self, text: str) -> Automaton:
        return self._choice((text,))

    def _choice(self, texts: tuple[str, ...]) -> Automaton:
        if texts not in self._texts:
            self._texts[texts] = choice(texts)
        return self._texts[texts]


def _subsets(sets: set[_TableSet]) -> set[_TableSet]:
    """Return all subsets of the given sets; a set of n tables has 2^n."""
    return {
        frozenset(part)
        for whole in sets
        for part in chain.from_iterable(
            combinations(sorted(whole), size) for size in range(len(whole) + 1)
        )
    }


def _additions(sets: set[_TableSet]) -> dict[_TableSet, list[str]]:
    """Return the tables of each set, and those that lead to another set of `sets`."""
    found: dict[_TableSet, set[str]] = {each: set(each) for each in sets}
    for each in sets:
        for name in each:
            found[each - {name}].add(name)
    return {each: sorted(names) for each, names in found.items()}
