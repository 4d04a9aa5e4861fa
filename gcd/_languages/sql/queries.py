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

The graph also follows SQLite's other rules. Aggregates don't occur in WHERE or GROUP BY, are not
nested, and occur in ORDER BY only after GROUP BY. HAVING needs a GROUP BY. A sub-query selects one
column. ORDER BY and LIMIT end a statement, not one side of a set operator.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Literal

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import Automaton
from gcd._automata.limits import max_states
from gcd._errors import StateLimitError
from gcd._languages.literal import choice, literal
from gcd._languages.sql import words
from gcd._languages.sql.dialect import SqlDialect
from gcd._languages.sql.joins import Joins, TableSet
from gcd._languages.sql.schema import SqlSchema, quote


@dataclass(frozen=True)
class _Scope:
    """Properties of one SELECT that matter for the statements around it.

    Attributes:
        kind: "first" for the first or only SELECT of a statement, "right" for the right side of a
            set operator, "nested" for a sub-query.
        columns: for "first", the number of columns that the other side of a set operator must
            select, 0 if no set operator may follow; for the other kinds, the number of columns to
            select.
        depth: number of statements around a sub-query; 0 for the other kinds.
    """

    kind: Literal["first", "right", "nested"]
    columns: int = 0
    depth: int = 0

    @property
    def alone(self) -> _Scope:
        """The same properties, for graph nodes that don't depend on the number of columns."""
        return replace(self, columns=0)


class Queries:
    """Builder of the graph of all statements, which the module docstring describes.

    Args:
        schema: tables and foreign keys.
        dialect: limits on the statements.
    """

    def __init__(self, schema: SqlSchema, dialect: SqlDialect) -> None:
        self._schema = schema
        self._dialect = dialect
        self._graph = Assembly()
        self._states = 0  # number of states on all edges of the graph
        self._nodes: dict[Hashable, int] = {}
        self._columns: dict[TableSet, Automaton] = {}
        self._texts: dict[tuple[str, ...], Automaton] = {}
        string = words.any_string() if dialect.values is None else words.string_of(dialect.values)
        self._compared = words.compare(string)
        self._optional_not = literal("NOT ").optional()
        self._number, self._limit = words.number(), words.limit()
        self._joins = Joins(schema, any_columns=dialect.any_join)
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

    def _before_item(self, scope: _Scope, count: int, used: TableSet) -> int:
        """Return the graph's node before an item of the SELECT list, after `count` items.

        `used` are the tables of the columns so far.
        """
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

    def _after_item(self, scope: _Scope, count: int, used: TableSet) -> int:
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

    def _from(self, source: int, scope: _Scope, used: TableSet) -> None:
        node = self._graph.node()
        self._insert(source, node, self._literal(" FROM "))
        for name in self._added[scope.kind][used]:
            target = self._join(scope, frozenset([name]), used - {name})
            self._insert(node, target, self._literal(quote(name)))

    def _join(self, scope: _Scope, listed: TableSet, missing: TableSet) -> int:
        """Return the graph's node after the tables that FROM lists so far.

        `missing` are the tables of selected columns that FROM doesn't list yet.
        """
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

    def _clauses(self, source: int, scope: _Scope, tables: TableSet) -> None:
        graph = self._graph
        where, condition, filtered = graph.node(), graph.node(), graph.node()
        column = self._column(tables)
        self._insert(source, where, self._literal(" WHERE "))
        self._insert(where, condition, self._optional_not, column, self._compared)
        self._insert(condition, where, self._choice(words.CONNECTIVES))
        if scope.depth < self._dialect.subquery_depth:
            nested = _Scope("nested", columns=1, depth=scope.depth + 1)
            begin, is_new = self._node("nested", nested)
            if is_new:
                self._select(begin, nested)
            operator = self._choice(words.BEFORE_SUBQUERY)
            self._insert(where, begin, self._optional_not, column, operator)
        graph.skip(condition, filtered)
        graph.skip(source, filtered)
        self._group_by(filtered, scope, tables)
        self._insert(filtered, self._order_by(scope.alone, tables)[0], self._literal(" ORDER BY "))
        self._close(filtered, scope)

    def _group_by(self, source: int, scope: _Scope, tables: TableSet) -> None:
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
        self._insert(compared, condition, self._choice(words.COMPARISONS), self._number)
        self._insert(condition, having, self._choice(words.CONNECTIVES))
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
                self._insert(aggregate, ordered, self._choice(words.DIRECTIONS))
        self._close(grouped, scope)

    def _order_by(self, scope: _Scope, tables: TableSet) -> tuple[int, int]:
        """Return the graph's nodes before and after a column in ORDER BY."""
        item, is_new = self._node("order by", scope, tables)
        ordered, _ = self._node("ordered", scope, tables)
        if is_new and scope.kind != "right":
            self._insert(item, ordered, self._column(tables), self._choice(words.DIRECTIONS))
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
            self._insert(source, begin, self._choice(words.SET_OPERATORS))
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
        """Connect two nodes of the graph by a sequence of languages.

        Raises:
            StateLimitError: the graph has too many states.
        """
        self._graph.insert(source, target, *parts)
        self._states += sum(part.num_states for part in parts)
        if self._states > max_states():
            raise StateLimitError(max_states())

    def _aggregate(self, source: int, target: int, tables: TableSet) -> None:
        """Connect two nodes of the graph by aggregates of columns, and by `COUNT(*)`."""
        self._insert(source, target, *self._of_column(self._column(tables)))
        self._insert(source, target, self._literal("COUNT(*)"))

    def _of_column(self, column: Automaton) -> tuple[Automaton, ...]:
        return self._choice(words.AGGREGATES), column, self._literal(")")

    def _column(self, tables: TableSet) -> Automaton:
        """Return the qualified columns of a set of tables; results are cached."""
        if tables not in self._columns:
            self._columns[tables] = words.columns([self._schema[name] for name in sorted(tables)])
        return self._columns[tables]

    def _literal(self, text: str) -> Automaton:
        return self._choice((text,))

    def _choice(self, texts: tuple[str, ...]) -> Automaton:
        if texts not in self._texts:
            self._texts[texts] = choice(texts)
        return self._texts[texts]


def _subsets(sets: set[TableSet]) -> set[TableSet]:
    """Return all subsets of the given sets; a set of n tables has 2^n."""
    return {
        frozenset(part)
        for whole in sets
        for part in chain.from_iterable(
            combinations(sorted(whole), size) for size in range(len(whole) + 1)
        )
    }


def _additions(sets: set[TableSet]) -> dict[TableSet, list[str]]:
    """Return, for each set, the tables that can be added so that the result is in `sets`.

    These include the tables of the set itself.
    """
    found: dict[TableSet, set[str]] = {each: set(each) for each in sets}
    for each in sets:
        for name in each:
            found[each - {name}].add(name)
    return {each: sorted(names) for each, names in found.items()}
