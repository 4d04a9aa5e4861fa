"""Command that runs experiments: `python -m experiments.run +task=NAME [key=value ...]`.

A run has a directory, named after a fingerprint of everything that determines its results unless
`run_dir` is given. Finished rows are kept there, and the same command resumes the run with the same
final result. Hydra's `--multirun` makes several runs.

To add a task, define its `TASK` (`experiments.tasks.ExperimentTask`) in its own folder and list it
in `TASKS`. Its settings don't need a file in `configs/`: Hydra gets the dataclass.
"""

from __future__ import annotations

import math
from pathlib import Path

from gcd._support.optional import missing

try:
    import hydra
    from hydra.core.config_store import ConfigStore
    from omegaconf import DictConfig, OmegaConf
except ImportError as error:
    raise missing("hydra", "experiments", "the package experiments") from error

from experiments import config as configuration
from experiments.arms import check_arms
from experiments.commongen.task import TASK as COMMONGEN
from experiments.config import (
    Config,
    TraceConfig,
    at_least,
    check_model,
    inside,
    one_of,
    refuse_unused,
)
from experiments.evaluate import at_most_skipped
from experiments.exact.task import TASK as CONVERGENCE
from experiments.json_schema.task import TASK as JSON_SCHEMA
from experiments.latency import TASK as LATENCY
from experiments.models import ROOT
from experiments.sql.task import TASK as SQL
from experiments.tasks import ExperimentTask, errors_in_one_line, run_task
from experiments.tool_calling.task import TASK as XLAM
from experiments.vllm_model import check_engine
from smc._inference.arguments import COLDEST

TASKS: dict[str, ExperimentTask] = {
    task.name: task for task in (XLAM, JSON_SCHEMA, COMMONGEN, SQL, CONVERGENCE, LATENCY)
}
MOST_TRACED = 4096
"""Maximum number of particles of one trial to trace, over all examples; 20 MB at 60 tokens."""


def run(config: DictConfig) -> Path:
    """Run one experiment and return its directory."""
    task = task_of(config)
    check_shared(config)
    return run_task(task, config)


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


def check_shared(config: DictConfig) -> None:
    """Check every shared setting, including the methods and algorithms of the task."""
    check_model(config)
    check_arms(config)
    at_least("data.offset", config.data.offset, 0)
    share = config.data.max_skipped
    inside("data.max_skipped", share, "[0, 1]", 0 <= share <= 1)
    if config.data.path and config.data.hub:
        raise ValueError("expected data.path or data.hub, got both; leave one out")
    at_least("smc.max_rows", config.smc.max_rows, 1)
    temperature = config.smc.temperature
    good = temperature >= COLDEST and math.isfinite(temperature)
    inside("smc.temperature", temperature, f"[{COLDEST:g}, infinity)", good)
    one_of("smc.execution", config.smc.execution, ("auto", "static"))
    _check_trace(config)
    if config.model.engine == "vllm":
        check_engine(config)


def _check_trace(config: DictConfig) -> None:
    """Check `trace.*`."""
    if "num_examples" not in config.task:
        keys = [f"trace.{name}" for name in TraceConfig.__dataclass_fields__]
        refuse_unused(
            config, Config, keys, f"+task={config.task.name} doesn't write traces; leave it out"
        )
    at_least("trace.examples", config.trace.examples, 0)
    at_least("trace.particles", config.trace.particles, 1)
    size = config.trace.examples * config.trace.particles
    inside(
        "trace.examples times trace.particles",
        size,
        f"[0, {MOST_TRACED}], as traces would be too large: give fewer of either",
        size <= MOST_TRACED,
    )


def register() -> None:
    """Register the shared settings and the settings of every task with Hydra."""
    configuration.register()
    for task in TASKS.values():
        ConfigStore.instance().store(group="task", name=task.name, node=task.config)


register()


@hydra.main(version_base="1.3", config_path=str(ROOT / "configs"), config_name="config")
def main(config: DictConfig) -> None:
    """Run the command line; see `experiments.tasks.errors_in_one_line`."""
    with errors_in_one_line(), at_most_skipped("data.max_skipped", config.data.max_skipped):
        run(config)


if __name__ == "__main__":
    main()
