"""A task is one record; a method and a metric are one entry: toys do all that the others do."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import smc
from experiments import run as experiment
from experiments.arms import METHODS
from experiments.run import TASKS
from experiments.tables import read_rows_of
from experiments.tasks import refuse_disagreement
from experiments.tool_calling import task as tool_calling
from tests.experiments import composing, toy
from tests.experiments.rows import rows_of
from tests.experiments.toy_model import write_checkpoint

pytestmark = pytest.mark.usefixtures("tables_alone")

ROOT = Path(__file__).resolve().parents[2]
STORIES = ROOT / "tests" / "models" / "stories260K"


@pytest.fixture(scope="module", autouse=True)
def _toys() -> Iterator[None]:
    """The entries are made for the module, and taken back after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, toy.TASK.name, toy.TASK)
        patch.setitem(METHODS, "sharp", toy.SHARP)
        toy.install()
        yield


def composed(*overrides: object):
    return composing.composed("wandb=disabled", "model.device=cpu", *overrides)


def toy_run(directory: Path, *overrides: str):
    return composed("+task=toy", f"run_dir={directory}", *overrides)


@pytest.fixture(scope="module")
def whole(_toys, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    assert experiment.run(toy_run(directory)) == directory
    return directory


def test_a_toy_task_writes_its_report(whole):
    rows = rows_of(whole)
    arms = [("gcd", 1), ("gcd", 8), ("sharp", 1), ("sharp", 8)]
    assert [(r["method"], r["particles"]) for r in rows[::4]] == arms
    assert (whole / "table.md").read_text().count("Sharp GCD") == 8
    assert json.loads((whole / "summary.json").read_text())["rows"] == rows
    assert json.loads((whole / "identity.json").read_text())["task"]["words"] == 4
    assert (whole / "config.yaml").exists()


def test_an_interrupted_toy_run_goes_on_and_no_other_run_may(
    whole, tmp_path, monkeypatch, caplog, interrupted_at
):
    directory = tmp_path / "run"
    config = toy_run(directory)
    sample, calls = smc.sample, interrupted_at(6)
    with pytest.raises(KeyboardInterrupt), caplog.at_level("WARNING"):
        experiment.run(config)
    assert f"the same command goes on from 5 of 16 rows in {directory}" in caplog.text
    with pytest.raises(ValueError, match=r"got another one: task\.words was 4, is 3\. Give"):
        experiment.run(toy_run(directory, "task.words=3"))
    (directory / "identity.json").rename(tmp_path / "aside.json")
    with pytest.raises(ValueError, match=r"expected identity\.json, which identifies the run"):
        experiment.run(config)
    (tmp_path / "aside.json").rename(directory / "identity.json")
    experiment.run(config)
    assert len(calls) == 6 + 11  # what was there was not made again
    assert rows_of(directory) == rows_of(whole)

    # Without `resume` a run begins from nothing. Interrupted then, it is not taken for the
    # finished run that it was before.
    seen = []

    def watched(*args, **kwargs):
        seen.append((directory / "scratch.txt").exists())
        if len(seen) == 6:
            raise KeyboardInterrupt
        return sample(*args, **kwargs)

    monkeypatch.setattr(smc, "sample", watched)
    config.resume = False
    with pytest.raises(KeyboardInterrupt), caplog.at_level("WARNING"):
        experiment.run(config)
    assert "the same command without resume=false goes on from 5 of 16 rows" in caplog.text
    assert seen == [False, *[True] * 5]
    assert not {"report.html", "table.md"} & {path.name for path in directory.iterdir()}


def test_a_directory_that_cannot_be_written_to_is_refused_before_the_work(tmp_path, monkeypatch):
    def works(run, inputs):
        raise AssertionError("the model would be loaded here")

    monkeypatch.setitem(TASKS, "toy", replace(toy.TASK, run=works))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write .* to .*/file, because .*; give .* run_di"):
        experiment.run(toy_run(tmp_path / "file"))
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    for run_dir in (tmp_path, tmp_path / "run"):
        with pytest.raises(ValueError, match=f"{tmp_path} isn't a writable directory"):
            experiment.run(toy_run(run_dir))
    assert not (tmp_path / "run").exists()


def test_a_directory_in_which_nothing_was_finished_is_taken_over(tmp_path, monkeypatch):
    """A command that fails early can be corrected, and its directory stays the same."""

    def refuses(run, inputs):
        run.open()
        raise ValueError("task.words=3 is wrong for a reason that shows late")

    wrong = toy_run(tmp_path, "task.words=3")
    with monkeypatch.context() as patched:
        patched.setitem(TASKS, "toy", replace(toy.TASK, run=refuses))
        with pytest.raises(ValueError, match="shows late"):
            experiment.run(wrong)
    assert json.loads((tmp_path / "identity.json").read_text())["task"]["words"] == 3
    experiment.run(toy_run(tmp_path, "task.words=1"))
    assert {row["example"] for row in rows_of(tmp_path)} == set(toy.WORDS[:1])
    # Rows are not all that a run leaves.
    (tmp_path / "results.jsonl").unlink()
    with pytest.raises(ValueError, match=r"got another one: task\.words was 1, is 3"):
        experiment.run(wrong)


def test_a_toy_method_is_compared_with_the_truth(tmp_path):
    """The convergence task samples from a proposal that it has never heard of."""
    problems = tmp_path / "problems.json"
    strings = ["girl", "boy", "dog", "cat"]
    problem = {"prompt": "Once upon a time, there was a little ", "budget": 5, "strings": strings}
    problems.write_text(json.dumps([problem]))
    experiment.run(
        composed(
            "+task=convergence", f"task.problems={problems}", f"run_dir={tmp_path / 'run'}",
            "task.methods=[gcd,sharp]", "task.algorithms=[smc,discrete]", "task.particles=[1,4]",
            "task.runs=60", "task.draws=60", f"model.path={STORIES}",
        )
    )  # fmt: skip
    [report] = rows_of(tmp_path / "run")
    estimates = {(e["method"], e["algorithm"], e["particles"]): e for e in report["estimates"]}
    # As a score, g = p^0.5 keeps other prefixes than weight alone, and neither is biased.
    for algorithm in ("smc", "discrete"):
        sharp, plain = (estimates[method, algorithm, 1]["tv"] for method in ("sharp", "gcd"))
        assert sharp != plain
    for e in estimates.values():
        assert e["dead"] == 0
        error = (e["evidence_bias_high"] - e["evidence_bias_low"]) / (2 * 1.96)
        assert abs(e["evidence_bias"]) < 5 * error + 1e-6  # its weights correct what it draws
    assert "| Sharp GCD" in (tmp_path / "run" / "table.md").read_text()


@pytest.mark.slow
def test_a_toy_metric_and_method_are_shown_wherever_the_others_are(tmp_path, monkeypatch):
    """One entry: summary, table with its meaning, and paired differences."""
    metric = toy.LENGTH
    monkeypatch.setattr(tool_calling, "METRICS", (*tool_calling.METRICS, metric))
    run_dir = experiment.run(
        composed(
            "+task=xlam", f"run_dir={tmp_path / 'run'}", "trace.examples=0",
            f"model.path={write_checkpoint(tmp_path / 'model')}", "task.num_examples=3",
            "task.particles=[2]", "task.methods=[lcd,gcd,sharp]", "task.budget=fewest:1.1",
        )
    )  # fmt: skip
    rows, summary = rows_of(run_dir), json.loads((run_dir / "summary.json").read_text())
    lengths: dict[str, list[int]] = {}
    for row in rows:
        text = row["answers"][0]["text"] if row["answers"] else ""
        lengths.setdefault(row["method"], []).append(len(text.encode()))
        assert row["method"] == "lcd" or (row["valid"] and row["complete"])
    means: dict[str, Any] = {method: sum(each) / len(each) for method, each in lengths.items()}
    assert means["lcd"] != means["gcd"]
    for record in summary["methods"]:
        low, mean, high = (record[f"answer_bytes{end}"] for end in ("_low", "", "_high"))
        assert mean == pytest.approx(means[record["method"]])
        assert low <= mean <= high
    assert summary["metrics"] == {"parses": "parses", "answer_bytes": "answer bytes"}
    for difference in summary["differences"]:
        expected = means[difference["method"]] - means["gcd"]
        assert difference["answer_bytes"] == pytest.approx(expected)
    table = (run_dir / "table.md").read_text()
    assert table.count("| answer bytes ") == 2  # the means, and the differences
    assert f"| {means['gcd']:.2f} [" in table
    assert f"`answer bytes` is {metric.meaning}." in table
    assert "\n| Sharp GCD" in table


def test_several_processes_are_refused_for_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.tasks.processes", lambda device: (0, 2))
    with pytest.raises(ValueError, match=r"a single process for the task toy, got 2; .*--multirun"):
        experiment.run(toy_run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_processes_that_prepared_different_things_are_refused(monkeypatch):
    def gather(found: list, mine: object) -> None:
        found[:] = ["x", mine]

    monkeypatch.setattr(dist, "all_gather_object", gather)
    with pytest.raises(ValueError, match=r"under torchrun, but .* differs \(x, y\)"):
        refuse_disagreement(2, "y")
    refuse_disagreement(2, "x")
    refuse_disagreement(1, "y")


def test_runs_of_parts_of_the_records_are_merged_by_key(whole, tmp_path):
    """As Hydra's `--multirun` makes them with different `data.offset`."""
    rows = rows_of(whole)
    for name, part in (("a", rows[:9]), ("b", rows[7:])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in part))
    assert read_rows_of([tmp_path / "a", tmp_path / "b"]) == rows


def test_the_common_modules_know_no_task_and_only_smc_knows_what_a_proposal_is():
    folder = ROOT / "experiments"
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found = re.findall(r"^\s*(?:from|import) experiments\.(\w+)", text, flags=re.MULTILINE)
        if path.parent == folder and path.stem not in ("run", "published", "finetuning"):
            rooms = {name for name in found if (folder / name).is_dir()}
            assert rooms <= {"report"}, path
        assert not re.search(r"isinstance\([^)]*(PGCD|Twisted)", text), path
