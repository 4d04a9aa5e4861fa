"""Files are read without byte order marks, and what is skipped is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.commongen.task import read_sets, read_training
from experiments.config import DataConfig
from experiments.evaluate import DataError, ReadResult, at_most_skipped, read_file
from experiments.exact.problems import read_problems
from experiments.json_schema.task import load_records
from experiments.sql.databases import read_databases, read_questions
from experiments.tool_calling.task import read_xlam

ROOT = Path(__file__).resolve().parents[2]
MARK = b"\xef\xbb\xbf"
TOOLS = ROOT / "data" / "xlam" / "records_500_599.jsonl"
SETS = ROOT / "data" / "commongen" / "dev_100.jsonl"
JSON = ROOT / "data" / "json_schema" / "records.jsonl"
SQL = ROOT / "data" / "sql"


def some(path: Path, count: int = 3) -> bytes:
    return b"".join(path.read_bytes().splitlines(keepends=True)[:count])


def as_list(content: bytes) -> bytes:
    return json.dumps([json.loads(line) for line in content.splitlines()]).encode()


def questions(path: Path) -> Any:
    return read_questions(path, read_databases(SQL))


READERS: list[tuple[str, bytes, Callable[[Path], Any]]] = [
    ("x.jsonl", some(TOOLS), read_xlam),
    ("x.json", as_list(some(TOOLS)), read_xlam),
    ("x.jsonl", some(SETS), read_sets),
    ("x.tsv", b"dog run park\tA dog runs in the park.\n" * 2, lambda path: read_training([path])),
    ("x.jsonl", some(JSON), lambda path: load_records(DataConfig(path=str(path)), 9)),
    ("x.jsonl", some(SQL / "questions.jsonl"), questions),
    ("x.json", as_list(some(SQL / "questions.jsonl")), questions),
    ("x.json", b'[{"prompt": "a", "budget": 3, "strings": ["b"]}]', read_problems),
]


@pytest.mark.parametrize(("name", "content", "read"), READERS)
def test_a_byte_order_mark_is_no_part_of_a_file(
    name: str, content: bytes, read: Callable[[Path], Any], tmp_path: Path
) -> None:
    plain, marked, joined = (tmp_path / kind / name for kind in ("plain", "marked", "joined"))
    for path, written in ((plain, content), (marked, MARK + content)):
        path.parent.mkdir()
        path.write_bytes(written)
    expected = read(plain)
    assert read(marked) == expected
    if name != "x.json":
        joined.parent.mkdir()
        joined.write_bytes(MARK + content + MARK + content)
        twice = read(joined)
        if isinstance(twice, ReadResult):
            assert (len(twice.records), twice.skipped) == (2 * len(expected.records), ())
        else:
            assert [each.concepts for each in twice] == [each.concepts for each in expected]


def test_databases_may_begin_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "bakery.sql").write_bytes(MARK + (SQL / "bakery.sql").read_bytes())
    assert read_databases(tmp_path)["bakery"].schema == read_databases(SQL)["bakery"].schema


def _whole(row: Any, default_id: str) -> int:
    if not isinstance(row, int):
        raise ValueError("no number")
    return row


@pytest.mark.parametrize(("bad", "share"), [(0, 0.0), (1, 0.25), (3, 0.5)])
def test_a_command_fails_above_the_stated_share(
    bad: int, share: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "numbers.jsonl"
    path.write_text("1\n2\n3\n" + '"x"\n' * bad)
    done = []
    with at_most_skipped("data.max_skipped", share):
        done.append(read_file(path, _whole, "a number"))
        done.append(done[0].part(1, 1))
    assert [result.share_skipped for result in done] == [share, share]
    if bad:
        words = f"{path}: {bad} of {3 + bad} records ({share:.1%}) are malformed and skipped"
        assert f"{words}; the first (4): no number" in caplog.text
        with (
            pytest.raises(DataError, match=r"at most data\.max_skipped=0\.1 of the records"),
            at_most_skipped("data.max_skipped", 0.1),
        ):
            done.append(read_file(path, _whole, "a number"))
        assert len(done) == 3, "what was asked for is done before"
    with at_most_skipped("data.max_skipped", 0):  # nothing of what was read before counts
        pass


def test_an_error_is_not_hidden_by_skipped_records(tmp_path: Path) -> None:
    path = tmp_path / "numbers.jsonl"
    path.write_text('1\n"x"\n')
    missing: dict[str, int] = {}
    with pytest.raises(KeyError), at_most_skipped("key", 0):
        missing[str(read_file(path, _whole, "a number"))]
