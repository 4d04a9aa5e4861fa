"""The identity of a run is what determines its results; a fingerprint names it.

This module writes rows of results to disk one by one, and reads them when a run is resumed.

One row is one example under one method and algorithm with one number of particles, perhaps repeated
with other random numbers. A row is written whole and
flushed before the next is begun, so an interrupted run loses at most the row it was writing; a
last line that was cut short is dropped when the file is read.

A seed depends only on what it is for, never on what came before.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from experiments.harness.algorithms import unread
from experiments.harness.methods import hmms_of, methods_of, needs_hmm

Identity = dict[str, Any]
_PLAIN_WORD = re.compile(r"(?!(?i:null|true|false|nan|inf)$)[A-Za-z_./][A-Za-z0-9_./-]*")
_PLACES = {
    "model": ("path",),
    "hmm": ("path", "paths"),
    "data": ("path",),
    "records": ("path",),
    "task": ("problems", "hmm"),
}


def fingerprint(identity: Any) -> str:
    """Compute a digest of plain values, such as the identity of a run: ten hexadecimal digits."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]


def without_places(identity: Identity) -> Identity:
    """Leave out where models, HMMs and records lie, however that is spelled.

    What lies there is in the identity, too: digests of the files, and hub names as they are.
    """
    kept = dict(identity)
    for group, places in _PLACES.items():
        if isinstance(kept.get(group), dict):
            settings = kept[group].items()
            kept[group] = {k: v for k, v in settings if k.partition(".")[0] not in places}
    return kept


def flat(values: Any, key: str = "") -> dict[str, Any]:
    """Give nested values by their dotted keys."""
    if not isinstance(values, dict):
        return {key: values}
    return {
        name: value
        for inner, each in values.items()
        for name, value in flat(each, f"{key}.{inner}".strip(".")).items()
    }


def to_repeat(module: str, given: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Write the command that has these settings, with every one that is not the default."""
    defaults = flat(dict(usual))
    settings = flat(dict(given)).items()
    changed = [f"{key}={_word(value)}" for key, value in settings if defaults[key] != value]
    return shlex.join(["python", "-m", module, *changed])


def _word(value: object) -> str:
    """A value as Hydra reads it: text in quotes where it could be taken for something else."""
    if isinstance(value, list):
        return "[" + ",".join(map(_word, value)) + "]"
    if isinstance(value, str) and not _PLAIN_WORD.fullmatch(value):
        # A backslash is one but before a quote, or at the end.
        escaped = re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + m[2].replace("'", "\\'"), value)
        return f"'{escaped}'"
    return "null" if value is None else str(value)


def plain(config: DictConfig) -> Identity:
    """Turn the configuration into plain values."""
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def results_config(config: DictConfig) -> Identity:
    """Give the part of the configuration that determines the results, as plain values.

    Logging, traces, batching, the device and memory do not; nor do the HMM's settings where no
    method looks ahead, nor options that no algorithm of the run reads.
    """
    values = plain(config)
    for key in ("trace", "wandb", "run_dir", "resume"):
        values.pop(key, None)
    for key in ("device", "device_map", "tensor_parallel", "prompt_mib"):
        values["model"].pop(key, None)
    values["data"].pop("max_skipped", None)
    values["model"].pop("adapter", None)  # its files count, not where they lie
    values["task"].pop("reference", None)
    values["smc"].pop("max_rows", None)
    values["hmm"].pop("max_table_mib", None)
    if not any(map(needs_hmm, methods_of(config))):
        values.pop("hmm")
    else:
        named, paths = hmms_of(config), values["hmm"].pop("paths")
        values["hmm"] |= {f"paths.{name}": paths[name] for name in named if name}
    for key in unread(config):
        group, _, option = key.partition(".")
        values[group].pop(option)
    if not values["discrete"]:
        values.pop("discrete")
    return values


Row = dict[str, Any]


class Key(NamedTuple):
    """What tells a row from the others of its run.

    Attributes:
        example: its name.
        method: a name of `METHODS`, perhaps with an HMM's, or whatever the task compares.
        algorithm: a name of `ALGORITHMS`; "smc" where the task compares none.
        particles: N.
        repeat: number of the independent repetition.
    """

    example: str
    method: str
    algorithm: str
    particles: int
    repeat: int = 0

    @property
    def named(self) -> Row:
        """What a row of a task without repetitions says of its key."""
        return {name: getattr(self, name) for name in KEYED}


KEYED = ("example", "method", "algorithm", "particles")
"""What every row with a key has; where there is one repetition, rows need not number it."""


def key_of(row: Row) -> Key:
    """Give the key of a row."""
    names = row["example"], row["method"], row["algorithm"]
    return Key(*names, row["particles"], row.get("repeat", 0))


def as_lines(rows: Iterable[Any]) -> str:
    """Write values as JSON, one a line."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


class ResultStore:
    """The rows of one run directory, complete rows only.

    With several processes each appends to a file of its own; `merge` writes them all, in order,
    to `results.jsonl`.

    Args:
        run_dir: where the files lie.
        rank: of this process.

    Raises:
        ValueError: a line of a file is no row.
    """

    def __init__(self, run_dir: Path, rank: int = 0) -> None:
        self.run_dir = run_dir
        self.path = run_dir / ("results.jsonl" if rank == 0 else f"results.rank{rank}.jsonl")
        self._rows: dict[Key, Row] = {}
        self.reload()
        if self.path.exists():
            drop_partial_line(self.path)

    def __contains__(self, key: Key) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows to disk, through to the device.

        Raises:
            OSError: they cannot be written; for a full disk it names the file.
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
        """Give the rows of these keys, in this order.

        Raises:
            ValueError: some are not there; the first is named.
        """
        keys = list(keys)
        missing = [key for key in keys if key not in self._rows]
        if missing:
            first = missing[0]
            again = f", repetition {first.repeat}" if first.repeat else ""
            raise ValueError(
                f"{len(missing)} of {len(keys)} rows are missing from {self.run_dir}; the first is "
                f"that of example {first.example}, method {first.method}, algorithm "
                f"{first.algorithm}, {first.particles} particles{again}. Did a process end early, "
                "or see other records? The same command makes the missing rows"
            )
        return [self._rows[key] for key in keys]

    def merge(self, keys: Iterable[Key]) -> list[Row]:
        """Rewrite `results.jsonl` as exactly these rows in this order, and drop the other files.

        Raises:
            ValueError: a row is missing; the files are left as they are.
        """
        rows = self.rows(keys)
        final = self.run_dir / "results.jsonl"
        partial = final.with_suffix(".jsonl.tmp")
        with naming_full_disk(partial):
            partial.write_text(as_lines(rows), encoding="utf-8")
        partial.replace(final)
        for path in self.run_dir.glob("results.rank*.jsonl"):
            path.unlink()
        return rows

    def reload(self) -> None:
        """Take in what other processes have written."""
        for path in sorted(self.run_dir.glob("results*.jsonl")):
            for row in read_rows(path):
                self._rows.setdefault(key_of(row), row)


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Say which file could not be written for want of space; the system's own error does not."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"{path} could not be written: {error.strerror}; make space, and the run goes on from "
            "the rows that are there"
        ) from error


def read_rows(
    path: Path,
    *,
    needs: Sequence[str] = KEYED,
    remedy: str = "remove that line and its row is made again, or start over with resume=false",
) -> list[Row]:
    """Read the whole rows of a file; `ValueError` names the line that is none.

    Args:
        needs: what every row must have.
        remedy: what the user can do about a line that is no row.
    """
    # What follows the last newline was cut short by an interruption: the row is made again. Not
    # `splitlines`, which would also break at the line separators that JSON strings may hold.
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"it holds {row!r}")
            missing = [name for name in needs if name not in row]
            if missing:
                raise ValueError(f"it has no {', '.join(missing)}")
            rows.append(row)
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number} is no row of results ({error}); {remedy}"
            ) from error
    return rows


def refuse_cut_short(path: Path, remedy: str) -> None:
    """Refuse a file of rows that is empty, or that does not end with a whole row.

    Raises:
        ValueError: it is one; an interruption leaves such a file, a finished run does not.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read() != b"\n":
            what = "ends within a row" if size else "is empty"
            raise ValueError(f"{path} {what}, so rows were lost; {remedy}")


def drop_partial_line(path: Path) -> None:
    """End the file after its last whole line, so that appending starts a fresh one.

    A file without any is removed.
    """
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        whole = content[: content.rfind(b"\n") + 1]
        # Others may read meanwhile, and must never see fewer lines.
        os.truncate(path, len(whole)) if whole else path.unlink()


def derived_seed(*parts: object) -> int:
    """Compute a seed from these values, unlike those of others."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7])
