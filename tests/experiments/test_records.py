"""Records of every task: read in all spellings, skipped with a reason, or refused as a file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from experiments.commongen.task import ConceptSet, read_hub_sets, read_sets, read_training
from experiments.config import DataConfig
from experiments.evaluate import DataError, ReadResult, at_most_skipped, read_file
from experiments.exact.problems import read_problems
from experiments.json_schema import task as json_schema
from experiments.sql.databases import Question, read_databases, read_questions
from experiments.tool_calling.task import Call, ToolRecord, load_records, read_xlam
from tests.experiments.rows import RECORD, TOOL

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
MARK = b"\xef\xbb\xbf"
SQL = ROOT / "data" / "sql"

SETS = {"concept_set": "dog_N#run_V", "scene": ["The dog ran.", " Dogs run. "]}
SCHEMA = {"prompt": "What is a?", "schema": {"type": "object"}, "completion": {"a": 1}}
ASKED = {"db_id": "bakery", "question": "Which cakes?", "query": "SELECT cake.name FROM cake"}
TALK = [{"role": "user", "content": "Hello"}, {"role": "agent", "content": "Yes?"}]
CHAT = [{"role": "system", "content": "JSON!"}, {"role": "assistant", "content": "1"}]
LONE = "a \ud800 surrogate"


def read_schemas(path: Path) -> ReadResult[Any]:
    return json_schema.load_records(DataConfig(path=str(path)), 99)


def questions(path: Path) -> ReadResult[Any]:
    return read_questions(path, {"bakery"})


TASKS: dict[str, tuple[Callable[[Path], Any], Any]] = {
    "xlam": (read_xlam, RECORD | {"id": 7}),  # others depend on the file's name
    "commongen": (read_sets, SETS),
    "json_schema": (read_schemas, SCHEMA),
    "sql": (questions, ASKED),
}
TEXTS = {"xlam": "query", "commongen": "scene", "json_schema": "prompt", "sql": "question"}


def lines(*rows: object) -> bytes:
    """Rows of JSON; a text is a line as it is."""
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return "".join(f"{text}\n" for text in texts).encode()


def written(path: Path, *rows: object) -> Path:
    path.write_bytes(lines(*rows))
    return path


@pytest.mark.parametrize("task", TASKS)
def test_lists_lines_and_byte_order_marks_are_read_alike(task: str, tmp_path: Path) -> None:
    read, good = TASKS[task]
    odd = good | {TEXTS[task]: "a\u2028b\x85c"}  # no end of a line
    content = lines(good, json.dumps(odd, ensure_ascii=False))
    expected = read(written(tmp_path / "x.jsonl", good, odd))
    assert (len(expected.records), expected.skipped) == (2, ())
    for name, other in (
        ("x.jsonl", MARK + content.replace(b"\n", b"\r\n")),
        ("x.json", json.dumps([good, odd]).encode()),
        ("x.json", MARK + json.dumps([good, odd]).encode()),
    ):
        (tmp_path / name).write_bytes(other)
        assert read(tmp_path / name).records == expected.records
    (tmp_path / "x.jsonl").write_bytes(MARK + content + MARK + content)
    twice = read(tmp_path / "x.jsonl")
    assert (len(twice.records), twice.skipped) == (4, ())


def test_other_files_may_begin_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "bakery.sql").write_bytes(MARK + (SQL / "bakery.sql").read_bytes())
    assert read_databases(tmp_path)["bakery"].schema == read_databases(SQL)["bakery"].schema
    (tmp_path / "x.tsv").write_bytes((MARK + b"dog run park\tA dog runs in the park.\n") * 2)
    assert [each.concepts for each in read_training([tmp_path / "x.tsv"])] == [
        ("dog", "run", "park")
    ]
    problem = b'[{"prompt": "a", "budget": 3, "strings": ["b"]}]'
    (tmp_path / "x.json").write_bytes(MARK + problem)
    assert [each.strings for each in read_problems(tmp_path / "x.json")] == [("b",)]


def test_a_row_becomes_a_record(tmp_path: Path) -> None:
    """In each public spelling."""
    call = (Call("f", {"a": 1}),)
    texts = {key: json.dumps(RECORD[key]) for key in ("tools", "answers")}
    hammer = {"query": TALK, "answers": [{"tool": "f", "parameters": {"a": 1}}]}
    hammered = {"answers": [{"name": "f", "arguments": '{"a": 1}'}]}
    rows = [{**RECORD, **each} for each in (texts | {"id": 7}, hammer, hammered)]
    (tmp_path / "set.json").write_text(json.dumps(rows))
    assert read_xlam(tmp_path / "set.json").records == (
        ToolRecord("7", "f of 1", (TOOL,), call),
        ToolRecord("set-2", "user: Hello\nagent: Yes?", (TOOL,), call),
        ToolRecord("set-3", "f of 1", (TOOL,), call),
    )
    own = {**SETS, "inflections": [["dog", "Dogs", "dogs", "Dog"], ["ran"]]}
    other = {"concepts": ["dog", "run"], "target": "The dog ran.", "id": 3}
    first, second, third = read_sets(written(tmp_path / "x.jsonl", own, SETS, other)).records
    sentences = ("The dog ran.", "Dogs run.")
    assert first == ConceptSet("1", ("dog", "run"), sentences, (("dog", "dogs"), ("ran",)))
    assert "dogs" in second.inflections[0]
    assert (third.id, third.concepts, third.references) == ("3", ("dog", "run"), ("The dog ran.",))
    texts = {"schema": '{"type": "object"}', "completion": '{"a": 1}', "id": "1"}
    path = written(tmp_path / "x.jsonl", SCHEMA, SCHEMA | texts)
    one, same = read_schemas(path).records
    assert one == same.__class__("1", same.request, same.schema, same.answer)
    assert json_schema.load_records(DataConfig(path=str(path), offset=1), 5).records == (same,)
    [question] = questions(written(tmp_path / "x.jsonl", ASKED)).records
    assert question == Question("bakery-1", "bakery", ASKED["question"], ASKED["query"])


NO_LIST = "a prompt to be a text or a list of messages, got"
MALFORMED: dict[str, list[tuple[Any, str]]] = {
    "xlam": [
        ("{not json", "Expecting"),
        ([1], "got list"),
        ({"query": "q"}, "expected the fields 'tools' and 'answers'"),
        ({"tools": "[{"}, "expected JSON in tools"),
        ({"tools": "{}"}, "tools to be a list"),
        ({"tools": [3]}, "a tool to be an object"),
        ({"tools": [{"parameters": {}}]}, "a tool with a name"),
        ({"tools": [{"name": "f", "parameters": [1]}]}, "parameters of 'f'"),
        ({"answers": [{"arguments": {}}]}, "an answer with a name"),
        ({"answers": [{"name": "f", "arguments": [1]}]}, "an object of arguments"),
        ({"answers": 3}, "answers to be a list"),
        ({"query": "  "}, "expected a query, got an empty text"),
        ({"query": 5}, "got int"),
        ({"query": LONE}, "text that UTF-8 can represent"),
        ({"answers": '[{"name": "f", "arguments": {"a": NaN}}]'}, "JSON values only"),
        ({"answers": '[{"name": "f", "arguments": {"a": Infinity}}]'}, "JSON values only"),
    ],
    "commongen": [
        ([1], "expected a record to be a JSON object, got list"),
        ({"scene": ["A."]}, "in concept_set or concepts, got None"),
        ({"concept_set": ""}, "the set of concepts is empty"),
        ({"concept_set": 3}, "in concept_set or concepts, got 3"),
        ({"concept_set": "dog_N"}, "expected sentences in scene or target"),
        ({"scene": ""}, "at least one reference sentence"),
        ({"inflections": [["dog"], []]}, "the concept 'run' has no inflections"),
        ({"inflections": [["dog"]]}, "inflections for each of 2 concepts"),
        ({"inflections": [["dog"], "ran"]}, "inflections of 'run' to be words, got 'ran'"),
        ({"concept_set": "dog_N#?_V"}, "isn't a word, so it has no inflections"),
    ],
    "json_schema": [
        ([1], "expected a record to be a JSON object, got list"),
        ({"prompt": "q"}, "expected the fields 'schema' and 'completion'"),
        ({"schema": "{"}, "expected text of JSON in schema"),
        ({"schema": "3"}, "expected a schema to be an object, got int"),
        ({"completion": "Paris"}, "expected text of JSON in completion"),
        ({"prompt": " "}, f"{NO_LIST} ' '"),
        ({"prompt": []}, NO_LIST),
        ({"prompt": [{"role": "user"}]}, "expected a message with a role and a content"),
        ({"prompt": CHAT}, "expected the last message to have the role 'user', got 'assistant'"),
        ({"completion": {"a": math.nan}}, "expected an answer with JSON values only"),
        ({"prompt": LONE}, "expected text that UTF-8 can represent"),
        ({"completion": {"a": LONE}}, "expected text that UTF-8 can represent"),
        ({"id": LONE}, "expected text that UTF-8 can represent"),
    ],
    "sql": [
        ("{no", "Expecting"),
        ([1], "got list"),
        ({"question": " "}, "question to be a text that isn't empty"),
        ({"query": 3}, "query to be a text that isn't empty, got 3"),
        ({"db_id": "cats"}, "an existing database, got 'cats'"),
    ],
}
LACKING = ({"query": "q"}, {"scene": ["A."]}, {"concept_set": "dog_N"}, {"prompt": "q"})


@pytest.mark.parametrize(
    ("task", "bad", "reason"), [(task, *row) for task, rows in MALFORMED.items() for row in rows]
)
def test_a_malformed_record_is_skipped_with_its_number_and_reason(
    tmp_path: Path, task: str, bad: Any, reason: str
) -> None:
    read, good = TASKS[task]
    if isinstance(bad, dict) and bad not in LACKING:
        bad = good | bad
    result = read(written(tmp_path / "x.jsonl", good, bad, good))
    assert len(result.records) == 2
    [skipped] = result.skipped
    assert skipped.position == 2
    assert reason in skipped.reason


def test_a_line_with_a_byte_of_another_encoding_is_malformed(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", RECORD, RECORD, RECORD)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:9] + b"\xe9" + second[9:] + third)
    result = read_xlam(path)
    assert len(result.records) == 2
    [skipped] = result.skipped
    expected = (2, "expected UTF-8, got 0xe9 at character 10")
    assert (skipped.position, skipped.reason) == expected


@pytest.mark.parametrize(
    ("task", "name", "content", "message"),
    [
        ("xlam", "x.jsonl", b"{\n[]", r"2 malformed and no well-formed record; the first \(1\)"),
        ("xlam", "x.jsonl", b"", "expected records with"),
        ("xlam", "nowhere.jsonl", None, "expected an existing file, got .*nowhere"),
        ("xlam", "nowhere.json", None, "expected an existing file, got .*nowhere"),
        ("xlam", "x.jsonl", b"\xff\xfe\x00", r"the first \(1\): expected UTF-8, got 0xff"),
        ("xlam", "x.json", b"\xff\xfe\x00", "got 0xff in line 1, byte 1 of the file"),
        ("xlam", "", None, "cannot be read"),
        ("xlam", "x.json", b"{}", "expected a list of records"),
        ("xlam", "x.json", b'{}\n{"a": 1}', r"\.jsonl"),
        ("commongen", "x.jsonl", b"{}", r"records with concept_set.* 1 malformed .*; the first"),
        ("json_schema", "nowhere.jsonl", None, "expected an existing file, got .*nowhere"),
    ],
)
def test_what_is_no_file_of_records_is_refused(
    tmp_path: Path, task: str, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        TASKS[task][0](tmp_path / name)


def test_the_hub_reads_through_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [{**RECORD, "id": i, "tools": json.dumps([TOOL]), "answers": "[]"} for i in range(4)]
    targets = ((0, "dog run", "A dog ran."), (0, "dog run", "Dogs run."), (1, "cat sit", "A cat."))
    sets = [
        {"concept_set_idx": i, "concepts": words.split(), "target": target}
        for i, words, target in (*targets, (1, "cat sit", ""))
    ]
    tables = {"some/calls": calls, "some/sets": sets}

    def load(name: str, split: str) -> datasets.Dataset:
        if name not in tables:
            raise ConnectionError("no route")
        return datasets.Dataset.from_list(tables[name])

    monkeypatch.setattr(datasets, "load_dataset", load)
    data = DataConfig(hub="some/calls", offset=1)
    assert [r.id for r in load_records(data, 2).records] == ["1", "2"]
    result = read_hub_sets("some/sets", "validation")  # a sentence a row
    assert [r.references for r in result.records] == [("A dog ran.", "Dogs run."), ("A cat.",)]
    assert len(result.skipped) == 1
    with pytest.raises(DataError, match=r"some/other.*no route.*or give a file"):
        load_records(DataConfig(hub="some/other"), 2)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data are not here")
def test_the_public_files_read_whole() -> None:
    counts = {"apibank_l1": 399, "apibank_l2": 127, "sealtool": 294, "toolalpaca": 114}
    files = {f"toolcalls/{name}.json": count for name, count in counts.items()}
    for name, count in {"xlam/first_600.jsonl": 600, **files}.items():
        result = read_xlam(SHARED / name)
        assert (len(result.records), len(result.skipped)) == (count, 0)
    sets, own = (
        read_sets(path)
        for path in (SHARED / "commongen" / "dev.jsonl", ROOT / "data/commongen/dev_100.jsonl")
    )
    assert (len(sets.records), sets.skipped) == (993, ())
    assert (len(own.records), own.skipped) == (100, ())
    assert [r.references for r in sets.records[:100]] == [r.references for r in own.records]
    assert {len(r.concepts) for r in own.records} <= {3, 4, 5}
    assert all(len(r.concepts) == len(r.inflections) for r in own.records)


def _whole(row: Any, default_id: str) -> int:
    if not isinstance(row, int):
        raise ValueError("no number")
    return row


@pytest.mark.parametrize(("bad", "share"), [(0, 0.0), (1, 0.25), (3, 0.5)])
def test_a_command_fails_above_the_stated_share(
    bad: int, share: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "numbers.jsonl", 1, 2, 3, *["x"] * bad)
    done = []
    with at_most_skipped("data.max_skipped", share):
        done.append(read_file(path, _whole, "a number"))
        done.append(done[0].part(1, 1))
    assert [result.share_skipped for result in done] == [share, share]
    if bad:
        words = f"{path}: {bad} of {3 + bad} records ({share:.1%}) are malformed and skipped"
        assert f"{words}; the first (4): " in caplog.text
        with (
            pytest.raises(DataError, match=r"at most data\.max_skipped=0\.1 of the records"),
            at_most_skipped("data.max_skipped", 0.1),
        ):
            done.append(read_file(path, _whole, "a number"))
        assert len(done) == 3, "what was asked for is done before"
        missing: dict[str, int] = {}
        with pytest.raises(KeyError), at_most_skipped("key", 0):  # an error is not hidden
            missing[str(read_file(path, _whole, "a number"))]
    with at_most_skipped("data.max_skipped", 0):  # nothing of what was read before counts
        pass
