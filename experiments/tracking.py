"""Logging to Weights & Biases, once per result; without a login it is offline, with the same files.

An experiment is a wandb group: an overview run with its tables, rows, figures and numbers, and a
run for each arm (style, method, algorithm) in the rows. Arms log the same names, so a dashboard
overlays them: `example` is the axis of the curves over examples, such as `valid@4` with 4
particles, and the means over examples are the run's summary.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from experiments.config import WandbConfig
from experiments.tables import Group, Table, group_rows
from experiments.tasks import LOGGED, Row

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
        directory: the run directory, which names the group; files go to its folder `wandb`.
        shared: configuration of all runs of the group.
        tables: tables by name.
        figures: images by name.
        numbers: plain values for the summary; the means of an arm are under `name_of`.
        rows: rows of the experiment, whose answers are cut to the first.
        history: points of a curve, in order.
    """
    mode, marker = resolve_mode(settings.mode), directory / LOGGED
    if mode == "disabled" or marker.exists():
        return
    try:
        import wandb  # slow to import

        shown = _shown(tables, figures, rows)
        points = [*map(dict, history), *([shown] if shown else [])]
        names = {"arm": settings.name or directory.name}
        runs = [("overview", names, points, numbers)]
        runs += [("arm", *each) for each in _arms(rows, numbers)]
        for kind, names, points, means in runs:
            with wandb.init(
                mode=mode, project=settings.project, entity=settings.entity, name=names["arm"],
                group=directory.name, job_type=kind, dir=str(directory),
                config={**shared, **names},
                settings=wandb.Settings(silent=True, console="off", init_timeout=20),
            ) as run:  # fmt: skip
                if kind == "arm":
                    run.define_metric("*", step_metric="example")
                for point in points:
                    run.log(point)
                run.summary.update(json.loads(json.dumps(means)))  # wandb needs keys that are text
        marker.touch()
    # wandb's errors have no common base class, and none of them may fail a finished run, whose
    # results are on disk.
    except Exception as error:
        _LOG.warning(
            "the results are in %s, but wandb could not log them (%s: %s); run the same "
            "command to try again, or give wandb.mode=offline or disabled",
            directory, type(error).__name__, error,
        )  # fmt: skip


def _shown(
    tables: Mapping[str, Table], figures: Mapping[str, Path], rows: Sequence[Row]
) -> dict[str, Any]:
    """Return tables, rows and figures as objects of wandb; answers are cut to the first."""
    import wandb

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
    return shown | {name: wandb.Image(str(path)) for name, path in figures.items()}


def name_of(record: Row) -> str:
    """Return the name of a record's arm and number of particles, such as `json/gcd/smc@4`."""
    group = Group.of(record)
    return f"{'/'.join(filter(None, group[:3]))}@{group.particles}"


def numbers_of(record: Row) -> dict[str, float]:
    """Return the numbers of a row or of a summary record."""
    return {
        key: value
        for key, value in record.items()
        if isinstance(value, int | float) and key != "particles"
    }


def _arms(
    rows: Sequence[Row], numbers: Mapping[str, Any]
) -> Iterator[tuple[dict[str, str], list[dict[str, float]], dict[str, float]]]:
    """Yield the names, the curves over examples and the means of each arm in the rows."""
    for names, own in group_rows(rows, lambda row: Group.of(row)[:3]).items():
        curves: dict[str, dict[str, float]] = {}
        means: dict[str, float] = {}
        for count in dict.fromkeys(row["particles"] for row in own):
            some = [row for row in own if row["particles"] == count]
            for row in some:
                point = curves.setdefault(row["example"], {})
                point |= {f"{key}@{count}": value for key, value in numbers_of(row).items()}
            of_count = numbers.get(name_of(some[0]), {})
            means |= {f"{key}@{count}": value for key, value in of_count.items()}
        points = [{"example": i, **values} for i, values in enumerate(curves.values())]
        found = dict(zip(("style", "method", "algorithm"), names, strict=True))
        yield {"arm": "/".join(filter(None, names)), **found}, points, means


def _answer(row: Row) -> str | None:
    answers = row.get("answers")
    return answers[0]["text"] if answers else row.get("unfinished")


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else json.dumps(value)
