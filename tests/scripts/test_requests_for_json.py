"""Requests for tool calls become requests for JSON that the task itself can read and constrain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gcd
from experiments.harness.config import DataConfig
from experiments.json_schema.records import gold, load_records
from experiments.tool_calling.records import OWN, record_of
from scripts import requests_for_json


def test_every_answer_is_one_under_its_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "requests.jsonl"
    monkeypatch.setattr("sys.argv", ["requests_for_json", str(OWN), str(out)])
    requests_for_json.main()
    found = load_records(DataConfig(path=str(out)), 1000)
    assert len(found.records) > 50
    for record in found.records:
        allowed = gcd.json_schema(record.schema, whitespace="spaced")
        assert allowed.accepts(gold(record).encode()), gold(record)


def _row(parameters: Any, arguments: Any, called: str = "f") -> Any:
    return {
        "query": "please",
        "tools": [{"name": "f", "description": "", "parameters": parameters}],
        "answers": [{"name": called, "arguments": arguments}],
    }


@pytest.mark.parametrize(
    ("row", "required"),
    [
        (_row({"a": {"type": "int"}}, {"a": 1}), ["a"]),
        (_row({"a": {"type": "int, optional"}}, {"a": 1}), []),
        (_row({"a": {"type": "int", "default": 2}}, {}), []),
        (_row({"a": {"type": "int"}}, {}), None),  # it lacks what is required
        (_row({"a": {"type": "int"}}, {"a": "one"}), None),
        (_row({"a": {"type": "int"}}, {"a": 1, "b": 2}), None),
        (_row({"a": {"type": "List[int]"}}, {"a": [1]}), None),
        (_row({"a": "int"}, {"a": 1}), None),
        (_row({"a": {"type": "int"}}, {"a": 1.0}), None),  # written 1.0, which no integer is
        (_row({"a": {"type": "int", "description": None}}, {"a": 1}), ["a"]),
        (_row(None, {}), []),
        (_row({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 1}), None),
        (_row({"a": {"type": "int"}}, {"a": 1}, called="g"), None),
        ({**_row({}, {}), "answers": []}, None),
    ],
)
def test_what_is_kept(row: Any, required: list[str] | None) -> None:
    request = requests_for_json.schema_request(record_of(row, "0"))
    assert (None if request is None else request["schema"]["required"]) == required
