"""Registry of the tasks that `+task=NAME` can run.

To add a task, define its `TASK` (`experiments.harness.run.ExperimentTask`) in its own folder
and list it here. Its settings don't need a file in `configs/`: Hydra gets the dataclass.
"""

from __future__ import annotations

from hydra.core.config_store import ConfigStore

from experiments.commongen.task import TASK as COMMONGEN
from experiments.exact.task import TASK as CONVERGENCE
from experiments.harness import config as configuration
from experiments.harness.run import ExperimentTask
from experiments.json_schema.task import TASK as JSON_SCHEMA
from experiments.sql.task import TASK as SQL
from experiments.studies.latency.task import TASK as LATENCY
from experiments.tool_calling.task import TASK as XLAM

TASKS: dict[str, ExperimentTask] = {
    task.name: task for task in (XLAM, JSON_SCHEMA, COMMONGEN, SQL, CONVERGENCE, LATENCY)
}


def register() -> None:
    """Register the shared settings and the settings of every task with Hydra."""
    configuration.register()
    for task in TASKS.values():
        ConfigStore.instance().store(group="task", name=task.name, node=task.config)
