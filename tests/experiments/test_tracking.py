"""Logging to wandb: offline without a login, and never a question."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import wandb
from matplotlib.figure import Figure

from experiments import tracking
from experiments.config import WandbConfig
from experiments.tables import as_table, summarize
from tests.experiments.rows import row
from tests.experiments.wandb_files import stored_runs


@pytest.fixture
def no_login(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-such-netrc"))


@pytest.mark.usefixtures("no_login")
def test_auto_is_offline_without_a_login(monkeypatch):
    assert tracking.resolve_mode("auto") == "offline"
    assert tracking.resolve_mode("disabled") == "disabled"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert tracking.resolve_mode("auto") == "disabled"
    assert tracking.resolve_mode("offline") == "offline"


@pytest.mark.usefixtures("no_login")
def test_auto_is_online_with_a_login(monkeypatch, tmp_path):
    keys = tmp_path / "netrc"
    keys.write_text("machine wandb.example login user password secret\n")
    keys.chmod(0o600)
    monkeypatch.setenv("NETRC", str(keys))
    assert tracking.resolve_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    assert tracking.resolve_mode("auto") == "online"
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert tracking.resolve_mode("auto") == "online"


def results() -> list[dict]:
    """Rows as a comparison leaves them: two examples, one of them dead under LCD."""
    return [
        row(method, k, accuracy, algorithm=algorithm, example=example, dead=dead)
        | ({} if dead else {"answers": [{"text": f"{method} {example}"}, {"text": "other"}]})
        | {"concepts": ["a", "b"], "unfinished": "cut" if dead else None}
        for method in ("lcd", "pgcd:H64")
        for algorithm in ("smc", "discrete")
        for k in (1, 4)
        for example, accuracy in (("0:a", 0.5), ("1:b", 1.0))
        for dead in [method == "lcd" and example == "1:b"]
    ]


def logged(directory: Path, figures: dict[str, Path] | None = None, mode: str = "offline") -> None:
    """Log a comparison, as `experiments.results.report` does."""
    rows = results()
    tracking.log(
        WandbConfig(mode=mode), directory, {"task": "xlam", "seed": 3},
        tables={"summary": as_table(summarize(rows))}, figures=figures or {},
        numbers={"reads": {1: {"median": None}}}, rows=rows,
        history=[{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}],
    )  # fmt: skip


@pytest.mark.slow("wandb starts another process")
def test_an_experiment_is_a_group_whose_arms_overlay(tmp_path, caplog):
    directory = tmp_path / "xlam-abc"
    directory.mkdir()
    figure = directory / "accuracy.png"
    Figure(figsize=(1, 1)).savefig(figure)
    for _ in range(2):  # the second time nothing is logged
        logged(directory, {"accuracy": figure})
        wandb.teardown()  # writes all there is to write
    runs = stored_runs(directory)
    assert {run.group for run in runs} == {directory.name}
    assert {(run.config["task"], run.config["seed"]) for run in runs} == {("xlam", 3)}
    assert len({run.id for run in runs}) == len(runs) == 1 + 2 * 2
    arms = {run.name: run for run in runs if run.job_type == "arm"}
    assert arms.keys() == {f"{m}/{a}" for m in ("lcd", "pgcd:H64") for a in ("smc", "discrete")}
    for name, run in arms.items():
        method, _, algorithm = name.partition("/")
        assert [point["example"] for point in run.history] == [0, 1]
        own = [r for r in results() if (r["method"], r["algorithm"]) == (method, algorithm)]
        for point, example in zip(run.history, ("0:a", "1:b"), strict=True):
            for each in (each for each in own if each["example"] == example):
                k = each["particles"]
                assert point[f"weighted_accuracy@{k}"] == each["weighted_accuracy"]
                assert point.get(f"log_evidence@{k}") == each["log_evidence"]
    (run,) = (run for run in runs if run.job_type == "overview")
    *points, shown = run.history
    assert [(point["step"], point["loss"]) for point in points] == [(1, 0.5), (2, 0.25)]
    assert run.file(shown["accuracy/path"]).read_bytes().startswith(b"\x89PNG")
    assert len(json.loads(run.file(shown["summary/path"]).read_text())["data"]) == 8
    table = json.loads(run.file(shown["rows/path"]).read_text())
    found = [dict(zip(table["columns"], values, strict=True)) for values in table["data"]]
    assert [r["example"] for r in found] == [r["example"] for r in results()]
    assert {r["concepts"] for r in found} == {'["a", "b"]'}
    assert [r["first answer"] for r in found[:2]] == ["lcd 0:a", "cut"]
    assert not [record for record in caplog.records if record.name == tracking.__name__]


def test_the_summary_of_an_arm_has_the_means_for_all_numbers_of_particles():
    summary = summarize(results())
    numbers = {tracking.name_of(each): tracking.numbers_of(each) for each in summary}
    arms = list(tracking._arms(results(), numbers))
    assert len(arms) == 4
    for names, _, means in arms:
        for record in summary:
            if (record["method"], record["algorithm"]) == (names["method"], names["algorithm"]):
                for key in ("valid", "weighted_accuracy", "seconds_each"):
                    assert means[f"{key}@{record['particles']}"] == record[key]


class FakeRun:
    """A run of a server."""

    def __init__(self) -> None:
        self.summary: dict[str, object] = {}

    def __enter__(self) -> FakeRun:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def define_metric(self, *_: object, **__: object) -> None:
        pass

    def log(self, values: dict) -> None:
        pass


def test_a_finished_run_stays_finished_despite_errors_of_wandb(monkeypatch, tmp_path, caplog):
    class Failing(FakeRun):
        def log(self, values: dict) -> None:
            raise TypeError("something of its own")

    monkeypatch.setattr(wandb, "init", lambda **_: Failing())
    logged(tmp_path)
    (warning,) = caplog.messages
    assert "TypeError: something of its own" in warning
    assert str(tmp_path) in warning


def test_who_interrupts_the_logging_interrupts_the_run(monkeypatch, tmp_path):
    def interrupted(**_: object) -> FakeRun:
        raise KeyboardInterrupt

    monkeypatch.setattr(wandb, "init", interrupted)
    with pytest.raises(KeyboardInterrupt):
        logged(tmp_path)


def test_disabled_logging_asks_nothing_of_wandb(monkeypatch, tmp_path, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it is an error
    logged(tmp_path, mode="disabled")
    assert not list(tmp_path.iterdir())
    assert not caplog.records
