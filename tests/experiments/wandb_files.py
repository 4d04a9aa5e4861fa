"""Reader for the files of an offline wandb run, independent of wandb's own reader.

A `.wandb` file is a header of seven bytes and a log as LevelDB writes it, in blocks of 32 KiB. They
contain pieces of records, each with a checksum (4 bytes), a length (2) and a type (1: whole, 2:
first, 3: middle, 4: last). A record is a message of wandb's protocol.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

_HEADER, _BLOCK, _PIECE = 7, 32 * 1024, 7
_WHOLE, _LAST = 1, 4


@dataclass
class StoredRun:
    """One run: its names, its configuration and the rows of its history."""

    path: Path
    id: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    def file(self, name: str) -> Path:
        """Give a file that was logged, such as a table."""
        return self.path.parent / "files" / name


def stored_runs(run_dir: Path) -> list[StoredRun]:
    """Read all finished runs of a run directory."""
    return [_read(path) for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb"))]


def _written(path: Path) -> list[Any]:
    """Return the records of a run; wandb 0.19 may write the last of them after `finish`."""
    for wait in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30):
        content = path.read_bytes()
        found = [wandb_internal_pb2.Record.FromString(data) for data in _records(content)]
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        time.sleep(wait)
    raise AssertionError(f"{path} has no end: {len(found)} records")


def _read(path: Path) -> StoredRun:
    found = StoredRun(path)
    for record in _written(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.id, found.name = record.run.run_id, record.run.display_name
            found.group, found.job_type = record.run.run_group, record.run.job_type
            found.config |= _items(record.run.config.update)
        elif kind == "history":
            found.history.append(_items(record.history.item))
    return found


def _items(items: Any) -> dict[str, Any]:
    named = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
    return {key: value for key, value in named.items() if not key.startswith("_")}


def _records(content: bytes) -> Iterator[bytes]:
    assert content.startswith(b":W&B") or not content
    place, parts = _HEADER, b""
    while place + _PIECE <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _PIECE:  # too little for another piece
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + _PIECE : place + _PIECE + length]
        place += _PIECE + length
        if kind in (_WHOLE, _LAST):
            yield parts
            parts = b""
