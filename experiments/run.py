"""Command that runs experiments: `python -m experiments.run +task=NAME [key=value ...]`.

A run has a directory, named after a fingerprint of everything that determines its results unless
`run_dir` is given. Finished rows are kept there, and the same command resumes the run with the same
final result. Hydra's `--multirun` makes several runs.
"""

from __future__ import annotations

from pathlib import Path

from gcd._support.optional import missing

try:
    import hydra
    from omegaconf import DictConfig, OmegaConf
except ImportError as error:
    raise missing("hydra", "experiments", "the package experiments") from error

from experiments.harness.models import ROOT
from experiments.harness.processes import errors_in_one_line
from experiments.harness.records import at_most_skipped
from experiments.harness.run import ExperimentTask, run_task
from experiments.harness.settings import check_shared
from experiments.tasks import TASKS, register


def run(config: DictConfig) -> Path:
    """Run one experiment and return its directory."""
    task = task_of(config)
    check_shared(config)
    return run_task(task, config)


def run_whole(config: DictConfig) -> Path:
    """Run one experiment, and fail at its end if too many records were skipped.

    Raises:
        DataError: a larger share than `data.max_skipped` is malformed.
    """
    with at_most_skipped("data.max_skipped", config.data.max_skipped):
        return run(config)


def task_of(config: DictConfig) -> ExperimentTask:
    """Return the chosen task.

    Raises:
        ValueError: no task was chosen, or it is unknown; the message lists the known tasks.
    """
    known = ", ".join(f"+task={name}" for name in TASKS)
    if OmegaConf.is_missing(config, "task"):
        raise ValueError(f"expected a task, got none; add one of {known}")
    task = TASKS.get(OmegaConf.select(config, "task.name"))
    if task is None or OmegaConf.get_type(config.task) is not task.config:
        raise ValueError(f"expected one of {known}, got the unknown task {config.task}")
    return task


def check(config: DictConfig) -> None:
    """Check all settings; raise a `ValueError` with the invalid value and the remedy."""
    task = task_of(config)
    check_shared(config)
    task.check(config)


register()


@hydra.main(version_base="1.3", config_path=str(ROOT / "configs"), config_name="config")
def main(config: DictConfig) -> None:
    """Run the command line; see `experiments.harness.processes.errors_in_one_line`."""
    with errors_in_one_line():
        run_whole(config)


if __name__ == "__main__":
    main()
