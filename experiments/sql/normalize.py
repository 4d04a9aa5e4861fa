"""Normalization of SQL queries to the form of `gcd.sql`.

People write `SELECT T2.name, count(*) FROM concert AS T1 JOIN stadium AS T2 ON ...`. The language
has full table names, the schema's capitalization and uppercase keywords. `sqlglot` parses the
query, which is then written again, name by name and clause by clause. Constructs outside of the
language are refused with the reason.

Besides spelling there are four changes that don't affect the result:

* a condition with a sub-query moves to the end of a WHERE clause whose conditions are all joined by
  AND;
* a join condition has the column of the earlier table first;
* a double-quoted name that isn't a column is a string, as in SQLite;
* `a < b` with the column on the right becomes `b > a`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from gcd import SqlSchema, Table
from gcd._languages.sql.schema import quote

_COMPARISONS: dict[type[exp.Expression], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_AGGREGATES: dict[type[exp.Expression], str] = {
    exp.Count: "COUNT",
    exp.Sum: "SUM",
    exp.Avg: "AVG",
    exp.Min: "MIN",
    exp.Max: "MAX",
}
_SET_OPERATORS: dict[type[exp.Expression], str] = {
    exp.Union: "UNION",
    exp.Intersect: "INTERSECT",
    exp.Except: "EXCEPT",
}
_READ = {"expressions", "distinct", "from_", "joins", "where", "group", "having", "order", "limit"}


class UnwritableQueryError(ValueError):
    """Raised for queries outside of the language; the message names the construct."""


def normalize(query: str, schema: SqlSchema) -> str:
    """Return a query in the form of `gcd.sql`: qualified columns, no aliases, one spelling.

    The automaton decides whether a particular dialect contains the query.

    Raises:
        UnwritableQueryError: the query isn't SQL, uses names outside of the schema, or has a
            construct that no dialect has.
    """
    try:
        tree: Any = sqlglot.parse_one(query, read="sqlite")
    except SqlglotError as error:
        raise UnwritableQueryError(f"not SQL: {str(error).splitlines()[0]}") from error
    return _statement(tree, schema)


def _statement(tree: exp.Expression, schema: SqlSchema) -> str:
    for kind, word in _SET_OPERATORS.items():
        if isinstance(tree, kind):
            if any(tree.args.get(clause) for clause in ("order", "limit", "offset", "with_")):
                raise UnwritableQueryError(f"ORDER BY or LIMIT behind {word}")
            every = "" if tree.args.get("distinct", True) else " ALL"
            left, right = (_statement(part, schema) for part in (tree.this, tree.expression))
            return f"{left} {word}{every} {right}"
    if not isinstance(tree, exp.Select):
        raise UnwritableQueryError(f"a statement of the kind {tree.key.upper()}")
    return _Select(tree, schema).write()


class _Select:
    """One SELECT with the tables that its names refer to."""

    def __init__(self, tree: exp.Select, schema: SqlSchema) -> None:
        self._tree = tree
        self._schema = schema
        self._tables: dict[str, Table] = {}  # by alias or name, in lower case
        unknown = {key for key, value in tree.args.items() if value} - _READ
        if unknown:
            raise UnwritableQueryError(f"the clause {sorted(unknown)[0].strip('_').upper()}")
        if tree.args.get("from_") is None:
            raise UnwritableQueryError("a SELECT without FROM")

    def write(self) -> str:
        tree = self._tree
        source = self._source()
        distinct = "DISTINCT " if tree.args.get("distinct") else ""
        items = ", ".join(map(self._item, tree.expressions))
        text = f"SELECT {distinct}{items} FROM {source}"
        if where := tree.args.get("where"):
            text += f" WHERE {self._conditions(where.this)}"
        if group := tree.args.get("group"):
            text += f" GROUP BY {', '.join(map(self._column, group.expressions))}"
        if having := tree.args.get("having"):
            text += f" HAVING {self._conditions(having.this)}"
        if order := tree.args.get("order"):
            text += f" ORDER BY {', '.join(map(self._order_item, order.expressions))}"
        if limit := tree.args.get("limit"):
            text += f" LIMIT {limit.expression.sql('sqlite')}"
        return text

    # -- FROM ------------------------------------------------------------------------------------

    def _source(self) -> str:
        first = self._add_table(self._tree.args["from_"].this)
        parts = [quote(first.name)]
        for join in self._tree.args.get("joins") or []:
            outer = join.args.get("side") or (join.args.get("kind") or "INNER") != "INNER"
            if outer or join.args.get("using"):
                raise UnwritableQueryError("an outer, cross or natural join")
            if join.args.get("on") is None:
                raise UnwritableQueryError("a join without ON")
            table = self._add_table(join.this)
            parts.append(f"JOIN {quote(table.name)} ON {self._join_condition(join, table)}")
        return " ".join(parts)

    def _add_table(self, source: exp.Expression) -> Table:
        if not isinstance(source, exp.Table):
            raise UnwritableQueryError("a sub-query in FROM")
        table = self._schema.table(source.name)
        if table is None:
            raise UnwritableQueryError(f"the table {source.name!r}, which is not in the schema")
        if table in self._tables.values():
            raise UnwritableQueryError(f"the table {table.name} joined with itself")
        self._tables[source.alias_or_name.lower()] = table
        return table

    def _join_condition(self, join: exp.Join, table: Table) -> str:
        condition = join.args["on"]
        sides = (condition.this, condition.expression) if isinstance(condition, exp.EQ) else ()
        if not sides or not all(isinstance(side, exp.Column) for side in sides):
            raise UnwritableQueryError("a join on something else than two equal columns")
        owners = [self._owner(side) for side in sides]
        if owners.count(table) != 1:
            raise UnwritableQueryError("a join on columns of one table")
        ordered = sides if owners[1] == table else sides[::-1]
        return " = ".join(map(self._column, ordered))

    # -- expressions -----------------------------------------------------------------------------

    def _item(self, item: exp.Expression) -> str:
        if isinstance(item, exp.Alias):  # aliases of result columns don't change rows
            item = item.this
        if isinstance(item, exp.Star):
            return "*"
        if isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
            if len(self._tables) > 1:
                raise UnwritableQueryError("all columns of one of several tables")
            return "*"
        return self._value(item)

    def _order_item(self, item: exp.Expression) -> str:
        direction = " DESC" if item.args.get("desc") else ""
        return self._value(item.this) + direction

    def _value(self, value: exp.Expression) -> str:
        """Return a column or an aggregate of a column."""
        if isinstance(value, exp.Column):
            return self._column(value)
        name = _AGGREGATES.get(type(value))
        if name is None or value.args.get("expressions"):
            raise UnwritableQueryError(f"the expression {value.sql('sqlite')}")
        inner = value.this
        if isinstance(inner, exp.Star):
            return f"{name}(*)"
        distinct = isinstance(inner, exp.Distinct)
        if distinct and len(inner.expressions) == 1:
            inner = inner.expressions[0]
        return f"{name}({'DISTINCT ' if distinct else ''}{self._column(inner)})"

    def _column(self, column: exp.Expression) -> str:
        if not isinstance(column, exp.Column):
            raise UnwritableQueryError(
                f"the expression {column.sql('sqlite')} in place of a column"
            )
        owner = self._owner(column)
        return owner.qualified(owner.spelling(column.name))

    def _owner(self, column: exp.Column) -> Table:
        if column.table:
            owner = self._tables.get(column.table.lower())
            owners = [owner] if owner is not None else []
        else:
            owners = list(self._tables.values())
        having = [table for table in owners if table.column(column.name) is not None]
        if len(having) != 1:
            what = "belongs to several tables" if having else "belongs to no table of the query"
            raise UnwritableQueryError(f"the column {column.sql('sqlite')}, which {what}")
        return having[0]

    # -- conditions ------------------------------------------------------------------------------

    def _conditions(self, tree: exp.Expression) -> str:
        """Return a sequence of conditions, with a sub-query at the end."""
        parts = list(_flat(tree))
        if all(connective != "OR" for connective, _ in parts):
            parts.sort(key=lambda part: part[1].find(exp.Subquery, exp.Select) is not None)
            parts = [("AND" if i else "", part) for i, (_, part) in enumerate(parts)]
        return " ".join(f"{c} {self._condition(part)}".lstrip() for c, part in parts)

    def _condition(self, tree: exp.Expression) -> str:
        if isinstance(tree, exp.Not):
            return self._negate(tree.this)
        return self._plain(tree, "")

    def _negate(self, tree: exp.Expression) -> str:
        if isinstance(tree, exp.Is):
            return f"{self._value(tree.this)} IS NOT NULL"
        if isinstance(tree, (exp.Like, exp.In, exp.Between)):
            return self._plain(tree, "NOT ")
        return f"NOT {self._plain(tree, '')}"

    def _plain(self, tree: exp.Expression, negation: str) -> str:
        if isinstance(tree, exp.Is) and isinstance(tree.expression, exp.Null):
            return f"{self._value(tree.this)} IS NULL"
        if isinstance(tree, exp.Like):
            if tree.args.get("negate"):  # NOT LIKE in sqlglot 30 and later
                negation = "" if negation else "NOT "
            return f"{self._value(tree.this)} {negation}LIKE {self._operand(tree.expression)}"
        if isinstance(tree, exp.Between):
            bounds = (self._operand(tree.args[name]) for name in ("low", "high"))
            return f"{self._value(tree.this)} {negation}BETWEEN {' AND '.join(bounds)}"
        if isinstance(tree, exp.In):
            inner = tree.args.get("query")
            written = (
                self._operand(inner)
                if inner is not None
                else f"({', '.join(map(self._operand, tree.expressions))})"
            )
            return f"{self._value(tree.this)} {negation}IN {written}"
        operator = _COMPARISONS.get(type(tree))
        if operator is None:
            raise UnwritableQueryError(f"the condition {tree.sql('sqlite')}")
        left, right = tree.this, tree.expression
        if self._is_literal(left) and not self._is_literal(right):
            left, right, operator = right, left, _MIRRORED[operator]
        return f"{self._value(left)} {operator} {self._operand(right)}"

    def _operand(self, tree: exp.Expression) -> str:
        """Return a literal or a sub-query."""
        if isinstance(tree, exp.Subquery):
            return f"({_statement(tree.this, self._schema)})"
        if isinstance(tree, exp.Select):
            return f"({_statement(tree, self._schema)})"
        if isinstance(tree, exp.Neg) and isinstance(tree.this, exp.Literal):
            return f"-{self._operand(tree.this)}"
        if isinstance(tree, exp.Literal):
            return _string(tree.name) if tree.is_string else tree.name
        if isinstance(tree, exp.Column) and self._is_literal(tree):
            return _string(tree.name)
        raise UnwritableQueryError(f"{tree.sql('sqlite')} in place of a number or a string")

    def _is_literal(self, tree: exp.Expression) -> bool:
        """Return whether a tree is a literal, including double-quoted names that aren't columns."""
        if isinstance(tree, exp.Column) and not tree.table and tree.this.quoted:
            return all(table.column(tree.name) is None for table in self._tables.values())
        return isinstance(tree, (exp.Literal, exp.Neg))


def _flat(tree: exp.Expression, connective: str = "") -> Iterator[tuple[str, exp.Expression]]:
    """Yield conditions in order, each with the AND or OR before it."""
    for kind, word, looser in ((exp.And, "AND", exp.Or), (exp.Or, "OR", None)):
        if isinstance(tree, kind):
            for side in (tree.this, tree.expression):
                inner = side.unnest() if isinstance(side, exp.Paren) else side
                if looser is not None and isinstance(inner, looser):
                    raise UnwritableQueryError("OR in parentheses")
            yield from _flat(tree.this, connective)
            yield from _flat(tree.expression, word)
            return
    if isinstance(tree, exp.Paren):
        yield from _flat(tree.this, connective)
    else:
        yield connective, tree


def _string(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
