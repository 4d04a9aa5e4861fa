"""A sweep is several runs by one command: `--multirun`, and settings with several values.

    python -m experiments.run --multirun +task=xlam seed=0,1,2 hydra/launcher=joblib

Each run has the directory that it would have alone, named after what determines its results. The
sweep has a directory of its own, `runs/sweep-<time>/` (`hydra.sweep.dir`), where every run notes
how it ended; what runs print that are launched side by side goes there, too, as several bars
cannot share a screen. A run that fails is noted by its settings, and the others go on. At the end
those that finished are compared on one page.
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

from gcd.support.files import read_json, write_json

Outcome = dict[str, Any]
"""What a run of a sweep notes: `settings`, `threads`, and its `directory` or the `error`."""


def sweeping() -> bool:
    """Tell whether Hydra has started this run as one of several."""
    return HydraConfig.get().mode == RunMode.MULTIRUN


def run_one(run: Callable[[DictConfig], Path], config: DictConfig) -> None:
    """Run one of several to its end, and note which that was; an error is noted, not raised."""
    hydra = HydraConfig.get()
    sweep, number = Path(hydra.runtime.output_dir), hydra.job.num
    # Where several are launched at once, the launcher divides the cores among them.
    outcome: Outcome = {
        "settings": list(hydra.overrides.task), "threads": torch.get_num_threads(),
    }  # fmt: skip
    alone = hydra.launcher._target_.endswith("BasicLauncher")  # the others launch several at once
    with nullcontext() if alone else _printing_into(sweep / f"{number}.log"):
        try:
            outcome["directory"] = str(run(config))
        except Exception as error:
            if not isinstance(error, ValueError | OSError):  # of the program, not of the user
                traceback.print_exc()
            outcome["error"] = f"{error}" or type(error).__name__
            print(f"error: {outcome['error']}", file=sys.stderr)
    write_json(outcome, sweep / f"{number}.json")
    print(f"#{number} {_ending(outcome)}", flush=True)


class Conclusion(Callback):
    """Hydra calls this; see `conclude`. The command fails if a run of the sweep has failed."""

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Conclude when all runs have ended."""
        if not conclude(Path(config.hydra.sweep.dir)):
            sys.exit(1)


def conclude(sweep: Path) -> bool:
    """Say how every run of a sweep ended, and compare those that finished.

    Args:
        sweep: its directory; the comparison goes there.

    Returns:
        Whether all have finished.
    """
    from experiments.compare import compare  # heavy, and needed once, at the end

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
            print(f"They are not compared: {error}")
        else:
            print(f"All on one page: {sweep}/report.html (rows.csv); of some of them:")
            print(f"  python -m experiments.compare {' '.join(directories)}")
    return len(finished) == len(outcomes)


def _ending(outcome: Outcome) -> str:
    return outcome.get("directory") or f"failed: {outcome['error']}"


def _names(settings: Sequence[Sequence[str]]) -> list[str]:
    """Name runs by the settings that not all have in common."""
    common = set.intersection(*map(set, settings)) if settings else set()
    return [" ".join(each for each in own if each not in common) or "all" for own in settings]


@contextmanager
def _printing_into(log: Path) -> Iterator[None]:
    """Send what this process and its children print into a file."""
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
