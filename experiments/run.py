"""The one command of the project: `python -m experiments.run +task=NAME [key=value ...]`.

A run has a directory, named after what determines its results unless `run_dir` says otherwise.
What is finished is kept there; the same command goes on from it, to the same final result.
With `--multirun` it makes several runs (`experiments.sweeps`).
"""

from __future__ import annotations

from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

from experiments.harness.models import ROOT
from experiments.harness.processes import errors_in_one_line
from experiments.harness.records import at_most_skipped
from experiments.harness.run import ExperimentTask, run_task
from experiments.harness.settings import check_shared
from experiments.sweeps import run_one, sweeping
from experiments.tasks import TASKS, register


def run(config: DictConfig) -> Path:
    """Run one experiment to its end; returns its directory."""
    task = task_of(config)
    check_shared(config)
    return run_task(task, config)


def run_whole(config: DictConfig) -> Path:
    """Run one experiment as `run` does, and fail at its end if too many records were skipped.

    Raises:
        DataError: more than the share `data.max_skipped` of them is malformed.
    """
    with at_most_skipped("data.max_skipped", config.data.max_skipped):
        return run(config)


def task_of(config: DictConfig) -> ExperimentTask:
    """Find the task that was chosen.

    Raises:
        ValueError: none was, or one that is not known; the message lists those that are.
    """
    known = ", ".join(f"+task={name}" for name in TASKS)
    if OmegaConf.is_missing(config, "task"):
        raise ValueError(f"no task was chosen: add one of {known}")
    task = TASKS.get(OmegaConf.select(config, "task.name"))
    if task is None or OmegaConf.get_type(config.task) is not task.config:
        raise ValueError(f"unknown task {config.task}: add one of {known}")
    return task


def check(config: DictConfig) -> None:
    """Refuse settings that no run could honour: `ValueError` with the value and what to give."""
    task = task_of(config)
    check_shared(config)
    task.check(config)


register()


@hydra.main(version_base="1.3", config_path=str(ROOT / "configs"), config_name="config")
def main(config: DictConfig) -> None:
    """Run the command line; see `experiments.harness.processes` for how errors are reported."""
    with errors_in_one_line():
        if sweeping():
            run_one(run_whole, config)
        else:
            run_whole(config)


if __name__ == "__main__":
    main()
