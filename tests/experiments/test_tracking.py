"""Logging to wandb: offline without a login, and never a question."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import wandb
from matplotlib.figure import Figure

from experiments import tracking
from experiments.config import WandbConfig
from experiments.tables import as_table, summarize
from tests.experiments.rows import row


def test_auto_is_online_with_a_login_only(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    keys = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(keys))
    assert tracking.resolve_mode("auto") == "offline"
    assert tracking.resolve_mode("disabled") == "disabled"
    keys.write_text("machine wandb.example login user password secret\n")
    keys.chmod(0o600)
    assert tracking.resolve_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    assert tracking.resolve_mode("auto") == "online"
    keys.unlink()
    assert tracking.resolve_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert tracking.resolve_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert tracking.resolve_mode("auto") == "disabled"
    assert tracking.resolve_mode("offline") == "offline"


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
    rows, summary = results(), summarize(results())
    tracking.log(
        WandbConfig(mode=mode), directory, {"task": "xlam", "seed": 3},
        tables={"summary": as_table(summary)}, figures=figures or {},
        numbers={tracking.name_of(each): tracking.numbers_of(each) for each in summary}, rows=rows,
        history=[{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}],
    )  # fmt: skip


INIT = wandb.init


class Watched:
    """A run of wandb, and what it is given."""

    def __init__(self, **names: Any) -> None:
        self.names, self.points, self.run = names, [], INIT(**names)
        self.means: dict[str, Any] = {}
        self.summary = self

    def __enter__(self) -> Watched:
        self.run.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.run.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)

    def log(self, point: dict[str, Any]) -> None:
        self.points.append(point)
        self.run.log(point)

    def update(self, means: dict[str, Any]) -> None:
        self.means |= means
        self.run.summary.update(means)


@pytest.mark.slow("wandb starts another process")
def test_an_experiment_is_a_group_whose_arms_overlay(tmp_path, caplog, monkeypatch):
    directory = tmp_path / "xlam-abc"
    directory.mkdir()
    figure = directory / "accuracy.png"
    Figure(figsize=(1, 1)).savefig(figure)
    runs: list[Watched] = []

    def init(**names: Any) -> Watched:
        runs.append(Watched(**names))
        return runs[-1]

    monkeypatch.setattr(wandb, "init", init)
    for _ in range(2):  # the second time nothing is logged
        logged(directory, {"accuracy": figure})
    numbers = {"reads": {1: {"median": None}}}  # wandb needs keys that are text
    tracking.log(WandbConfig(mode="offline"), tmp_path, {}, tables={}, figures={}, numbers=numbers)
    assert (runs[-1].names["job_type"], runs[-1].points) == ("overview", [])
    assert runs.pop().means == {"reads": {"1": {"median": None}}}
    wandb.teardown()  # writes all there is to write
    assert not [record for record in caplog.records if record.name == tracking.__name__]
    assert len(runs) == len([*directory.glob("wandb/offline-run-*/*.wandb")]) == 1 + 2 * 2
    assert {run.names["group"] for run in runs} == {directory.name}
    assert {(r.names["config"]["task"], r.names["config"]["seed"]) for r in runs} == {("xlam", 3)}
    arms = {run.names["name"]: run for run in runs if run.names["job_type"] == "arm"}
    assert arms.keys() == {f"{m}/{a}" for m in ("lcd", "pgcd:H64") for a in ("smc", "discrete")}
    for name, run in arms.items():
        method, _, algorithm = name.partition("/")
        assert [point["example"] for point in run.points] == [0, 1]
        own = [r for r in results() if (r["method"], r["algorithm"]) == (method, algorithm)]
        for point, example in zip(run.points, ("0:a", "1:b"), strict=True):
            for each in (each for each in own if each["example"] == example):
                k = each["particles"]
                assert point[f"weighted_accuracy@{k}"] == each["weighted_accuracy"]
                assert point.get(f"log_evidence@{k}") == each["log_evidence"]
        for record in summarize(own):
            for key in ("valid", "weighted_accuracy", "seconds_each"):
                assert run.means[f"{key}@{record['particles']}"] == record[key]
    (run,) = (run for run in runs if run.names["job_type"] == "overview")
    *points, shown = run.points
    assert [(point["step"], point["loss"]) for point in points] == [(1, 0.5), (2, 0.25)]
    assert shown["accuracy"].format == "png"
    assert len(shown["summary"].data) == 8
    found = [dict(zip(shown["rows"].columns, row, strict=True)) for row in shown["rows"].data]
    assert [r["example"] for r in found] == [r["example"] for r in results()]
    assert {r["concepts"] for r in found} == {'["a", "b"]'}
    assert [r["first answer"] for r in found[:2]] == ["lcd 0:a", "cut"]


@pytest.mark.parametrize("error", [TypeError("an error inside of wandb"), KeyboardInterrupt()])
def test_a_finished_run_stays_finished_despite_errors_of_wandb(
    monkeypatch, tmp_path, caplog, error
):
    """But who interrupts the logging interrupts the run."""

    def fails(**_: object) -> None:
        raise error

    monkeypatch.setattr(wandb, "init", fails)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            logged(tmp_path)
    else:
        logged(tmp_path)
        (warning,) = caplog.messages
        assert "TypeError: an error inside of wandb" in warning
        assert str(tmp_path) in warning


def test_disabled_logging_asks_nothing_of_wandb(monkeypatch, tmp_path, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it is an error
    logged(tmp_path, mode="disabled")
    assert not list(tmp_path.iterdir())
    assert not caplog.records
