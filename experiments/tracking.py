"""Logging to Weights & Biases, once per result; without a login it is offline, with the same files.

An experiment is one wandb run with the tables, the rows, the figures and the numbers of its
summary, such as `gcd/smc@4.valid` with 4 particles.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from experiments.config import WandbConfig
from experiments.rows import LOGGED, Row
from experiments.tables import Table

_LOG = logging.getLogger(__name__)


def resolve_mode(mode: str) -> Any:
    """Resolve `auto`: `WANDB_MODE` if set, else online with a login and offline without."""
    if mode != "auto":
        return mode
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        known = netrc(os.environ.get("NETRC")).authenticators(host or "")
    except (OSError, NetrcParseError):
        known = None
    login = os.environ.get("WANDB_API_KEY") or known
    return os.environ.get("WANDB_MODE") or ("online" if login else "offline")


def log(
    settings: WandbConfig,
    directory: Path,
    shared: Mapping[str, Any],
    *,
    tables: Mapping[str, Table],
    figures: Mapping[str, Path],
    numbers: Mapping[str, Any],
    rows: Sequence[Row] = (),
    history: Sequence[Mapping[str, float]] = (),
) -> None:
    """Log an experiment, unless disabled or logged before; failures of wandb only give a warning.

    Args:
        settings: `wandb.*` of the configuration.
        directory: the run directory, which names the run; files go to its folder `wandb`.
        shared: configuration of the run.
        tables: tables by name.
        figures: images by name.
        numbers: plain values for the run's summary.
        rows: rows of the experiment, whose answers are cut to the first.
        history: points of a curve, in order.
    """
    mode, marker = resolve_mode(settings.mode), directory / LOGGED
    if mode == "disabled" or marker.exists():
        return
    try:
        import wandb  # slow to import

        shown: dict[str, Any] = {
            name: wandb.Table(columns=[*table[0]], data=[list(map(str, r.values())) for r in table])
            for name, table in tables.items()
        }
        if rows:
            columns = [*dict.fromkeys(key for row in rows for key in row if key != "answers")]
            data = [[*(_cell(row.get(key)) for key in columns), _answer(row)] for row in rows]
            shown["rows"] = wandb.Table(
                columns=[*columns, "first answer"], data=data, allow_mixed_types=True
            )
        shown |= {name: wandb.Image(str(path)) for name, path in figures.items()}
        with wandb.init(
            mode=mode, project=settings.project, entity=settings.entity,
            name=settings.name or directory.name, dir=str(directory), config=dict(shared),
            settings=wandb.Settings(silent=True, console="off", init_timeout=20),
        ) as run:  # fmt: skip
            for point in history:
                run.log(dict(point))
            if shown:
                run.log(shown)
            run.summary.update(json.loads(json.dumps(numbers)))  # wandb needs keys that are text
        marker.touch()
    # wandb's errors have no common base class, and none of them may fail a finished run, whose
    # results are on disk.
    except Exception as error:
        _LOG.warning(
            "the results are in %s, but wandb could not log them (%s: %s); run the same "
            "command to try again, or give wandb.mode=offline or disabled",
            directory, type(error).__name__, error,
        )  # fmt: skip


def _answer(row: Row) -> str | None:
    answers = row.get("answers")
    return answers[0]["text"] if answers else row.get("unfinished")


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else json.dumps(value)
