"""The report on the SQL language: what is counted as missed, and why."""

from __future__ import annotations

import gcd
from scripts.check_sql import check_database, complaint_of_sqlite, report
from tests.gcd.languages.sql.schemas import TINY

GOLD = [
    "SELECT a FROM t",
    "SELECT count(*) FROM u JOIN t ON u.b = t.a WHERE b > 3",
    "SELECT a FROM t WHERE a = b",
    "SELECT a FROM t UNION SELECT b FROM u",
]


def test_what_is_counted() -> None:
    vocabulary = gcd.Vocabulary.from_bytes([*(bytes([b]) for b in range(128)), b""], [128])
    plain = gcd.SqlDialect(compound_columns=0)
    checked = check_database(
        "tiny", TINY, GOLD, wanted=plain, max_states=50_000, vocabulary=vocabulary, walks=20
    )
    assert (checked.dialect, checked.gold, checked.drawn) == (plain, 4, 20)
    assert checked.refused == []
    assert [query for query, _ in checked.missed] == GOLD[2:]
    assert (
        "b, which belongs to no table" in checked.missed[0][1]
        or "in place of" in (checked.missed[0][1])
    )
    assert "it has no 'UNION SELECT u.b FROM u'" in checked.missed[1][1]
    assert checked.lifted is not None
    text = "\n".join(report([checked]))
    assert "| tiny | 2 of 4 |" in text
    assert "in the language: 2 of 4 (50.0%)" in text
    assert "SQLite prepares: 20 of 20" in text


def test_sqlite_is_asked() -> None:
    assert complaint_of_sqlite("SELECT t.a FROM t", TINY, None) is None
    assert complaint_of_sqlite("SELECT t.b FROM t", TINY, None) == "no such column: t.b"
