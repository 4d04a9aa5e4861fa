"""The concept sets of a run come from a file, the hub, or the repository."""

from __future__ import annotations

from omegaconf import DictConfig

from experiments.commongen.records import ConceptSet, read_file, read_hub
from experiments.harness.models import ROOT
from experiments.harness.records import ReadResult

EMBEDDED = ROOT / "data" / "commongen" / "dev_100.jsonl"


def load_records(config: DictConfig) -> ReadResult[ConceptSet]:
    """Load at most `task.num_examples` sets after `data.offset`; malformed ones are only listed.

    Without `data.path` and `data.hub` they are the first 100 of CommonGen's development set.
    """
    data, task = config.data, config.task
    if data.hub is not None:
        result = read_hub(data.hub, data.split, task.inflections)
    else:
        result = read_file(data.path or EMBEDDED, task.inflections)
    return result.part(data.offset, task.num_examples)
