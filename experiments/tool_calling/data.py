"""The records of a run come from a file, the hub, or the embedded generator."""

from __future__ import annotations

from pathlib import Path

from experiments.harness.config import DataConfig
from experiments.harness.records import ReadResult
from experiments.tool_calling.generator import generate
from experiments.tool_calling.records import ToolRecord, read_hub, read_toolcalls, read_xlam


def load_records(data: DataConfig, num_examples: int, seed: int) -> ReadResult[ToolRecord]:
    """Load at most `num_examples` records after `data.offset`; malformed ones are only listed.

    The generator is asked for its held-out tools and values, which its model never saw.
    """
    wanted = data.offset + num_examples
    if data.hub is not None:
        result = read_hub(data.hub, data.split, limit=wanted)
    elif data.path is None:
        result = ReadResult(tuple(generate(wanted, seed, split="held_out")), ())
    elif Path(data.path).suffix == ".json":
        result = read_toolcalls(data.path)
    else:
        result = read_xlam(data.path)
    return result.part(data.offset, num_examples)
