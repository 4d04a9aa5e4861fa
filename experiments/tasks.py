"""The tasks that `+task=NAME` can run, one entry each.

To add one, make a folder with its `TASK` (`experiments.harness.run.Task`) and enter it here. Its
settings need no file in `configs/`: Hydra is given the dataclass of the record.
"""

from __future__ import annotations

from hydra.core.config_store import ConfigStore

from experiments.commongen.task import TASK as COMMONGEN
from experiments.convergence.task import TASK as CONVERGENCE
from experiments.harness import config as configuration
from experiments.harness.run import Task
from experiments.json_schema.task import TASK as JSON_SCHEMA
from experiments.latency.task import TASK as LATENCY
from experiments.sql.task import TASK as SQL
from experiments.tool_calling.task import TASK as XLAM

TASKS: dict[str, Task] = {
    task.name: task for task in (XLAM, JSON_SCHEMA, COMMONGEN, SQL, CONVERGENCE, LATENCY)
}


def register() -> None:
    """Make the shared settings and those of every task known to Hydra."""
    configuration.register()
    for task in TASKS.values():
        ConfigStore.instance().store(group="task", name=task.name, node=task.config)
