"""Logging to Weights & Biases that never prompts or blocks, and is offline without a login.

An experiment is a wandb group: an overview run with tables and figures, and one run for each
method, algorithm and number of particles, which are in the run's configuration. All of these runs
have the same measures, so the web page can overlay methods and join their tables of examples.
"""

from __future__ import annotations

import json
import logging
import netrc
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from urllib.parse import urlparse

from experiments.harness.config import WandbConfig
from experiments.harness.results import Identity, Row, fingerprint
from experiments.tables import Group, Table, group_rows

if TYPE_CHECKING:
    import wandb

_LOG = logging.getLogger(__name__)
_INIT_SECONDS = 20  # after this an online start falls back to offline

Mode = Literal["online", "offline", "disabled"]


def resolve_mode(mode: str) -> Mode:
    """Resolve `auto`: `WANDB_MODE` if set, else online with an API key and offline without."""
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE", "")
    if mode in ("online", "offline", "disabled"):
        return cast(Mode, mode)
    return "online" if _has_login() else "offline"


def _has_login() -> bool:
    """Return whether there is an API key for wandb."""
    return bool(os.environ.get("WANDB_API_KEY")) or _key_in_netrc()


class LoggedArm(NamedTuple):
    """Content of the wandb run of one method, algorithm and number of particles.

    Attributes:
        names: settings that runs are grouped by, including `arm`, the label of the arm, and `k`,
            the number of particles.
        measures: numbers for the run's summary and history.
        rows: rows of the examples, for a table with the columns of all arms.
    """

    names: Mapping[str, Any]
    measures: Mapping[str, float]
    rows: Sequence[Row]

    def log(self, run: wandb.Run) -> None:
        """Log the measures by k, and the table."""
        run.define_metric("*", step_metric="k")
        run.log({"k": self.names["k"], **self.measures, "outcomes": outcomes(self.rows)})


def split_arms(
    summary: Sequence[Mapping[str, Any]], rows: Sequence[Row], states: Mapping[str, int]
) -> list[LoggedArm]:
    """Split the results of a comparison by method, algorithm, particles and style.

    Args:
        summary: one record per group (`experiments.tables.summarize`).
        rows: rows of the run.
        states: number of HMM states, for methods with an HMM.
    """
    groups = group_rows(_alike(rows), Group.of)
    return [
        LoggedArm(
            {
                "arm": "/".join(filter(None, [group.style, group.arm.label])),
                **({"style": group.style} if group.style else {}),
                **group.arm._asdict(),
                "k": group.particles,
                "H": states.get(group.arm.method),
            },
            numbers_of(record),
            groups[group],
        )
        for record in summary
        for group in [Group.of(record)]
    ]


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric measures of a record."""
    return {k: v for k, v in record.items() if isinstance(v, int | float) and k != "particles"}


class Experiment:
    """The wandb group of one experiment: an overview, and a run for each arm.

    The id of a run is derived from what determines its results. Logging the same results again, or
    after an interruption, therefore doesn't create new runs.

    Args:
        settings: `wandb.*` of the configuration.
        directory: the run directory; wandb's files go to its folder `wandb`.
        identity: everything that determines the results.
        shared: configuration of all runs of the group.
    """

    def __init__(
        self, settings: WandbConfig, directory: Path, identity: Identity, shared: Mapping[str, Any]
    ) -> None:
        self.mode = resolve_mode(settings.mode)
        self._settings = settings
        self._directory = directory
        self._identity = identity
        self._shared = shared

    def log(self, overview: Callable[[wandb.Run], None], arms: Sequence[LoggedArm] = ()) -> None:
        """Log what hasn't been logged yet, unless disabled; failures of wandb only give a warning.

        Args:
            overview: logs the tables and figures of the whole experiment.
            arms: the compared arms; empty for a task without a comparison.
        """
        if self.mode == "disabled":
            return
        name = self._settings.name or self._directory.name
        try:
            self._log_run("overview", name, {}, overview)
            for arm in arms:
                self._log_run("arm", "{arm}@{k}".format_map(arm.names), arm.names, arm.log)
        # wandb's errors have no common base class, and none of them may fail a finished run, whose
        # results are on disk.
        except Exception as error:
            _LOG.warning(
                "the results are in %s, but wandb could not log them (%s: %s); run the same "
                "command to try again, or give wandb.mode=disabled",
                self._directory, type(error).__name__, error,
            )  # fmt: skip

    def _log_run(
        self, kind: str, name: str, names: Mapping[str, Any], log: Callable[[wandb.Run], None]
    ) -> None:
        """Log one run of the group, unless it exists."""
        run_id = fingerprint([self._identity, *names.values()] if names else self._identity)
        earlier = list(self._directory.glob(f"wandb/offline-run-*-{run_id}"))
        if any(marker for path in earlier for marker in path.glob("*.synced")):
            return  # `wandb sync` has uploaded it
        for path in earlier:
            shutil.rmtree(path)
        with self._start(run_id, name, kind, {**self._shared, **names}) as run:
            if run.starting_step == 0:  # otherwise the server has the same results
                log(run)

    def _start(self, run_id: str, name: str, kind: str, config: dict[str, Any]) -> wandb.Run:
        """Open a run; if wandb can't be reached, this run and all later ones are offline."""
        import wandb  # slow to import

        arguments: dict[str, Any] = {
            "project": self._settings.project,
            "entity": self._settings.entity,
            "group": self._directory.name,
            "job_type": kind,
            "name": name,
            "id": run_id,
            "dir": str(self._directory),
            "config": config,
        }
        settings = {"silent": True, "console": "off"}
        if self.mode == "online":
            limited = wandb.Settings(**settings, init_timeout=_INIT_SECONDS)
            try:
                return wandb.init(mode=self.mode, resume="allow", settings=limited, **arguments)
            except (
                wandb.errors.CommError, wandb.errors.AuthenticationError, wandb.errors.UsageError
            ) as error:  # fmt: skip
                where = f"{self._directory}/wandb"
                _LOG.warning("wandb cannot be reached (%s); logging offline into %s", error, where)
                self.mode = "offline"
        return wandb.init(mode=self.mode, settings=wandb.Settings(**settings), **arguments)


def log_summary(run: wandb.Run, values: Mapping[str, Any]) -> None:
    """Log plain values to the summary of a run, with all keys as strings.

    wandb fails on keys that are numbers.
    """
    run.summary.update(json.loads(json.dumps(values)))


def log_shown(run: wandb.Run, tables: Mapping[str, Table], figures: Mapping[str, Path]) -> None:
    """Log the tables and figures of the whole experiment, by name."""
    import wandb

    shown = {
        name: wandb.Table(columns=[*table[0]], data=[list(map(str, r.values())) for r in table])
        for name, table in tables.items()
    }
    run.log({**shown, **{name: wandb.Image(str(path)) for name, path in figures.items()}})


def outcomes(rows: Sequence[Row]) -> wandb.Table:
    """Make the table of an arm's examples; wandb joins the tables of several runs by `example`.

    Args:
        rows: rows with equal columns in every arm; other values than numbers and text become JSON.
    """
    import wandb

    data = [list(map(_cell, row.values())) for row in rows]
    return wandb.Table(columns=[*rows[0]], data=data, allow_mixed_types=True)


def _alike(rows: Sequence[Row]) -> list[Row]:
    """Give all rows the same columns, with the first answer in place of the list of answers."""
    columns = dict.fromkeys(["example", *(key for row in rows for key in row)])
    columns.pop("answers", None)

    def answer(row: Row) -> str | None:
        answers = row.get("answers")
        return answers[0]["text"] if answers else row.get("unfinished")

    return [{**{key: row.get(key) for key in columns}, "answer": answer(row)} for row in rows]


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else json.dumps(value)


def _key_in_netrc() -> bool:
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
