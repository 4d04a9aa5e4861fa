"""Several runs by one command: their directories, their failures, what is made of them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import joblib
import pandas as pd
import pytest
from filelock import FileLock
from hydra import compose, initialize_config_dir

from experiments import run as experiment
from experiments.harness.methods import METHODS
from experiments.harness.models import ROOT
from experiments.report.directory import read_run
from experiments.sweeps import conclude
from experiments.tasks import TASKS
from gcd.support.files import write_json
from tests.experiments import toy

TOY = ("+task=toy", "wandb=disabled", "model.device=cpu", "task.methods=[gcd]")


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    """A toy task, and a folder for what is written."""
    monkeypatch.setitem(TASKS, toy.TASK.name, toy.TASK)
    monkeypatch.setitem(METHODS, "sharp", toy.SHARP)
    toy.install()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def sweep(monkeypatch, *overrides: str) -> int:
    """Give the command; returns its exit status."""
    monkeypatch.setattr(sys, "argv", ["experiments.run", "--multirun", *overrides])
    try:
        experiment.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def outcomes() -> tuple[Path, list[dict]]:
    """The directory of the only sweep, and what its runs noted."""
    [directory] = Path("runs").glob("sweep-*")
    paths = sorted(directory.glob("[0-9]*.json"))
    return directory, [json.loads(path.read_text()) for path in paths]


def test_a_failed_run_is_named_and_the_others_go_on(monkeypatch, capsys):
    given = (*TOY, "task.words=2,0", "task.particles=[1],[8]", "seed=0,1")
    assert sweep(monkeypatch, *given) == 1
    directory, ended = outcomes()
    printed = capsys.readouterr().out
    assert "4 of 8 runs have finished:" in printed
    failed = [each for each in ended if "error" in each]
    assert len(failed) == 4
    assert all("task.words=0" in each["settings"] for each in failed)
    assert (
        "  task.words=0 task.particles=[8] seed=1: failed: task.words must be at least 1" in printed
    )
    finished = [each["directory"] for each in ended if "directory" in each]
    assert len(set(finished)) == 4  # seeds and particles each have their own
    for each in ended:
        if "directory" in each:
            identity = read_run(Path(each["directory"])).identity
            assert f"seed={identity['seed']}" in each["settings"]
            assert f"task.particles={identity['task']['particles']}" in each["settings"]
    assert f"python -m experiments.compare {' '.join(finished)}" in printed
    assert len(pd.read_csv(directory / "rows.csv")) == 4 * 2
    assert (directory / "report.html").exists()
    # Nothing else is left behind.
    assert sorted(Path().iterdir()) == [Path("runs")]
    assert sorted(Path("runs").iterdir()) == sorted([directory, *map(Path, finished)])


def test_runs_of_several_tasks_are_told_and_not_compared(capsys, tmp_path):
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
    assert "They are not compared: " in printed
    assert "compare runs of one task" in printed


@pytest.mark.slow
def test_runs_side_by_side_share_the_cores_and_print_into_files(monkeypatch, capfd):
    given = (*TOY, "task.words=1,0", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert sweep(monkeypatch, *given) == 1
    directory, (good, bad) = outcomes()
    assert 2 * good["threads"] <= max(2, joblib.cpu_count())
    assert read_run(Path(good["directory"])).identity["task"]["words"] == 1
    assert bad["error"].startswith("task.words must be at least 1")
    printed = capfd.readouterr()
    assert "sampling" not in printed.err
    assert f"#0 {good['directory']}\n" in printed.out
    log = (directory / "0.log").read_text()
    assert "sampling: 100%" in log
    assert "Results:" in log
    assert "error: task.words must be at least 1" in (directory / "1.log").read_text()
    assert f"({directory / '1.log'})" in printed.out


def test_slurm_is_asked_for_what_the_file_says(monkeypatch, tmp_path, capsys):
    """The programs of a cluster are there, and the second refuses what it is given."""
    programs, asked = tmp_path / "bin", tmp_path / "asked.sh"
    programs.mkdir()
    for name, does in [("srun", "true"), ("sbatch", f'cp "$1" {asked}; false')]:
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    given = (*TOY, "seed=0,1", "hydra/launcher=slurm", "hydra.launcher.partition=fast")
    assert sweep(monkeypatch, *given) == 1
    lines = asked.read_text().splitlines()
    for line in [
        "#SBATCH --array=0-1%16",
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


def test_two_commands_do_not_write_into_one_directory(tmp_path):
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = compose("config", [*TOY, f"run_dir={tmp_path / 'run'}"])
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".lock"), pytest.raises(ValueError, match="another command"):
        experiment.run(config)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    assert experiment.run(config) == experiment.run(config) == tmp_path / "run"
