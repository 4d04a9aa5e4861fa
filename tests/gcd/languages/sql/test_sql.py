"""Queries against SQLite and an enumeration, schemas from files, and refusals of both."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise, product
from pathlib import Path

import pytest

import gcd
from gcd import Column, ConstraintError, ForeignKey, SqlDialect, SqlSchema, StateLimitError, Table
from gcd._languages.sql import reading
from tests.gcd.random_strings import RandomWalks, random_strings


def table(name: str, *columns: str, key: str | None = None) -> Table:
    return Table(name, tuple(map(Column, columns)), (key,) if key else ())


CONCERTS = SqlSchema(
    (
        table("singer", "id", "name", "age", key="id"),
        table("concert", "id", "title", "stadium_id", "year", key="id"),
        table("singer_in_concert", "singer_id", "concert_id"),
        table("stadium", "id", "city", key="id"),
    ),
    (
        ForeignKey("concert", "stadium_id", "stadium", "id"),
        ForeignKey("singer_in_concert", "singer_id", "singer", "id"),
        ForeignKey("singer_in_concert", "concert_id", "concert", "id"),
    ),
)

AWKWARD = SqlSchema(
    (
        table("order", "group", "18_49 rating", 'say "so"', "COUNT"),
        table("COUNT", "select", "order", "naïve"),
        table("Count_of", "rowid", "order"),
    ),
    (
        ForeignKey("order", "group", "COUNT", "select"),
        ForeignKey("Count_of", "order", "order", "COUNT"),
    ),
)

TINY = SqlSchema((table("t", "a"), table("u", "b")), (ForeignKey("u", "b", "t", "a"),))


class Judge:
    """An empty SQLite database of a schema."""

    def __init__(self, schema: SqlSchema) -> None:
        self._connection = sqlite3.connect(":memory:")
        for statement in schema.create_statements():
            self._connection.execute(statement)

    def complaint(self, query: str) -> str | None:
        """Return why SQLite rejects a query, or None. EXPLAIN prepares it without running it."""
        try:
            self._connection.execute(f"EXPLAIN {query}")
        except sqlite3.Error as error:
            return str(error)
        return None


DIALECTS = {
    "default": SqlDialect(),
    "deep": SqlDialect(subquery_depth=2, compound_columns=3),
    "any join": SqlDialect(any_join=True, tables=2),
    "values": SqlDialect(values=("it's", "Rome", "")),
    "narrow": SqlDialect(
        tables=2, subquery_tables=1, compound_tables=1, compound_columns=1, grouped_parts=False
    ),
    "plain": SqlDialect(tables=1, subquery_depth=0, compound_columns=0),
}


@pytest.fixture(scope="module")
def language() -> gcd.Automaton:
    return gcd.sql(CONCERTS)


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        *(("default", schema) for schema in (CONCERTS, AWKWARD, TINY)),
        *(("deep", AWKWARD), ("any join", TINY), ("any join", AWKWARD), ("values", CONCERTS)),
        *(("narrow", CONCERTS), ("plain", AWKWARD)),
    ],
)
def test_sqlite_prepares_every_random_query(name: str, schema: SqlSchema) -> None:
    walks = RandomWalks(gcd.sql(schema, DIALECTS[name]))
    judge = Judge(schema)
    rng = random.Random(name)
    for _ in range(150):
        query = walks.draw(rng, patience=rng.choice([40, 120, 400]), stop=0.1).decode()
        assert judge.complaint(query) is None, query


def test_random_queries_get_into_all_corners(language: gcd.Automaton) -> None:
    walks = RandomWalks(language)
    rng = random.Random(0)
    text = " ".join(walks.draw(rng, patience=400, stop=0.05).decode() for _ in range(500))
    for words in (
        *("JOIN", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "DESC", "UNION", "EXCEPT"),
        *("BETWEEN", "NOT LIKE", "IS NOT NULL", "(SELECT", "IN ('", "COUNT(*)", "DISTINCT", "''"),
    ):
        assert words in text


# Queries that the language has; that SQLite refuses; and that are written otherwise.
QUERIES = {
    "in": """
SELECT DISTINCT singer.name, singer.age FROM singer
SELECT COUNT(DISTINCT singer.name), AVG(singer.age), COUNT(*) FROM singer
SELECT stadium.city FROM stadium JOIN concert ON stadium.id = concert.stadium_id
SELECT singer.name, concert.title FROM singer JOIN singer_in_concert ON singer.id = \
singer_in_concert.singer_id JOIN concert ON singer_in_concert.concert_id = concert.id
SELECT singer.name FROM singer WHERE singer.age > 20 AND singer.name LIKE '%a%' OR singer.id != -1.5
SELECT singer.name FROM singer WHERE singer.name IN ('a', 'O''Hara', 3)
SELECT singer.name FROM singer WHERE singer.age NOT BETWEEN 3 AND 40 AND singer.name NOT LIKE 'x'
SELECT singer.name FROM singer WHERE NOT singer.age > (SELECT AVG(singer.age) FROM singer)
SELECT stadium.city FROM stadium WHERE stadium.id NOT IN (SELECT concert.stadium_id FROM concert \
WHERE concert.year >= 2014)
SELECT stadium.city FROM stadium WHERE stadium.id = (SELECT concert.stadium_id FROM concert \
GROUP BY concert.stadium_id ORDER BY COUNT(*) DESC LIMIT 1)
SELECT concert.year FROM concert GROUP BY concert.year, concert.title HAVING COUNT(*) > 1 AND \
MIN(concert.id) < 3
SELECT concert.year FROM concert GROUP BY concert.year ORDER BY COUNT(*) DESC, concert.year LIMIT 1
SELECT singer.name FROM singer ORDER BY singer.age DESC, singer.name ASC, singer.id LIMIT 12
SELECT singer.name FROM singer WHERE singer.age > 40 INTERSECT SELECT singer.name FROM singer
SELECT singer.name, singer.age FROM singer EXCEPT SELECT singer.name, singer.id FROM singer
SELECT COUNT(*) FROM singer UNION ALL SELECT concert.year FROM concert LIMIT 3
""",
    "refused": """
SELECT concert.title FROM singer
SELECT singer.name FROM singer GROUP BY concert.year
SELECT singer.name FROM singer WHERE singer.age > (SELECT AVG(concert.year) FROM singer)
SELECT SUM(AVG(singer.age)) FROM singer
SELECT singer.name FROM singer GROUP BY COUNT(*)
SELECT singer.name FROM singer ORDER BY COUNT(*)
SELECT singer.name FROM singer JOIN singer ON singer.id = singer.id
SELECT singer.name, singer.age FROM singer UNION SELECT singer.name FROM singer
SELECT singer.name FROM singer UNION SELECT singer.name FROM singer ORDER BY singer.age
SELECT singer.name FROM singer WHERE singer.id IN (SELECT singer.id, singer.age FROM singer)
SELECT singer.name FROM singer WHERE singer.name = 'O'Hara'
""",
    "otherwise": """
SELECT name FROM singer
SELECT T1.name FROM singer AS T1
SELECT singer.name FROM singer WHERE singer.age = 007
SELECT singer.name FROM singer JOIN stadium ON singer.id = stadium.id
SELECT singer.name FROM singer WHERE singer.age > (SELECT AVG(singer.age) FROM singer) LIMIT 1
""",
}


@pytest.mark.parametrize(
    ("kind", "query"),
    [(kind, query) for kind, text in QUERIES.items() for query in text.strip().splitlines()],
)
def test_queries_of_note(language: gcd.Automaton, kind: str, query: str) -> None:
    assert language.accepts(query) == (kind == "in")
    assert (Judge(CONCERTS).complaint(query) is None) == (kind != "refused")


def test_all_short_queries_are_those_that_the_grammar_writes() -> None:
    """All queries of at most 44 bytes without literals equal those generated by plain loops."""
    most = 44
    dialect = SqlDialect(subquery_depth=0, compound_columns=1)
    language = gcd.sql(TINY, dialect) & gcd.regex(r"[^0-9']*")
    found = {string.decode() for string in language.enumerate(language.count(most))}
    assert found == set(_written(most))
    assert len(found) > 2_000
    judge = Judge(TINY)
    assert all(judge.complaint(query) is None for query in found)


def _written(most: int) -> Iterator[str]:
    """Yield the queries over TINY with plain loops: heads, tables that contain them, clauses."""
    sources = {
        "t": ["t.a"],
        "u": ["u.b"],
        "t JOIN u ON t.a = u.b": ["t.a", "u.b"],
        "u JOIN t ON u.b = t.a": ["t.a", "u.b"],
    }
    for source, columns in sources.items():
        aggregates = [
            f"{name}({distinct}{column})"
            for name in ("COUNT", "SUM", "AVG", "MIN", "MAX")
            for distinct in ("", "DISTINCT ")
            for column in columns
        ]
        items = [*columns, *aggregates, "COUNT(*)"]
        orders = [column + way for column in columns for way in ("", " ASC", " DESC")]
        first = [a + way for a in [*aggregates, "COUNT(*)"] for way in ("", " ASC", " DESC")]
        tests = [
            f"{negation}{column} IS {null}"
            for negation in ("", "NOT ")
            for column in columns
            for null in ("NULL", "NOT NULL")
        ]
        heads = [
            f"SELECT {distinct}{listed} FROM {source}"
            for distinct in ("", "DISTINCT ")
            for listed in _rows(["*", *items], items, [", "], most - 13 - len(source))
        ]
        for head in heads:
            room = most - len(head)
            wheres = [
                "",
                *(f" WHERE {row}" for row in _rows(tests, tests, [" AND ", " OR "], room)),
            ]
            groups = [f" GROUP BY {row}" for row in _rows(columns, columns, [", "], room)]
            plain = ["", *(f" ORDER BY {row}" for row in _rows(orders, orders, [", "], room))]
            grouped = [f" ORDER BY {row}" for row in _rows([*first, *orders], orders, [", "], room)]
            for where in wheres:
                for order in plain:
                    yield from _if_short(head + where + order, most)
                for group in groups:
                    for order in ["", *grouped]:
                        yield from _if_short(head + where + group + order, most)
    for left, operator, right in product("tu", ("UNION", "UNION ALL", "EXCEPT", "INTERSECT"), "tu"):
        for x, y in product([*sources[left], "COUNT(*)"], [*sources[right], "COUNT(*)"]):
            yield from _if_short(f"SELECT {x} FROM {left} {operator} SELECT {y} FROM {right}", most)


def _rows(first: list[str], later: list[str], between: list[str], room: int) -> Iterator[str]:
    """Yield all lists of words that begin with one of `first`, within `room` bytes."""
    for word in first:
        if len(word) <= room:
            yield word
            for link in between:
                for rest in _rows(later, later, between, room - len(word) - len(link)):
                    yield word + link + rest


def _if_short(query: str, most: int) -> Iterator[str]:
    if len(query) <= most:
        yield query


# -- schemas -----------------------------------------------------------------------------------

ENTRY = {
    "db_id": "shop",
    "table_names_original": ["Buyer", "Sale"],
    "column_names_original": [[-1, "*"], [0, "Id"], [0, "Name"], [1, "Buyer"], [1, "Day"]],
    "column_types": ["text", "number", "text", "number", "time"],
    "primary_keys": [1, [3, 4]],
    "foreign_keys": [[3, 1]],
}
SHOP = SqlSchema(
    (
        Table("Buyer", (Column("Id", "number"), Column("Name", "text")), ("Id",)),
        Table("Sale", (Column("Buyer", "number"), Column("Day", "time")), ("Buyer", "Day")),
    ),
    (ForeignKey("Sale", "Buyer", "Buyer", "Id"),),
)


def database(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def test_a_sqlite_file_is_read(tmp_path: Path) -> None:
    path = database(
        tmp_path / "shop.sqlite",
        """
        CREATE TABLE Buyer (Id INTEGER PRIMARY KEY, Name VARCHAR(20));
        CREATE TABLE "Sale" (Buyer REFERENCES buyer, "Day of sale" TEXT, lost REFERENCES gone(x),
                             FOREIGN KEY (Buyer) REFERENCES BUYER (ID));
        CREATE VIEW seen AS SELECT * FROM Sale;
        CREATE INDEX i ON Sale (Buyer);
        INSERT INTO Buyer VALUES (1, 'it''s'), (2, 'b'), (3, 'b'), (4, NULL), (5, char(7));
        INSERT INTO Sale VALUES (7, 'text', 'x');
        """,
    )
    schema = gcd.sql_schema(path)
    buyer, sale, seen = schema.tables
    assert buyer == Table(
        "Buyer", (Column("Id", "INTEGER"), Column("Name", "VARCHAR(20)")), ("Id",)
    )
    assert [c.name for c in sale.columns] == ["Buyer", "Day of sale", "lost"]
    # SQLite 3.53 gives a view's columns without a type the type BLOB; 3.40 gives them none.
    assert [c.name for c in seen.columns] == [c.name for c in sale.columns]
    assert set(schema.foreign_keys) == {  # one without a column refers to the primary key
        ForeignKey("Sale", "Buyer", "Buyer", "Id"),
        ForeignKey("Sale", "Buyer", "Buyer", "ID"),
    }
    assert gcd.sql_values(path) == ("b", "it's", "text", "x")
    with pytest.raises(ConstraintError, match="at most 2 different texts"):
        gcd.sql_values(path, most=2)
    language = gcd.sql(path, SqlDialect(values=gcd.sql_values(path)))
    assert language.accepts("SELECT COUNT(*) FROM Sale WHERE Sale.\"Day of sale\" = 'it''s'")
    assert not language.accepts("SELECT COUNT(*) FROM Sale WHERE Sale.\"Day of sale\" = 'its'")


def test_an_entry_of_spiders_list_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tables.json"
    path.write_text(json.dumps([ENTRY, {**ENTRY, "db_id": "other"}]))
    assert gcd.sql_schema(path, "shop") == SHOP
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert gcd.sql_schema(path, "shop") == SHOP
    with pytest.raises(
        ConstraintError, match=r"2 database names in .*\(other, shop\), got 'shops'"
    ):
        gcd.sql_schema(path, "shops")
    with pytest.raises(ConstraintError, match=r"\(other, shop\), got None; pass one"):
        gcd.sql_schema(path)
    path.write_text(json.dumps([{**ENTRY, "foreign_keys": [[3, 9]]}]))
    with pytest.raises(ConstraintError, match="expected an entry of Spider's tables"):
        gcd.sql_schema(path, "shop")
    path.write_text("{")
    with pytest.raises(ConstraintError, match="expected a list of databases"):
        gcd.sql_schema(path, "shop")


def test_bad_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ConstraintError, match="cannot read"):
        gcd.sql(tmp_path / "nothing.sqlite")
    text = tmp_path / "text.sqlite"
    text.write_text("CREATE TABLE t (a);")
    with pytest.raises(ConstraintError, match=r"expected a SQLite database .* got b'CREATE"):
        gcd.sql_schema(text)
    empty = database(tmp_path / "empty.sqlite", "CREATE TABLE t (a); DROP TABLE t;")
    with pytest.raises(ConstraintError, match="at least one table, got none"):
        gcd.sql_schema(empty)
    whole = database(tmp_path / "whole.sqlite", "CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(whole.read_bytes()[:100] + b"\xff" * 4000)
    with pytest.raises(ConstraintError, match="damaged SQLite database"):
        gcd.sql_schema(damaged)
    with pytest.raises(ConstraintError, match=r"no name .* got 'shop'"):
        gcd.sql_schema(whole, "shop")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SqlSchema(()), "at least one table, got none"),
        (lambda: SqlSchema((Table("t", ()),)), "columns in table 't', got none"),
        (lambda: SqlSchema((table("t", "a"), table("T", "a"))), "'t' and 'T'"),
        (lambda: SqlSchema((table("t", "a", "A"),)), "'a' and 'A'"),
        (lambda: SqlSchema((table("t", "a\n"),)), "non-empty and printable"),
        (lambda: SqlSchema(TINY.tables, (ForeignKey("u", "c", "t", "a"),)), "u.c -> t.a names u.c"),
        (lambda: SqlDialect(tables=0), "tables to be a whole number, at least 1, got 0"),
        (lambda: SqlDialect(subquery_depth=-1), "subquery_depth to be a whole number"),
        (lambda: SqlDialect(values=()), "at least one string in values"),
        (lambda: SqlDialect(values=("a\0",)), "without zero bytes"),
    ],
)
def test_bad_schemas_and_dialects_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ConstraintError, match=message):
        make()


def test_too_many_tables_are_refused_and_a_narrower_dialect_is_found() -> None:
    star = _star(4)
    with gcd.state_limit(3_500), pytest.raises(StateLimitError, match="3 of 4 tables"):
        gcd.sql(star)
    narrow = gcd.widest_dialect(star, 3_500)
    assert narrow.tables < 3
    assert gcd.sql(star, narrow).num_states <= 3_500
    with pytest.raises(StateLimitError, match="every language of queries on 4 tables"):
        gcd.widest_dialect(star, 100)
    assert gcd.widest_dialect(TINY, 50_000) == SqlDialect()
    # Sets of tables are counted before anything is built from them.
    with pytest.raises(StateLimitError, match="9 of 40 tables"):
        gcd.sql(_star(40), SqlDialect(tables=9, any_join=True))


def _star(size: int) -> SqlSchema:
    names = [f"table_{i}" for i in range(size)]
    return SqlSchema(
        tuple(table(name, "id", "other_id", "some_name") for name in names),
        tuple(ForeignKey(name, "other_id", names[0], "id") for name in names[1:]),
    )


def test_each_narrower_dialect_is_a_part_of_the_one_before() -> None:
    languages = [gcd.sql(TINY, dialect) for dialect in SqlDialect(any_join=True).narrower()]
    assert len(languages) > 5
    for wide, narrow in pairwise(languages):
        assert narrow.num_states <= wide.num_states
        assert (narrow - wide).is_empty


EVERYTHING = """
CREATE TABLE bill (
    id INTEGER PRIMARY KEY, net REAL, tax REAL, "VAT id" TEXT AS (upper(net)),
    gross REAL GENERATED ALWAYS AS (net + tax) STORED UNIQUE
);
CREATE TABLE paid (
    gross REAL REFERENCES bill (gross), total REAL AS (gross) REFERENCES bill (gross)
);
CREATE TABLE pair (a TEXT, b TEXT, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE VIEW dear AS SELECT id, gross, gross * 2 AS twice, 1 + 1 FROM bill WHERE gross > 100;
CREATE VIEW dearest (id, "order") AS SELECT d.id, d.twice FROM dear d;
CREATE TEMP VIEW fleeting AS SELECT 1;
"""


def test_views_and_generated_columns_can_be_named(tmp_path: Path) -> None:
    path = database(tmp_path / "bills.sqlite", EVERYTHING)
    schema = gcd.sql_schema(path)
    found = {table.name: [column.name for column in table.columns] for table in schema.tables}
    assert found == {
        "bill": ["id", "net", "tax", "VAT id", "gross"],
        "paid": ["gross", "total"],
        "pair": ["a", "b"],
        "dear": ["id", "gross", "twice", "1 + 1"],
        "dearest": ["id", "order"],
    }
    assert ForeignKey("paid", "total", "bill", "gross") in schema.foreign_keys
    language = gcd.sql(schema, SqlDialect(tables=2, compound_columns=1))
    with closing(sqlite3.connect(path)) as connection:
        for query in (
            "SELECT dear.twice FROM dear",
            'SELECT MAX(dearest."order") FROM dearest GROUP BY dearest.id',
            'SELECT bill."VAT id" FROM bill JOIN paid ON bill.gross = paid.total',
            *(text.decode() for text in random_strings(language, 100)),
        ):
            assert language.accepts(query), query
            connection.execute(f"EXPLAIN {query}")


@pytest.mark.parametrize(
    "statement",
    ["SELECT * FROM gone", "SELECT gone FROM t", "SELECT gone(a) FROM t", "SELECT * FROM broken"],
)
def test_a_view_that_cannot_be_queried_is_named(tmp_path: Path, statement: str) -> None:
    script = f"CREATE VIEW broken AS {statement}; CREATE VIEW v AS SELECT a FROM t"
    path = database(tmp_path / "views.sqlite", f"CREATE TABLE t (a); {script}")
    with pytest.warns(UserWarning, match="view 'broken'"):
        schema = gcd.sql_schema(path)
    assert [table.name for table in schema.tables] == ["t", "v"]


def test_columns_without_a_printable_name_and_unknown_modules_are_named(tmp_path: Path) -> None:
    script = """
    CREATE TABLE t (a);
    CREATE VIEW v AS SELECT a, a +
        1 FROM t;
    PRAGMA writable_schema = 1;
    INSERT INTO sqlite_master VALUES
        ('table', 'near', 'near', 0, 'CREATE VIRTUAL TABLE near USING nowhere(a)');
    """
    path = database(tmp_path / "odd.sqlite", script)
    with pytest.warns(UserWarning, match="excluded") as warned:
        schema = gcd.sql_schema(path)
    assert [(t.name, len(t.columns)) for t in schema.tables] == [("t", 1), ("v", 1)]
    said = " ".join(str(each.message) for each in warned)
    assert "'v' has columns without a printable name" in said
    assert "table 'near' (no such module: nowhere)" in said


@pytest.mark.parametrize("has_list", [True, False])
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("letters", "fts5(sender, body)"),
        ('"my ""letters"" using fts4"', "FTS5 (sender)"),
        ("old", "fts3(sender)"),
        ("[older one]", "fts4(sender, content='', languageid=\"lid\")"),
        ("boxes /* of */ ", '"rtree"(id, low, high, +label)'),
    ],
)
def test_shadow_tables_are_not_offered(
    tmp_path: Path, name: str, module: str, has_list: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_list:
        monkeypatch.setattr(reading, "_HAS_TABLE_LIST", False)
    script = f"CREATE VIRTUAL TABLE {name} USING {module}; CREATE TABLE letters_dat (a)"
    try:
        path = database(tmp_path / "modules.sqlite", script)
    except sqlite3.OperationalError as error:
        pytest.skip(f"this SQLite has no such module: {error}")
    tables = gcd.sql_schema(path).tables
    assert [table.name for table in tables[1:]] == ["letters_dat"]
    assert not {"rank", "docid", "lid", tables[0].name} & {c.name for c in tables[0].columns}
