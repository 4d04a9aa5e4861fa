"""Logging to Weights & Biases, once per result; without a login it is offline, with the same files.

An experiment is a wandb group: an overview run with the table of the summary, the rows and the
figures, and one run for each arm (style, method, algorithm). Arms log the same names, so a
dashboard overlays them: `example` is the axis of the curves over examples, such as `valid@4` with
4 particles, and the means over examples are the run's summary.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.config import WandbConfig
from experiments.rows import LOGGED, Row
from experiments.tables import Group, Table, group_rows

if TYPE_CHECKING:
    import wandb

_LOG = logging.getLogger(__name__)


class LoggedArm(NamedTuple):
    """Content of the wandb run of an arm.

    Attributes:
        names: configuration of the run: `arm`, `style`, `method`, `algorithm`, and `H`, the number
            of HMM states.
        measures: the run's summary.
        curves: values by the position of the example.
    """

    names: Mapping[str, Any]
    measures: Mapping[str, float]
    curves: Sequence[Mapping[str, float]]

    def log(self, run: wandb.Run) -> None:
        """Log the curves, then the summary."""
        run.define_metric("*", step_metric="example")
        for position, values in enumerate(self.curves):
            run.log({"example": position, **values})
        run.summary.update(self.measures)


def split_arms(
    summary: Sequence[Mapping[str, Any]], rows: Sequence[Row], states: Mapping[str, int]
) -> list[LoggedArm]:
    """Split the records of a summary and the rows by arm; `states` are those of HMMs, by method."""
    found = []
    for (style, method, algorithm), own in group_rows(rows, lambda row: Group.of(row)[:3]).items():
        names = {"style": style, "method": method, "algorithm": algorithm, "H": states.get(method)}
        records = [each for each in summary if Group.of(each)[:3] == (style, method, algorithm)]
        curves: dict[str, dict[str, float]] = {}
        for row in own:
            curves.setdefault(row["example"], {}).update(_numbers(row))
        found.append(
            LoggedArm(
                {"arm": "/".join(filter(None, (style, method, algorithm))), **names},
                {key: value for each in records for key, value in _numbers(each).items()},
                list(curves.values()),
            )
        )
    return found


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record, by name and number of particles."""
    keys = [k for k, v in record.items() if isinstance(v, int | float) and k != "particles"]
    return {f"{key}@{record['particles']}": record[key] for key in keys}


def resolve_mode(mode: str) -> Any:
    """Resolve `auto`: `WANDB_MODE` if set, else online with a login and offline without."""
    if mode != "auto":
        return mode
    from requests.utils import get_netrc_auth

    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    login = os.environ.get("WANDB_API_KEY") or get_netrc_auth(host)
    return os.environ.get("WANDB_MODE") or ("online" if login else "offline")


def log(
    settings: WandbConfig,
    directory: Path,
    shared: Mapping[str, Any],
    overview: Callable[[wandb.Run], None],
    arms: Sequence[LoggedArm] = (),
) -> None:
    """Log an experiment, unless disabled or logged before; failures of wandb only give a warning.

    Args:
        settings: `wandb.*` of the configuration.
        directory: the run directory, which names the group; files go to its folder `wandb`.
        shared: configuration of all runs of the group.
        overview: logs the tables and figures of the whole experiment.
        arms: the compared arms; empty for a task without a comparison.
    """
    mode, marker = resolve_mode(settings.mode), directory / LOGGED
    if mode == "disabled" or marker.exists():
        return
    try:
        import wandb  # slow to import

        runs = [({"arm": settings.name or directory.name}, "overview", overview)]
        runs += [({**arm.names}, "arm", arm.log) for arm in arms]
        for names, kind, write in runs:
            with wandb.init(
                mode=mode, project=settings.project, entity=settings.entity, job_type=kind,
                group=directory.name, name=names["arm"], dir=str(directory),
                config={**shared, **names},
                settings=wandb.Settings(silent=True, console="off", init_timeout=20),
            ) as run:  # fmt: skip
                write(run)
        marker.touch()
    # wandb's errors have no common base class, and none of them may fail a finished run, whose
    # results are on disk.
    except Exception as error:
        _LOG.warning(
            "the results are in %s, but wandb could not log them (%s: %s); run the same "
            "command to try again, or give wandb.mode=offline or disabled",
            directory, type(error).__name__, error,
        )  # fmt: skip


def log_summary(run: wandb.Run, values: Mapping[str, Any]) -> None:
    """Log plain values to the summary of a run, with all keys as text, as wandb needs them."""
    run.summary.update(json.loads(json.dumps(values)))


def log_shown(
    run: wandb.Run,
    tables: Mapping[str, Table],
    figures: Mapping[str, Path],
    rows: Sequence[Row] = (),
) -> None:
    """Log tables, figures and rows of the whole experiment; answers are cut to the first."""
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
    run.log({**shown, **{name: wandb.Image(str(path)) for name, path in figures.items()}})


def _answer(row: Row) -> str | None:
    answers = row.get("answers")
    return answers[0]["text"] if answers else row.get("unfinished")


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else json.dumps(value)
