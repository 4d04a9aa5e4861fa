"""Logging to wandb: offline without a login, and never a question."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path

import pytest
import wandb

from experiments.harness import tracking
from experiments.harness.config import WandbConfig
from experiments.harness.figures import plot_comparison
from experiments.tables import Group, as_table, summarize
from tests.experiments.harness.test_summary import row
from tests.experiments.wandb_files import StoredRun, stored_runs


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
    """Log a comparison, as `harness.comparison.report` does."""
    rows = results()
    summary = summarize(rows)
    shared = {"task": "xlam", "model": "m", "seed": 3, "settings": {"seed": 3}}
    tracking.Experiment(WandbConfig(mode=mode), directory, {"seed": 3}, shared).log(
        lambda run: tracking.log_shown(run, {"table": as_table(summary)}, figures or {}),
        tracking.split_arms(summary, rows, {"pgcd:H64": 64}),
    )


@pytest.fixture(scope="module")
def offline(tmp_path_factory) -> tuple[Path, list[StoredRun]]:
    """A comparison logged without a server, and what is in the files."""
    directory = tmp_path_factory.mktemp("runs") / "xlam-abc"
    directory.mkdir()
    figures = {name: directory / f"{name}.png" for name in ("accuracy", "reads")}
    summary = summarize(results())
    for name, path in figures.items():
        plot_comparison(name, summary, path, "a title", "settings")
    logged(directory, figures)
    wandb.teardown()  # writes all there is to write
    return directory, stored_runs(directory)


@pytest.mark.slow
def test_every_arm_and_number_of_particles_is_a_run_of_one_group(offline):
    directory, runs = offline
    arms = [run for run in runs if run.job_type == "arm"]
    assert {run.group for run in runs} == {directory.name}
    assert [run.name for run in runs if run.job_type == "overview"] == [directory.name]
    assert len({run.id for run in runs}) == len(runs) == 1 + 2 * 2 * 2
    named = {(r.config["method"], r.config["algorithm"], r.config["k"]): r for r in arms}
    assert named.keys() == set(product(("lcd", "pgcd:H64"), ("smc", "discrete"), (1, 4)))
    expected = {
        (group.arm.method, group.arm.algorithm, group.particles): record
        for record in summarize(results())
        for group in [Group.of(record)]
    }
    for key, run in named.items():
        method, algorithm, k = key
        assert run.name == f"{method}/{algorithm}@{k}"
        assert run.config["arm"] == f"{method}/{algorithm}"
        assert run.config["H"] == (64 if method == "pgcd:H64" else None)
        shared = {name: run.config[name] for name in ("task", "model", "seed", "settings")}
        assert shared == {"task": "xlam", "model": "m", "seed": 3, "settings": {"seed": 3}}
        [point] = run.history
        assert point["k"] == k
        for measure in ("weighted_accuracy", "valid", "log_evidence", "seconds_each"):
            assert point[measure] == pytest.approx(expected[key][measure])
        assert ("ess_fraction" in point) == (algorithm == "smc")  # a pool has none


@pytest.mark.slow
def test_tables_of_all_arms_have_the_same_columns_and_join_by_example(offline):
    _, runs = offline
    tables = {
        run.name: json.loads(run.file(run.history[0]["outcomes/path"]).read_text())
        for run in runs
        if run.job_type == "arm"
    }
    columns = tables["lcd/smc@1"]["columns"]
    assert columns[0] == "example"
    assert {"answer", "valid", "weighted_accuracy", "log_evidence"} <= set(columns)
    assert "answers" not in columns
    for name, table in tables.items():
        assert table["columns"] == columns
        rows = [dict(zip(columns, values, strict=True)) for values in table["data"]]
        assert [r["example"] for r in rows] == ["0:a", "1:b"]
        assert [r["weighted_accuracy"] for r in rows] == [0.5, 1.0]
        assert [r["concepts"] for r in rows] == ['["a", "b"]'] * 2
        method = name.partition("/")[0]
        last = "cut" if method == "lcd" else f"{method} 1:b"
        assert [r["answer"] for r in rows] == [f"{method} 0:a", last]
        assert (rows[1]["log_evidence"] is None) == rows[1]["dead"] == (method == "lcd")


@pytest.mark.slow
def test_the_overview_has_table_and_figures(offline):
    _, runs = offline
    [overview] = [run for run in runs if run.job_type == "overview"]
    [point] = overview.history
    for name in ("accuracy", "reads"):
        assert overview.file(point[f"{name}/path"]).read_bytes().startswith(b"\x89PNG")
    assert len(json.loads(overview.file(point["table/path"]).read_text())["data"]) == 8


@pytest.mark.slow
def test_logging_again_replaces_unsynced_data_and_keeps_synced_data(offline):
    directory, before = offline
    synced = before[0]
    synced.path.with_name(f"{synced.path.name}.synced").touch()  # as `wandb sync` marks it
    logged(directory)
    wandb.teardown()
    after = stored_runs(directory)
    assert sorted(run.id for run in after) == sorted(run.id for run in before)
    kept = {run.path for run in after} & {run.path for run in before}
    assert synced.path in kept
    for run in after:
        assert len(run.history) == 1


class FakeRun:
    """A run that a server has resumed, perhaps with results."""

    def __init__(self, starting_step: int) -> None:
        self.starting_step = starting_step
        self.logged: list[dict] = []

    def __enter__(self) -> FakeRun:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def define_metric(self, *_: object, **__: object) -> None:
        pass

    def log(self, values: dict) -> None:
        self.logged.append(values)


def test_online_a_run_is_resumed_under_the_same_id_and_logged_once(monkeypatch, tmp_path):
    runs: dict[str, FakeRun] = {}

    def init(*, id: str, mode: str, resume: str, **_: object) -> FakeRun:
        assert (mode, resume) == ("online", "allow")
        runs[id] = FakeRun(len(runs[id].logged)) if id in runs else FakeRun(0)
        return runs[id]

    monkeypatch.setattr(wandb, "init", init)
    logged(tmp_path, mode="online")
    assert len(runs) == 9
    assert all(len(run.logged) == 1 for run in runs.values())
    logged(tmp_path, mode="online")
    assert len(runs) == 9
    assert not any(run.logged for run in runs.values())


def test_a_server_that_cannot_be_reached_is_asked_once(monkeypatch, tmp_path):
    modes = []

    def init(*, mode: str, **_: object) -> FakeRun:
        modes.append(mode)
        if mode == "online":
            raise wandb.errors.CommError("no route")
        return FakeRun(0)

    monkeypatch.setattr(wandb, "init", init)
    logged(tmp_path, mode="online")
    assert modes == ["online"] + ["offline"] * 9


@pytest.mark.slow  # wandb starts another process
def test_a_summary_with_numbers_for_keys_is_logged_as_json_has_it(tmp_path, caplog):
    values = {"headline": {"reads": {"own": {1: {"median": 0.5}, 16: {"median": None}}}}}
    found = []

    def overview(run: wandb.Run) -> None:
        tracking.log_summary(run, values)
        found.append(run.summary["headline"]["reads"]["own"]["16"])

    settings = WandbConfig(mode="offline")
    tracking.Experiment(settings, tmp_path, {"seed": 0}, {}).log(overview)
    assert [dict(value) for value in found] == [{"median": None}]
    assert not [record for record in caplog.records if record.name == tracking.__name__]


def test_a_finished_run_stays_finished_despite_errors_of_wandb(monkeypatch, tmp_path, caplog):
    class Failing(FakeRun):
        def log(self, values: dict) -> None:
            raise TypeError("something of its own")

    monkeypatch.setattr(wandb, "init", lambda **_: Failing(0))
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
