"""The one command of the project: `python -m experiments.run +task=NAME [key=value ...]`.

A run has a directory, named after what determines its results unless `run_dir` says otherwise.
What is finished is kept there; the same command goes on from it, to the same final result.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

from experiments.convergence import task as convergence
from experiments.harness import config as configuration
from experiments.harness.command import errors_in_one_line
from experiments.harness.models import ROOT
from experiments.shakespeare import task as shakespeare
from experiments.tool_calling import task as tool_calling

TASKS: dict[str, Callable[[DictConfig], Path]] = {
    "xlam": tool_calling.run,
    "shakespeare": shakespeare.run,
    "convergence": convergence.run,
}


def run(config: DictConfig) -> Path:
    """Run one experiment to its end; returns its directory."""
    if OmegaConf.is_missing(config, "task"):
        raise ValueError(f"no task was chosen: add one of {', '.join(f'+task={t}' for t in TASKS)}")
    configuration.check(config)
    return TASKS[config.task.name](config)


configuration.register()


@hydra.main(version_base="1.3", config_path=str(ROOT / "configs"), config_name="config")
def main(config: DictConfig) -> None:
    """Command line; see `experiments.harness.command` for how errors are told."""
    with errors_in_one_line():
        run(config)


if __name__ == "__main__":
    main()
