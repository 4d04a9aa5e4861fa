"""This module logs to Weights & Biases, never asks or hangs, and is offline without a login."""

from __future__ import annotations

import logging
import netrc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlparse

import pandas as pd
import wandb

from experiments.harness.arms import Arm
from experiments.harness.config import WandbConfig
from experiments.harness.summary import styles_in

_LOG = logging.getLogger(__name__)
_INIT_SECONDS = 20  # after this an online start is given up for an offline one


Mode = Literal["online", "offline", "disabled"]


def resolve_mode(mode: str) -> Mode:
    """Resolve `auto`: online exactly if the user chose so or a key is at hand, else offline."""
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE", "")
    if mode in ("online", "offline", "disabled"):
        return cast(Mode, mode)
    return "online" if os.environ.get("WANDB_API_KEY") or _key_in_netrc() else "offline"


def start(
    settings: WandbConfig, run_dir: Path, config: dict[str, Any], name: str, run_id: str
) -> wandb.Run:
    """Open a run with its files in `run_dir/wandb`; offline if wandb cannot be reached."""
    mode = resolve_mode(settings.mode)
    arguments: dict[str, Any] = {
        "project": settings.project,
        "entity": settings.entity,
        "name": settings.name or name,
        "id": run_id,
        "resume": "allow" if mode == "online" else None,
        "dir": str(run_dir),
        "config": config,
        "settings": wandb.Settings(silent=True, console="off", init_timeout=_INIT_SECONDS),
    }
    try:
        return wandb.init(mode=mode, **arguments)
    except (wandb.errors.CommError, wandb.errors.AuthenticationError, wandb.errors.UsageError) as e:
        if mode != "online":
            raise
        _LOG.warning("wandb cannot be reached (%s); logging offline into %s/wandb", e, run_dir)
        return wandb.init(mode="offline", **{**arguments, "resume": None})


def log_results(
    run: wandb.Run,
    summary: Sequence[dict[str, Any]],
    table: pd.DataFrame,
    rows: pd.DataFrame,
    figures: Mapping[str, Path],
) -> None:
    """Log the figures and tables of the run directory, and a curve for each arm."""
    several = len(styles_in(summary)) > 1

    def label_of(record: Mapping[str, Any]) -> str:
        label = Arm.of(record).label
        return f"{record['style']}/{label}" if several else label

    for record in sorted(summary, key=lambda r: r["particles"]):
        label = label_of(record)
        values = {
            f"{label}/{key}": value
            for key, value in record.items()
            if isinstance(value, int | float) and key != "particles"
        }
        run.log({"particles": record["particles"], **values})
    run.log(
        {
            "table": wandb.Table(dataframe=table.astype(str)),
            "rows": wandb.Table(dataframe=rows.astype(str)),
            **{name: wandb.Image(str(path)) for name, path in figures.items()},
        }
    )
    for record in summary:
        prefix = f"{label_of(record)}@{record['particles']}"
        run.summary.update({f"{prefix}/{k}": v for k, v in record.items()})


def log_lines(
    run: wandb.Run,
    losses: Sequence[tuple[int, float, float]],
    table: pd.DataFrame,
    rows: pd.DataFrame,
    figure: Path,
) -> None:
    """Log the curve of a character-level model, and the lines written under each constraint."""
    for step, training, held_out in losses:
        run.log({"step": step, "loss/training": training, "loss/held_out": held_out})
    run.log(
        {
            "table": wandb.Table(dataframe=table.astype(str)),
            "rows": wandb.Table(dataframe=rows.astype(str)),
            "loss": wandb.Image(str(figure)),
        }
    )


def _key_in_netrc() -> bool:
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
