"""The report on tool lists: three kinds of files, what compiles, what is refused and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.check_tools import check, read_records

GOOD = {"name": "f", "parameters": {"type": "dict", "properties": {"x": {"type": "float"}}}}
BAD = {"name": "f", "parameters": {"type": "dict", "properties": {"x": {"type": "Widget"}}}}


def _record(tool: Any, **arguments: Any) -> dict[str, Any]:
    answers = [{"name": "f", "arguments": arguments}]
    return {"query": "Do.", "tools": json.dumps([tool]), "answers": json.dumps(answers)}


def test_the_kinds_of_files_are_distinguished(tmp_path: Path) -> None:
    records = [_record(GOOD, x=1.5), _record(GOOD, x="1.5"), {"query": "Do."}]
    questions = [{"id": "q1", "question": [], "function": [GOOD]}]
    xlam, listed, bfcl = (tmp_path / name for name in ("a.jsonl", "b.json", "c.json"))
    xlam.write_text("\n".join(map(json.dumps, records)))
    listed.write_text(json.dumps(records, indent=1))
    bfcl.write_text("\n".join(map(json.dumps, questions)))
    for path in (xlam, listed):
        found, skipped = read_records(path)
        values = [call.arguments["x"] for record in found for call in record.calls or ()]
        assert values == [1.5, "1.5"]
        assert ["'tools'" in reason for reason in skipped] == [True]
    assert read_records(bfcl) == ([("q1", [GOOD], None)], [])


def test_what_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "questions.json"
    lists = [[GOOD], [BAD], [GOOD, {**BAD, "name": "g"}]]
    rows = [{"id": f"q{i}", "function": tools} for i, tools in enumerate(lists)]
    path.write_text("\n".join(map(json.dumps, rows)))
    records, _ = read_records(path)
    answered = [
        records[0]._replace(id=name, calls=read_records(_answered(tmp_path, value))[0][0].calls)
        for name, value in (("right", 1.5), ("wrong", "1.5"))
    ]
    report = check([*records, *answered], "python")
    assert sorted(report.compiled) == ["q0", "right", "wrong"]
    assert list(report.refused) == ["q1", "q2"]
    assert all("'Widget' is unknown" in reason for reason in report.refused.values())
    assert report.answers == 2
    ((name, why),) = report.rejected.items()
    assert (name, "is '\"' after '[f(x='; expected " in why) == ("wrong", True)
    text = "\n".join(report.lines())
    assert "compiled    3 of 5 (60.00%)" in text
    assert "accepted  1 of 2" in text
    assert text.count("refused   record") == 2


def _answered(folder: Path, value: Any) -> Path:
    path = folder / "answered.jsonl"
    path.write_text(json.dumps(_record(GOOD, x=value)))
    return path
