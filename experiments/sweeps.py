"""Sweeps: several runs by one command, with `--multirun` and settings with several values.

    python -m experiments.run --multirun +task=xlam seed=0,1,2 hydra/launcher=joblib

Each run has the same directory as without the sweep. The sweep's directory `runs/sweep-<time>/`
(`hydra.sweep.dir`) has the outcome of every run, and the output of runs that are launched in
parallel. If a run fails, its settings and error are recorded and the other runs continue. At the
end all finished runs are compared on one page.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from gcd._support.files import read_json, write_json

Outcome = dict[str, Any]
"""Outcome of a run: its `settings`, `threads`, and its `directory` or the `error`."""


def sweeping() -> bool:
    """Return whether this run is part of a `--multirun`."""
    return HydraConfig.get().mode == RunMode.MULTIRUN


def run_one(run: Callable[[DictConfig], Path], config: DictConfig) -> None:
    """Run one run of a sweep and record its outcome; errors are recorded, not raised."""
    hydra = HydraConfig.get()
    sweep, number = Path(hydra.runtime.output_dir), hydra.job.num
    # Parallel launchers divide the cores among the runs.
    outcome: Outcome = {
        "settings": list(hydra.overrides.task), "threads": torch.get_num_threads(),
    }  # fmt: skip
    alone = hydra.launcher._target_.endswith("BasicLauncher")  # other launchers run in parallel
    with nullcontext() if alone else _printing_into(sweep / f"{number}.log"):
        try:
            outcome["directory"] = str(run(config))
        except Exception as error:
            if not isinstance(error, ValueError | OSError):  # not a user error
                traceback.print_exc()
            outcome["error"] = f"{error}" or type(error).__name__
            print(f"error: {outcome['error']}", file=sys.stderr)
    write_json(outcome, sweep / f"{number}.json")
    print(f"#{number} {_ending(outcome)}", flush=True)


class Conclusion(Callback):
    """Hydra callback that calls `conclude`; the command fails if a run of the sweep failed."""

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Print and compare the outcomes after all runs."""
        if not conclude(Path(config.hydra.sweep.dir)):
            sys.exit(1)


def conclude(sweep: Path) -> bool:
    """Print the outcome of every run of a sweep, and compare the finished runs.

    Args:
        sweep: directory of the sweep, which the comparison is written to.

    Returns:
        True if all runs finished.
    """
    from experiments.compare import compare  # slow to import

    numbered = sorted((int(path.stem), path) for path in sweep.glob("[0-9]*.json"))
    outcomes = {n: read_json(path, remedy="give the command once more") for n, path in numbered}
    names = _names([outcome["settings"] for outcome in outcomes.values()])
    finished = [outcome for outcome in outcomes.values() if "directory" in outcome]
    print(f"\n{len(finished)} of {len(outcomes)} runs have finished:")
    for (number, outcome), name in zip(outcomes.items(), names, strict=True):
        log = sweep / f"{number}.log"
        more = f" ({log})" if "error" in outcome and log.exists() else ""
        print(f"  {name}: {_ending(outcome)}{more}")
    directories = list(dict.fromkeys(outcome["directory"] for outcome in finished))
    if len(directories) > 1:
        try:
            compare([Path(directory) for directory in directories], sweep)
        except ValueError as error:
            print(f"The runs can't be compared: {error}")
        else:
            print(f"Comparison of these runs: {sweep}/report.html and rows.csv. For some of them:")
            print(f"  python -m experiments.compare {' '.join(directories)}")
    return len(finished) == len(outcomes)


def _ending(outcome: Outcome) -> str:
    return outcome.get("directory") or f"failed: {outcome['error']}"


def _names(settings: Sequence[Sequence[str]]) -> list[str]:
    """Name runs by the settings that they don't all share."""
    common = set.intersection(*map(set, settings)) if settings else set()
    return [" ".join(each for each in own if each not in common) or "all" for own in settings]


@contextmanager
def _printing_into(log: Path) -> Iterator[None]:
    """Redirect the output of this process and its children to a file."""
    kept = {stream: os.dup(stream.fileno()) for stream in (sys.stdout, sys.stderr)}
    with log.open("w", encoding="utf-8") as file:
        try:
            for stream in kept:
                stream.flush()
                os.dup2(file.fileno(), stream.fileno())
            yield
        finally:
            for stream, terminal in kept.items():
                stream.flush()
                os.dup2(terminal, stream.fileno())
                os.close(terminal)
