"""Runs of tasks: run directories, rows, resumption, and processes under `torchrun`.

An `ExperimentTask` defines one task. `run_task` runs any task in this order:

    check       validate the task's settings before anything is loaded
    read        read the task's inputs (records, problems)
    identity    collect what determines the results (settings, data, weights) and name the directory
    refuse      reject a directory that holds another run or isn't writable
    run         run the task with a `Run`, which opens the directory and takes rows

Nothing is written before `Run.open`, so a refused task leaves no files behind. An interrupted run
reports its progress, and the same command resumes it and gives the same result.

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
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from experiments.arms import names_of_hmms, unread
from experiments.config import writable
from experiments.models import resolve_device, settle
from hmm._files import read_json, write_json

_LOG = logging.getLogger(__name__)
_IDENTITY = "identity.json"
REPORT, TABLE, SUMMARY = "report.html", "table.md", "summary.json"
"""The page, the table and the summary of a run directory."""
LOGGED = "wandb/logged"
"""The file of a run directory that tells that its results are in wandb."""


@dataclass(frozen=True)
class ExperimentTask:
    """A task that `+task=NAME` can run.

    Attributes:
        name: NAME; also the prefix of run directories.
        config: dataclass of the settings, with `name` as a field.
        check: refuses invalid settings with a `ValueError`, without loading anything.
        read: reads the inputs, which are passed to `identity` and `run`.
        identity: returns everything that determines the results, as plain values.
        run: runs the task and ends with `experiments.results.write_results`.
        distributed: whether processes under `torchrun` may share the work, by exchanging tensors.
        rows_in: folder of the rows within the run directory.
        kept: patterns of other files that an interrupted run resumes from; `resume=false` removes
            them.
        adapter: name of the task whose adapter `model.adapter=auto` means; None for this task.
    """

    name: str
    config: type
    check: Callable[[DictConfig], None]
    read: Callable[[DictConfig], Any]
    identity: Callable[[DictConfig, Any], Identity]
    run: Callable[[Run, Any], None]
    distributed: bool = False
    rows_in: str = "."
    kept: tuple[str, ...] = ()
    adapter: str | None = None


def run_task(task: ExperimentTask, config: DictConfig) -> Path:
    """Run or resume a task, and return the run directory.

    Args:
        task: the task.
        config: the whole configuration; the shared settings must have been checked.

    Raises:
        ValueError: settings, data, models or the directory are invalid; or under `torchrun`, the
            task needs a single process, or the processes prepared different records.
        KeyboardInterrupt, OSError: re-raised after logging the progress.
    """
    task.check(config)
    device = resolve_device(config.model.device)
    # Distillation and fine-tuning name the task whose prompts the model answers as their source.
    settle(config.model, task.adapter or (config.task.name if "task" in config else config.source))
    rank, world = processes(device if task.distributed else None)
    if world > 1 and not task.distributed:
        raise ValueError(
            f"expected a single process for the task {task.name}, got {world}; run it without "
            "torchrun, or several runs by --multirun with different data.offset"
        )
    inputs = task.read(config)
    run = Run(task, config, task.identity(config, inputs), rank, world)
    writable("results", "run_dir", run.directory)
    if config.resume:
        run.refuse_another()
    try:
        task.run(run, inputs)
    except (KeyboardInterrupt, OSError):
        run.say_how_far()
        raise
    finally:
        run.close()
    return run.directory


class Run:
    """One run of a task, in one of its processes.

    Attributes:
        task: the task.
        config: the whole configuration.
        identity: everything that determines the results.
        directory: the run directory.
        rank: rank of this process.
        world: number of processes.
        store: the rows; set once the run is open, if the task has rows.
    """

    store: ResultStore

    def __init__(
        self,
        task: ExperimentTask,
        config: DictConfig,
        identity: Identity,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.task = task
        self.config = config
        self.identity = identity
        self.rank = rank
        self.world = world
        # Identity without paths, which can be spelled differently.
        self._name = without_places(identity)
        own = f"runs/{task.name}-{fingerprint(self._name)}"
        self.directory = Path(config.run_dir or own)
        self._keys: tuple[Key, ...] | None = None  # None until the run is open
        self._lock = FileLock(self.directory / ".lock", blocking=False)

    def _list_files(self) -> Iterator[Path]:
        """Yield the files of a run: rows, files to resume from, and the report."""
        rows = (f"{self.task.rows_in}/{name}*.jsonl" for name in ("results", "traces"))
        reports = (REPORT, TABLE, SUMMARY, LOGGED)
        for pattern in (*rows, *self.task.kept, *reports):
            yield from self.directory.glob(pattern)

    def refuse_another(self) -> None:
        """Refuse a directory with rows of other or unknown settings, data or weights.

        A directory without any finished row is reused.

        Raises:
            ValueError: the directory has another run; the message lists the differences.
        """
        saved = self.directory / _IDENTITY
        remedy = "give another run_dir, or resume=false to start this one over"
        if not saved.exists() and any(self.directory.glob("results*.jsonl")):
            raise ValueError(
                f"expected {_IDENTITY}, which identifies the run, beside the rows in "
                f"{self.directory}, got no such file; {remedy}"
            )
        if saved.exists() and any(self._list_files()):
            before = read_json(saved, remedy=remedy)
            if without_places(before) != self._name:
                changed = _differences(before, self.identity)
                raise ValueError(
                    f"expected the same run in {self.directory}, got another one: "
                    f"{'; '.join(changed)}. Give another run_dir, or resume=false, which deletes "
                    "its rows and starts over"
                )

    def open(self, keys: Sequence[Key] = ()) -> None:
        """Create the directory, write the identity, and load existing rows.

        Args:
            keys: keys of all rows of the finished run, in order; empty for a task without rows.

        Raises:
            ValueError: the processes under `torchrun` don't agree, or another command is writing
                into the directory. Nothing has been written in these cases.
        """
        refuse_disagreement(self.world, fingerprint(self._name))
        rows_dir = self.directory / self.task.rows_in
        if self.rank == 0:
            try:
                rows_dir.mkdir(parents=True, exist_ok=True)
                self._lock.acquire()
            except Timeout:
                raise ValueError(
                    f"expected no other command to use {self.directory}, but one is writing to it; "
                    "wait until it ends, or give another run_dir"
                ) from None
            except OSError as error:
                raise ValueError(
                    f"expected a writable directory, got run_dir={self.directory} ({error}); give "
                    "another one"
                ) from error
            if not self.config.resume:
                # An old report could be mistaken for a report of the new rows.
                for path in list(self._list_files()):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            OmegaConf.save(self.config, self.directory / "config.yaml", resolve=True)
            write_json(self.identity, self.directory / _IDENTITY, sort_keys=True)
            if keys:
                self.store = ResultStore(rows_dir)
                if any(key not in self.store for key in keys):  # the report would be of fewer rows
                    for name in (REPORT, TABLE, SUMMARY, LOGGED):
                        (self.directory / name).unlink(missing_ok=True)
        wait_for_all(self.world)
        if keys and len(self.store):
            _LOG.info(
                "%d of %d rows exist in %s and are kept (resume=false starts over)",
                len(self.store), len(keys), self.store.path,
            )  # fmt: skip
        self._keys = tuple(keys)

    def close(self) -> None:
        """Release the lock on the run directory, so that another command can use it."""
        self._lock.release()

    @contextmanager
    def sampling(self, keys: Sequence[Key]) -> Iterator[Callable[[int], object]]:
        """Show a progress bar over the rows of this process; yields its update function."""
        done = sum(key in self.store for key in keys)
        with bar(len(keys), "sampling", "row", initial=done) as shown:
            yield shown.update

    def say_how_far(self) -> None:
        """Log the progress of an interrupted run, if it has begun."""
        if self._keys is None:
            return
        command = "the same command" + ("" if self.config.resume else " without resume=false")
        rows = f"{len(self.store)} of {len(self._keys)} rows" if self._keys else "what is done"
        _LOG.warning("interrupted: %s goes on from %s in %s", command, rows, self.directory)


def _differences(before: Any, now: Any, key: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*before, *now})
        return [
            line
            for name in names
            for line in _differences(before.get(name), now.get(name), f"{key}.{name}".strip("."))
        ]
    return [] if before == now else [f"{key} was {before!r}, is {now!r}"]


# -- identities and rows

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


# -- processes, one or several under torchrun, and errors in one line

_PATIENCE = timedelta(days=7)  # a process may wait long for the slowest one


def processes(device: torch.device | None = None) -> tuple[int, int]:
    """Return the rank of this process and the number of processes, one unless under `torchrun`.

    Args:
        device: device of the tensors that processes exchange, with NCCL on GPUs and gloo on CPUs.
            Without a device only barriers and small objects are exchanged, with gloo.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not dist.is_initialized():
        backend = "gloo"
        if device is not None and device.type == "cuda":
            torch.cuda.set_device(device)
            backend = "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, timeout=_PATIENCE)
    return int(os.environ.get("RANK", "0")), world


def wait_for_all(world: int) -> None:
    """Wait until every process has called this."""
    if world > 1:
        dist.barrier()


def refuse_disagreement(world: int, digest: str) -> None:
    """Check that all processes have prepared the same; every process must call this once.

    Raises:
        ValueError: the digests differ; raised in every process.
    """
    digests: list[Any] = [digest]
    if world > 1:
        digests = [None] * world
        dist.all_gather_object(digests, digest)
    if len(set(digests)) > 1:
        raise ValueError(
            "expected the same code, settings, data and models in all processes under torchrun, "
            f"but what they prepared differs ({', '.join(map(str, digests))})"
        )


def bar(total: int, what: str, unit: str, rank: int = 0, initial: int = 0) -> tqdm:
    """Make a progress bar that only the first process shows."""
    return tqdm(
        total=total, initial=initial, desc=what, unit=unit, disable=rank > 0, dynamic_ncols=True
    )


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Exit with a one-line message for user errors; `HYDRA_FULL_ERROR=1` shows the traceback."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
