"""The records of a run come from a file, the hub, or the repository."""

from __future__ import annotations

from pathlib import Path

from experiments.harness.config import DataConfig
from experiments.harness.models import ROOT
from experiments.harness.records import ReadResult
from experiments.tool_calling.records import ToolRecord, read_hub, read_toolcalls, read_xlam

OWN = ROOT / "data" / "xlam" / "records_500_599.jsonl"
"""Records that come with the project, on which nothing of it is trained."""


def load_records(data: DataConfig, num_examples: int) -> ReadResult[ToolRecord]:
    """Load at most `num_examples` records after `data.offset`; malformed ones are only listed."""
    wanted = data.offset + num_examples
    if data.hub is not None:
        result = read_hub(data.hub, data.split, limit=wanted)
    elif data.path is None:
        result = read_xlam(OWN)
    elif Path(data.path).suffix == ".json":
        result = read_toolcalls(data.path)
    else:
        result = read_xlam(data.path)
    return result.part(data.offset, num_examples)
