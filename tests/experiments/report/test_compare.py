"""Several runs become one page and one table."""

from __future__ import annotations

import json
import shutil

import pandas as pd
import pytest

from experiments.compare import compare
from gcd._support.files import write_json
from tests import processes
from tests.experiments.report.test_page import data_of
from tests.experiments.report.toy_run import write_run

ONE = ("task.particles=[4]",)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    settings = (("seed=0",), ("seed=1",), ("seed=1", "task.methods=[gcd]"))
    return [write_run(base / f"run{i}", *ONE, *each) for i, each in enumerate(settings)]


def test_three_runs_are_joined(runs, tmp_path):
    out = compare([directory for directory, _ in runs], tmp_path / "joined")
    frame = pd.read_csv(out / "rows.csv")
    given = [row for _, rows in runs for row in rows]
    assert len(frame) == len(given)
    assert list(frame["example"]) == [row["example"] for row in given]
    assert list(frame["ess"]) == pytest.approx([row["ess"] for row in given])
    assert frame["run"].nunique() == 3
    assert frame["run"][0] == "seed=0, methods=['lcd', 'gcd']"
    data = data_of((out / "report.html").read_text(encoding="utf-8"))
    assert data["runs"] == list(dict.fromkeys(frame["run"]))
    assert [row["run"] for row in data["rows"]] == [
        number for number, (_, rows) in enumerate(runs) for _ in rows
    ]
    # The last two runs have the same seed: what both have is equal.
    same = [
        d for d in data["differences"]
        if d["first"] == [1, "gcd", "smc"] and d["second"] == [2, "gcd", "smc"]
    ]  # fmt: skip
    assert {d["measure"] for d in same} >= {"weighted_accuracy", "evidence_found", "valid"}
    assert all(d["mean"] == 0 for d in same if d["measure"] != "seconds")
    assert {trace["run"] for trace in data["traces"]} == {0, 1, 2}


def test_what_does_not_belong_together_is_refused_by_name(runs, tmp_path):
    first, second = runs[0][0], runs[1][0]
    with pytest.raises(ValueError, match="two or more different runs"):
        compare([first, first])
    other, _ = write_run(tmp_path / "words", *ONE, "task.methods=[gcd]", task="commongen")
    with pytest.raises(ValueError, match=r"the task commongen in .*words and the task xlam"):
        compare([first, second, other])
    (other / "run.json").write_text(json.dumps({"task": "xlam", "form": 2}))
    with pytest.raises(ValueError, match=r"in the file format 1 in .*words, got 2"):
        compare([first, other])
    (other / "run.json").write_text((first / "run.json").read_text())
    write_json({"seed": 0, "records_sha256": "1"}, other / "identity.json")
    with pytest.raises(ValueError, match=r"words has other records than .*run0"):
        compare([first, other])


def cut(text: str) -> str:
    return text[: text.rindex("\n", 0, -1) + 20]


def without(name: str):
    """The first line without one of its values."""

    def change(text: str) -> str:
        first, *others = text.split("\n")
        values = {k: v for k, v in json.loads(first).items() if k != name}
        return "\n".join([json.dumps(values), *others])

    return change


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("summary.json", lambda _: "", r"summary\.json cannot be read"),
        ("summary.json", lambda _: "{}", r"expected .*summary\.json to summarize .*results"),
        ("summary.json", lambda _: '{"methods": [{"method": "gcd"}]}',
         r"expected algorithm, particles in .* got \{'method': 'gcd'\}"),
        ("summary.json", lambda _: '{"problems": [{"estimates": [3]}]}',
         r"expected method, algorithm, particles in .* got 3"),
        ("results.jsonl", None, r"expected .*results\.jsonl, which .*summary\.json summarizes"),
        ("results.jsonl", lambda _: "", r"complete last row in .*results\.jsonl, but it is empty"),
        ("results.jsonl", cut, r"complete last row in .*results\.jsonl, but it ends within a row"),
        ("results.jsonl", without("particles"), r"line 1 of .* \(got a row without particles\)"),
        ("traces.jsonl", lambda _: "", r"traces\.jsonl, but it is empty; .*remove it to go w"),
        ("traces.jsonl", cut, r"traces\.jsonl, but it ends within a row"),
        ("traces.jsonl", without("steps"), r"line 1 of .* \(got a row without steps\); rem"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused_by_name(name, damage, message, runs, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(runs[0][0], damaged)
    text = (damaged / name).read_text(encoding="utf-8")
    (damaged / name).unlink()
    if damage is not None:
        (damaged / name).write_text(damage(text), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        compare([runs[1][0], damaged], tmp_path / "out")
    assert str(damaged) in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_errors_are_one_line(tmp_path):
    found = processes.run("-m", "experiments.compare", str(tmp_path), str(tmp_path / "x"))
    assert found.returncode == 2
    assert found.stderr.startswith(f"error: expected a finished run in {tmp_path}")
    assert found.stderr.count("\n") == 1
