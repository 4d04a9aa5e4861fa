"""Rows of results on disk, and the identity of a run.

A row is one example under one method, algorithm and number of particles, and possibly one of
several repetitions. Rows are flushed to disk one by one, so an interrupted run loses at most the
row being written. A truncated last line is dropped when the file is read.

The identity of a run is everything that determines its results; a fingerprint of it names the run
directory. Seeds are derived from their purpose (`derive_seed`), never from a shared state.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from experiments.arms import names_of_hmms, unread

REPORT = "report.html"
"""The page of a run."""
LOGGED = "wandb/logged"
"""The file of a run directory that tells that its results are in wandb."""

Identity = dict[str, Any]
_PLACES = {
    "model": ("path",),
    "hmm": ("path", "paths"),
    "data": ("path",),
    "records": ("path",),
    "task": ("problems", "hmm"),
}


def fingerprint(identity: Any) -> str:
    """Compute a digest of plain values, such as a run's identity: ten hexadecimal digits."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]


def without_places(identity: Identity) -> Identity:
    """Remove the paths of models, HMMs and records from an identity.

    The identity also has digests of the files, and hub names.
    """
    kept = dict(identity)
    for group, places in _PLACES.items():
        if isinstance(kept.get(group), dict):
            settings = kept[group].items()
            kept[group] = {k: v for k, v in settings if k.partition(".")[0] not in places}
    return kept


def plain(config: DictConfig) -> Identity:
    """Convert the configuration to plain values."""
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


_NOT_RESULTS = (
    "trace", "wandb", "run_dir", "resume", "data.max_skipped", "task.reference", "smc.max_rows",
    "hmm.max_table_mib", "model.device", "model.device_map", "model.prompt_mib",
    "model.engine_args", "model.adapter",  # the files of the adapter count, not its path
)  # fmt: skip


def results_config(config: DictConfig) -> Identity:
    """Return the part of the configuration that determines the results, as plain values.

    It excludes logging, traces, batching, the device and memory limits, and also settings that no
    method or algorithm of the run uses.
    """
    values, named = plain(config), names_of_hmms(config)
    if named:
        paths = values["hmm"].pop("paths")
        values["hmm"] |= {f"paths.{name}": paths[name] for name in named if name}
    ignored = [*_NOT_RESULTS, *unread(config), *(["hmm"] if not named else [])]
    if config.model.engine == "transformers":
        ignored.append("model.chunk")
    for key in ignored:
        group, _, option = key.partition(".")
        (values[group] if option else values).pop(option or group, None)
    return {key: value for key, value in values.items() if value != {}}


Row = dict[str, Any]


class Key(NamedTuple):
    """Key of a row, unique within a run.

    Attributes:
        example: name of the example.
        method: key of `METHODS`, optionally with the name of an HMM, or what the task compares.
        algorithm: key of `ALGORITHMS`; "smc" if the task doesn't compare algorithms.
        particles: N.
        repeat: number of the repetition.
    """

    example: str
    method: str
    algorithm: str
    particles: int
    repeat: int = 0

    @property
    def named(self) -> Row:
        """The key as columns of a row, without `repeat`."""
        return {name: getattr(self, name) for name in KEYED}


KEYED = ("example", "method", "algorithm", "particles")
"""Key columns that every row has; `repeat` is optional."""


def key_of(row: Row) -> Key:
    """Return the key of a row."""
    names = row["example"], row["method"], row["algorithm"]
    return Key(*names, row["particles"], row.get("repeat", 0))


def as_lines(rows: Iterable[Any]) -> str:
    """Format values as JSON lines."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


class ResultStore:
    """The complete rows of one run directory, in `results.jsonl`; `merge` sorts them.

    Args:
        run_dir: directory of the file.

    Raises:
        ValueError: a line of a file isn't a row.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.path = run_dir / "results.jsonl"
        self._rows: dict[Key, Row] = {}
        if self.path.exists():
            self._rows = {key_of(row): row for row in reversed(read_rows(self.path))}
            drop_partial_line(self.path)

    def __contains__(self, key: Key) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows, and flush them to the device.

        Raises:
            OSError: they can't be written; on a full disk the message names the file.
        """
        written: dict[Key, Row] = {}
        with naming_full_disk(self.path), self.path.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(as_lines([row]))
                written[key_of(row)] = row
            file.flush()
            os.fsync(file.fileno())
        self._rows |= written

    def rows(self, keys: Iterable[Key]) -> list[Row]:
        """Return the rows with the given keys, in their order."""
        return [self._rows[key] for key in keys]

    def merge(self, keys: Iterable[Key]) -> list[Row]:
        """Rewrite `results.jsonl` with the rows of the given keys, in their order.

        Raises:
            KeyError: a row is missing; the file stays unchanged.
        """
        rows = self.rows(keys)
        partial = self.path.with_suffix(".jsonl.tmp")
        with naming_full_disk(partial):
            partial.write_text(as_lines(rows), encoding="utf-8")
        partial.replace(self.path)
        return rows


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Name the file in the error that is raised in this context if the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"cannot write {path}: {error.strerror}; make space and repeat the command, which "
            "resumes the run"
        ) from error


def read_rows(
    path: Path,
    *,
    needs: Sequence[str] = KEYED,
    remedy: str = "remove that line and its row is made again, or start over with resume=false",
) -> list[Row]:
    """Read the complete rows of a file.

    Args:
        path: the file.
        needs: keys that every row must have.
        remedy: advice in the error message.

    Raises:
        ValueError: a line isn't a row; the message has its number.
    """
    # Text after the last newline was truncated by an interruption, and the row is made again.
    # `splitlines` would also split at line separators within JSON strings.
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"got {row!r} instead of a JSON object")
            missing = [name for name in needs if name not in row]
            if missing:
                raise ValueError(f"got a row without {', '.join(missing)}")
            rows.append(row)
        except ValueError as error:
            raise ValueError(
                f"expected a row of results in line {number} of {path} ({error}); {remedy}"
            ) from error
    return rows


def drop_partial_line(path: Path) -> None:
    """Truncate the file after its last complete line; remove it if there is none."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        whole = content[: content.rfind(b"\n") + 1]
        # Concurrent readers must never see fewer complete lines.
        os.truncate(path, len(whole)) if whole else path.unlink()


def derive_seed(*parts: object) -> int:
    """Compute a seed by hashing the given values; different values give unrelated seeds."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7])
