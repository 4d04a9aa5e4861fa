"""Records are read in every public spelling; a malformed one is skipped, counted and explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.config import DataConfig
from experiments.evaluate import DataError
from experiments.tool_calling.task import Call, load_records, read_xlam

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"

_TOOLS = [{"name": "f", "description": "", "parameters": {"a": {"type": "int"}}}]
_GOOD = {"id": 7, "query": "q", "tools": _TOOLS, "answers": [{"name": "f", "arguments": {"a": 1}}]}


def _lines(path: Path, *rows: object) -> Path:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def test_json_strings_and_objects_read_alike(tmp_path: Path) -> None:
    strings = {**_GOOD, "tools": json.dumps(_TOOLS), "answers": json.dumps(_GOOD["answers"])}
    result = read_xlam(_lines(tmp_path / "x.jsonl", _GOOD, strings))
    assert result.skipped == ()
    assert result.records[0] == result.records[1]
    assert result.records[0].id == "7"
    assert result.records[0].calls == (Call("f", {"a": 1}),)
    assert result.records[0].tools == tuple(_TOOLS)


def test_line_separators_inside_a_string_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({**_GOOD, "query": "a\u2028b\x85c"}, ensure_ascii=False) + "\n\n")
    assert [record.query for record in read_xlam(path).records] == ["a\u2028b\x85c"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{not json", "Expecting"),
        ([1], "got list"),
        ({"query": "q"}, "expected the fields 'tools' and 'answers'"),
        ({**_GOOD, "tools": "[{"}, "expected JSON in tools"),
        ({**_GOOD, "tools": "{}"}, "tools to be a list"),
        ({**_GOOD, "tools": [3]}, "a tool to be an object"),
        ({**_GOOD, "tools": [{"parameters": {}}]}, "a tool with a name"),
        ({**_GOOD, "tools": [{"name": "f", "parameters": [1]}]}, "parameters of 'f'"),
        ({**_GOOD, "answers": [{"arguments": {}}]}, "an answer with a name"),
        ({**_GOOD, "answers": [{"name": "f", "arguments": [1]}]}, "an object of arguments"),
        ({**_GOOD, "answers": 3}, "answers to be a list"),
        ({**_GOOD, "query": "  "}, "expected a query, got an empty text"),
        ({**_GOOD, "query": 5}, "got int"),
    ],
)
def test_a_malformed_line_is_skipped_with_its_number_and_reason(
    tmp_path: Path, bad: object, reason: str
) -> None:
    result = read_xlam(_lines(tmp_path / "x.jsonl", _GOOD, bad, _GOOD))
    assert len(result.records) == 2
    assert [skipped.position for skipped in result.skipped] == [2]
    assert reason in result.skipped[0].reason


def test_a_file_without_a_good_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2 malformed and no well-formed record; the first \(1\)"):
        read_xlam(_lines(tmp_path / "x.jsonl", "{", "[]"))
    with pytest.raises(DataError, match="expected records with"):
        read_xlam(_lines(tmp_path / "empty.jsonl"))


def test_a_missing_file_is_reported_with_the_remedy(tmp_path: Path) -> None:
    for name in ("nowhere.jsonl", "nowhere.json"):
        with pytest.raises(DataError, match=r"expected an existing file, got .*nowhere"):
            read_xlam(tmp_path / name)


def test_a_line_with_a_byte_of_another_encoding_is_malformed(tmp_path: Path) -> None:
    path = _lines(tmp_path / "x.jsonl", _GOOD, _GOOD, _GOOD)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:9] + b"\xe9" + second[9:] + third.replace(b"\n", b"\r\n"))
    result = read_xlam(path)
    assert len(result.records) == 2
    [(position, reason)] = [(skipped.position, skipped.reason) for skipped in result.skipped]
    assert (position, reason) == (2, "expected UTF-8, got 0xe9 at character 10")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"the first \(1\): expected UTF-8, got 0xff"):
        read_xlam(path)
    with pytest.raises(DataError, match="got 0xff in line 1, byte 1 of the file"):
        read_xlam(path.rename(tmp_path / "x.json"))
    with pytest.raises(DataError, match="cannot be read"):
        read_xlam(tmp_path)


def test_hammers_spellings(tmp_path: Path) -> None:
    rows = [
        {
            "query": [
                {"role": "user", "content": "Hello"},
                {"role": "agent", "content": "Yes?"},
            ],
            "tools": _TOOLS,
            "answers": [{"tool": "f", "parameters": {"a": 2}}],
        },
        {"query": "q", "tools": _TOOLS, "answers": [{"name": "f", "arguments": '{"a": 3}'}]},
        "no record",
    ]
    path = tmp_path / "set.json"
    path.write_text(json.dumps(rows))
    result = read_xlam(path)
    assert result.records[0].query == "user: Hello\nagent: Yes?"
    assert [record.id for record in result.records] == ["set-1", "set-2"]
    assert [record.calls[0].arguments["a"] for record in result.records] == [2, 3]
    assert [skipped.position for skipped in result.skipped] == [3]


def test_a_file_that_is_no_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(DataError, match="expected a list of records"):
        read_xlam(path)
    path.write_text('{}\n{"a": 1}')
    with pytest.raises(DataError, match=r"\.jsonl"):
        read_xlam(path)


def test_the_hub_reads_through_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    rows = [{**_GOOD, "id": i, "answers": json.dumps(_GOOD["answers"])} for i in range(4)]
    table = datasets.Dataset.from_list([{**r, "tools": json.dumps(r["tools"])} for r in rows])
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: table)
    data = DataConfig(hub="someone/set", offset=1)
    assert [r.id for r in load_records(data, 2).records] == ["1", "2"]

    def fail(name: str, split: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"someone/set.*no route.*or give a file"):
        load_records(data, 2)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data are not here")
def test_the_public_files_read_whole() -> None:
    xlam = read_xlam(SHARED / "xlam" / "first_600.jsonl")
    assert (len(xlam.records), len(xlam.skipped)) == (600, 0)
    counts = {
        path.stem: (len(result.records), len(result.skipped))
        for path in sorted((SHARED / "toolcalls").glob("*.json"))
        for result in [read_xlam(path)]
    }
    assert counts == {
        "apibank_l1": (399, 0),
        "apibank_l2": (127, 0),
        "sealtool": (294, 0),
        "toolalpaca": (114, 0),
    }


@pytest.mark.parametrize(
    ("answers", "query", "reason"),
    [
        ('[{"name": "f", "arguments": {"a": NaN}}]', "q", "JSON values only"),
        ('[{"name": "f", "arguments": {"a": Infinity}}]', "q", "JSON values only"),
        (
            '[{"name": "f", "arguments": {}}]',
            "lone \ud800 surrogate",
            "text that UTF-8 can represent",
        ),
    ],
)
def test_what_no_prompt_or_answer_can_hold_is_malformed(tmp_path, answers, query, reason):
    good = {"query": "q", "tools": "[]", "answers": "[]"}
    lines = [good, {**good, "query": query, "answers": answers}]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = read_xlam(path)
    assert len(result.records) == 1
    assert result.skipped[0].position == 2
    assert reason in result.skipped[0].reason
