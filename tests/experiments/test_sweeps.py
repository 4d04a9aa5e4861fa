"""Several runs by one command: their directories, their failures, what is made of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import joblib
import pandas as pd
import pytest
from filelock import FileLock

from experiments import run as experiment
from experiments.harness.methods import METHODS
from experiments.harness.models import ROOT
from experiments.report.directory import read_run
from experiments.sweeps import conclude
from experiments.tasks import TASKS
from gcd._support.files import write_json
from tests import processes
from tests.experiments import composing, toy

TESTS = ROOT / "tests"
TOY = ("+task=toy", "wandb=disabled", "model.device=cpu", "task.methods=[gcd]")
REAL = (
    "+task=xlam", "wandb=disabled", "model.device=cpu", f"model.path={TESTS}/models/stories260K",
    f"data.path={TESTS}/experiments/requests.jsonl", "task.num_examples=1", "task.particles=[2]",
    "task.budget=tight", "task.max_calls=1", "task.styles=[python]",
)  # fmt: skip


@pytest.fixture
def _toys(monkeypatch):
    """The toy task is known to this process, too."""
    monkeypatch.setitem(TASKS, toy.TASK.name, toy.TASK)
    monkeypatch.setitem(METHODS, "sharp", toy.SHARP)
    toy.install()


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def sweep(*overrides: str) -> subprocess.CompletedProcess[str]:
    """Give the command, which knows the toy task as well."""
    command = ("-m", "tests.experiments.toy", "--multirun", *overrides)
    return processes.run(*command, cwd=Path.cwd())


def outcomes() -> tuple[Path, list[dict]]:
    """The directory of the only sweep, and what its runs noted."""
    [directory] = Path("runs").glob("sweep-*")
    paths = sorted(directory.glob("[0-9]*.json"))
    return directory, [json.loads(path.read_text()) for path in paths]


@pytest.mark.slow
def test_a_failed_run_is_named_and_the_others_go_on():
    given = (*TOY, "task.words=2,0", "task.particles=[8]", "seed=0,1")
    done = sweep(*given)
    assert done.returncode == 1, done.stderr
    directory, ended = outcomes()
    printed = done.stdout
    assert "2 of 4 runs have finished:" in printed
    failed = [each for each in ended if "error" in each]
    assert len(failed) == 2
    assert all("task.words=0" in each["settings"] for each in failed)
    assert "  task.words=0 seed=1: failed: expected task.words to be at least 1" in printed
    finished = [each["directory"] for each in ended if "directory" in each]
    assert len(set(finished)) == 2  # each seed has its own
    for each in ended:
        if "directory" in each:
            identity = read_run(Path(each["directory"])).identity
            assert f"seed={identity['seed']}" in each["settings"]
    assert f"python -m experiments.compare {' '.join(finished)}" in printed
    assert len(pd.read_csv(directory / "rows.csv")) == 2 * 2
    assert (directory / "report.html").exists()
    # Nothing else is left behind.
    assert sorted(Path().iterdir()) == [Path("runs")]
    assert sorted(Path("runs").iterdir()) == sorted([directory, *map(Path, finished)])


def test_runs_of_several_tasks_are_reported_and_not_compared(capsys, tmp_path):
    for number, task in enumerate(("toy", "other")):
        run = tmp_path / task
        run.mkdir()
        (run / "table.md").write_text("none")
        write_json({"task": task, "form": 1}, run / "run.json")
        for name in ("identity", "summary"):
            write_json({}, run / f"{name}.json")
        settings = ["seed=0", f"+task={task}"]
        write_json({"settings": settings, "directory": str(run)}, tmp_path / f"{number}.json")
    assert conclude(tmp_path)
    printed = capsys.readouterr().out
    assert f"  +task=toy: {tmp_path / 'toy'}" in printed
    assert "The runs can't be compared: " in printed
    assert "expected runs of one task" in printed


@pytest.mark.slow("two processes of joblib import everything")
def test_runs_side_by_side_share_the_cores_and_print_into_files():
    launched = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    done = sweep(*REAL, "task.methods=[gcd],[nix]", *launched)
    assert done.returncode == 1, done.stderr
    directory, (good, bad) = outcomes()
    assert 2 * good["threads"] <= max(2, joblib.cpu_count())
    assert read_run(Path(good["directory"])).identity["task"]["methods"] == ["gcd"]
    assert bad["error"].endswith("got 'nix'")
    assert "sampling" not in done.stderr
    assert f"#0 {good['directory']}\n" in done.stdout
    log = (directory / "0.log").read_text()
    assert "sampling: 100%" in log
    assert "Results:" in log
    assert "got 'nix'" in (directory / "1.log").read_text()
    assert f"({directory / '1.log'})" in done.stdout


@pytest.mark.slow
def test_slurm_gets_the_resources_of_the_file(monkeypatch, tmp_path):
    """The programs of a cluster are there, and the second refuses what it is given."""
    programs, asked = tmp_path / "bin", tmp_path / "asked.sh"
    programs.mkdir()
    for name, does in [("srun", "true"), ("sbatch", f'cp "$1" {asked}; false')]:
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    given = (*TOY, "seed=0,1", "hydra/launcher=slurm", "hydra.launcher.partition=fast")
    assert sweep(*given).returncode == 1
    lines = asked.read_text().splitlines()
    for line in [
        "#SBATCH --array=0-1%2",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --gpus-per-node=1",
        "#SBATCH --mem=32GB",
        "#SBATCH --partition=fast",
        "#SBATCH --time=240",
        "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK",
    ]:
        assert line in lines
    [output] = [line for line in lines if line.startswith("#SBATCH --output=")]
    [directory] = Path("runs").glob("sweep-*")
    assert str(directory / "jobs") in output


@pytest.mark.usefixtures("_toys")
def test_two_commands_do_not_write_into_one_directory(tmp_path):
    config = composing.composed(*TOY, f"run_dir={tmp_path / 'run'}")
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".lock"), pytest.raises(ValueError, match="no other command"):
        experiment.run(config)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    assert experiment.run(config) == experiment.run(config) == tmp_path / "run"
