"""Runs of tasks: run directories, resumption, reports, and processes under `torchrun`.

An `ExperimentTask` defines one task. `run_task` runs any task in this order:

    check       validate the task's settings before anything is loaded
    read        read the task's inputs (records, problems)
    identity    collect what determines the results (settings, data, weights) and name the directory
    refuse      reject a directory that holds another run or isn't writable
    run         run the task with a `Run`, which opens the directory, takes rows, and reports

Nothing is written before `Run.open`, so a refused task leaves no files behind. An interrupted run
reports its progress, and the same command resumes it and gives the same result.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from experiments import tracking
from experiments.config import writable
from experiments.files import read_json, write_json
from experiments.models import resolve_device, settle, title_of
from experiments.report.page import write_report
from experiments.rows import (
    LOGGED,
    REPORT,
    Identity,
    Key,
    ResultStore,
    Row,
    fingerprint,
    without_places,
)
from experiments.tables import Table

_LOG = logging.getLogger(__name__)
_IDENTITY = "identity.json"
_TABLE, _SUMMARY = "table.md", "summary.json"


@dataclass(frozen=True)
class ExperimentTask:
    """A task that `+task=NAME` can run.

    Attributes:
        name: NAME; also the prefix of run directories.
        config: dataclass of the settings, with `name` as a field.
        check: refuses invalid settings with a `ValueError`, without loading anything.
        read: reads the inputs, which are passed to `identity` and `run`.
        identity: returns everything that determines the results, as plain values.
        run: runs the task and ends with `Run.report`.
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
    settle(config.model, task.adapter or _subject(config))
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
        self.config = config
        self.identity = identity
        self.rank = rank
        self.world = world
        # Identity without paths, which can be spelled differently.
        self._name = without_places(identity)
        own = f"runs/{task.name}-{fingerprint(self._name)}"
        self.directory = Path(config.run_dir or own)
        self._task = task
        self._keys: tuple[Key, ...] | None = None  # None until the run is open
        self._lock = FileLock(self.directory / ".lock", blocking=False)

    @property
    def same_command(self) -> str:
        """Description of the command that resumes the run."""
        return "the same command" if self.config.resume else "the same command without resume=false"

    def _list_files(self) -> Iterator[Path]:
        """Yield the files of a run: rows, files to resume from, and the report."""
        rows = (f"{self._task.rows_in}/{name}*.jsonl" for name in ("results", "traces"))
        reports = (REPORT, _TABLE, _SUMMARY, LOGGED)
        for pattern in (*rows, *self._task.kept, *reports):
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
        rows_dir = self.directory / self._task.rows_in
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
                    for name in (REPORT, _TABLE, _SUMMARY, LOGGED):
                        (self.directory / name).unlink(missing_ok=True)
        self.wait()
        if keys and len(self.store):
            _LOG.info(
                "%d of %d rows exist in %s and are kept (resume=false starts over)",
                len(self.store), len(keys), self.store.path,
            )  # fmt: skip
        self._keys = tuple(keys)

    def close(self) -> None:
        """Release the lock on the run directory, so that another command can use it."""
        self._lock.release()

    def bar(self, total: int, what: str, unit: str, done: int = 0) -> tqdm:
        """Make a progress bar that only the first process shows."""
        return bar(total, what, unit, self.rank, done)

    @contextmanager
    def sampling(self, keys: Sequence[Key]) -> Iterator[Callable[[int], object]]:
        """Show a progress bar over the rows of this process; yields its update function."""
        done = sum(key in self.store for key in keys)
        with self.bar(len(keys), "sampling", "row", done) as shown:
            yield shown.update

    def wait(self) -> None:
        """Wait until every process has called this."""
        wait_for_all(self.world)

    def merge(self) -> list[Row]:
        """Rewrite the rows in the order of the keys, and return them.

        Raises:
            KeyError: a row is missing.
        """
        assert self._keys, "open first, with the keys of the rows"
        return self.store.merge(self._keys)

    def say_how_far(self) -> None:
        """Log the progress of an interrupted run, if it has begun."""
        if self._keys is None:
            return
        rows = f"{len(self.store)} of {len(self._keys)} rows" if self._keys else "what is done"
        _LOG.warning(
            "interrupted: %s goes on from %s in %s", self.same_command, rows, self.directory
        )

    def report(
        self,
        text: str,
        summary: dict[str, Any],
        *,
        tables: Mapping[str, Table] | None = None,
        figures: Mapping[str, Path] | None = None,
        numbers: Mapping[str, Any] | None = None,
        rows: Sequence[Row] = (),
        history: Sequence[Mapping[str, float]] = (),
        also: str = "",
        screen: str = "",
    ) -> None:
        """Write, print and log the results, and write the HTML report of the directory.

        Args:
            text: Markdown for `table.md`, and for the screen if `screen` is empty.
            summary: plain values for `summary.json`.
            tables: tables for wandb, by name.
            figures: images that the task has written, by name.
            numbers: plain values for the summary in wandb.
            rows: rows for wandb.
            history: points of a curve for wandb.
            also: text to append to the last line.
            screen: text to print in place of `text`.
        """
        (self.directory / _TABLE).write_text(text, encoding="utf-8")
        write_json(summary, self.directory / _SUMMARY)
        write_report(self.directory)
        shared = {
            "task": self._task.name,
            "model": title_of(self.config.model),
            "seed": self.config.seed,
            "settings": self.identity,
        }
        tracking.log(
            self.config.wandb, self.directory, shared, tables=tables or {}, figures=figures or {},
            numbers=numbers or {}, rows=rows, history=history,
        )  # fmt: skip
        print(screen or text)
        written = [REPORT, _TABLE, _SUMMARY, *(path.name for path in (figures or {}).values())]
        written += ["results.jsonl"] * (self.directory / "results.jsonl").exists()
        print(f"Results: {self.directory}/ ({', '.join(written)}){also}")


def _subject(config: DictConfig) -> str:
    """Return the name of the task whose prompts the model answers."""
    return str(config.task.name if "task" in config else config.get("source", ""))


def _differences(before: Any, now: Any, key: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*before, *now})
        return [
            line
            for name in names
            for line in _differences(before.get(name), now.get(name), f"{key}.{name}".strip("."))
        ]
    return [] if before == now else [f"{key} was {before!r}, is {now!r}"]


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


def bar(total: int, what: str, unit: str, rank: int, initial: int = 0) -> tqdm:
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
