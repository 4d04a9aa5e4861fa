"""This module logs to Weights & Biases, never asks or hangs, and is offline without a login.

An experiment is a group of runs: an overview with its tables and figures, and one run for each
method, algorithm and number of particles, with these in its configuration and the same measures in
all. So the web page lays methods over each other, and joins their tables of examples.
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
from experiments.harness.summary import Group, Table, grouped

if TYPE_CHECKING:
    import wandb

_LOG = logging.getLogger(__name__)
_INIT_SECONDS = 20  # after this an online start is given up for an offline one

Mode = Literal["online", "offline", "disabled"]


def resolve_mode(mode: str) -> Mode:
    """Resolve `auto`: online exactly if the user chose so or a key is at hand, else offline."""
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE", "")
    if mode in ("online", "offline", "disabled"):
        return cast(Mode, mode)
    return "online" if _has_login() else "offline"


def _has_login() -> bool:
    """Tell whether a key for wandb is at hand."""
    return bool(os.environ.get("WANDB_API_KEY")) or _key_in_netrc()


class LoggedArm(NamedTuple):
    """What the wandb run of one method, algorithm and number of particles holds.

    Attributes:
        names: its own settings, by which runs are grouped; among them `arm`, the label of its
            line, and `k`, the number of particles.
        measures: numbers, in the run's summary and in one row of its history.
        rows: of its examples, for a table with the columns of all arms.
    """

    names: Mapping[str, Any]
    measures: Mapping[str, float]
    rows: Sequence[Row]

    def log(self, run: wandb.Run) -> None:
        """Log measures, against k, and the table."""
        run.define_metric("*", step_metric="k")
        run.log({"k": self.names["k"], **self.measures, "outcomes": outcomes(self.rows)})


def logged_arms(
    summary: Sequence[Mapping[str, Any]], rows: Sequence[Row], states: Mapping[str, int]
) -> list[LoggedArm]:
    """Split the results of a comparison by method, algorithm, particles, and style if any.

    Args:
        summary: a record for each of them (`harness.summary.summarize`).
        states: by method, of the HMM that it looks ahead with, if it does.
    """
    groups = grouped(_alike(rows), Group.of)
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
    """Give the measures of a record, without what it says of its names."""
    return {k: v for k, v in record.items() if isinstance(v, int | float) and k != "particles"}


class Experiment:
    """The wandb group of one experiment: an overview, and a run for each arm.

    Every run has an id that follows from what determines its results, so that logging the same
    results again, or going on after an interruption, adds nothing to what is there.

    Args:
        settings: `wandb.*` of the configuration.
        directory: of the run; wandb's files go to `wandb` in it.
        identity: what determines the results.
        shared: what the configuration of all runs of the group says.
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
        """Log what is not there yet, if not disabled; warn, and go on, where wandb cannot.

        Args:
            overview: logs what is of the whole experiment: tables and figures.
            arms: what is compared; nothing for a task that compares nothing.
        """
        if self.mode == "disabled":
            return
        name = self._settings.name or self._directory.name
        try:
            self._log_run("overview", name, {}, overview)
            for arm in arms:
                self._log_run("arm", "{arm}@{k}".format_map(arm.names), arm.names, arm.log)
        # The results are on disk, and what a third party's code raises over values, files, threads
        # or servers has no common class: none of it may fail a run that is finished.
        except Exception as error:
            _LOG.warning(
                "the results are in %s, but wandb could not log them (%s: %s); the same command "
                "tries again, wandb.mode=disabled does without",
                self._directory, type(error).__name__, error,
            )  # fmt: skip

    def _log_run(
        self, kind: str, name: str, names: Mapping[str, Any], log: Callable[[wandb.Run], None]
    ) -> None:
        """Log one run of the group, unless it is there already."""
        run_id = fingerprint([self._identity, *names.values()] if names else self._identity)
        earlier = list(self._directory.glob(f"wandb/offline-run-*-{run_id}"))
        if any(marker for path in earlier for marker in path.glob("*.synced")):
            return  # `wandb sync` has uploaded it
        for path in earlier:
            shutil.rmtree(path)
        with self._start(run_id, name, kind, {**self._shared, **names}) as run:
            if run.starting_step == 0:  # else the server has its results, which are the same
                log(run)

    def _start(self, run_id: str, name: str, kind: str, config: dict[str, Any]) -> wandb.Run:
        """Open a run; offline, this one and all that follow, if wandb cannot be reached."""
        import wandb  # a third of a second, and needed when a run has ended

        arguments: dict[str, Any] = {
            "project": self._settings.project,
            "entity": self._settings.entity,
            "group": self._directory.name,
            "job_type": kind,
            "name": name,
            "id": run_id,
            "dir": str(self._directory),
            "config": config,
            "settings": wandb.Settings(silent=True, console="off", init_timeout=_INIT_SECONDS),
        }
        try:
            return wandb.init(
                mode=self.mode, resume="allow" if self.mode == "online" else None, **arguments
            )
        except (
            wandb.errors.CommError, wandb.errors.AuthenticationError, wandb.errors.UsageError
        ) as error:  # fmt: skip
            if self.mode != "online":
                raise
            where = f"{self._directory}/wandb"
            _LOG.warning("wandb cannot be reached (%s); logging offline into %s", error, where)
            self.mode = "offline"
            return wandb.init(mode=self.mode, **arguments)


def log_summary(run: wandb.Run, values: Mapping[str, Any]) -> None:
    """Log plain values to the summary of a run, as JSON has them.

    The keys of all mappings in it become text: wandb fails over keys that are numbers.
    """
    run.summary.update(json.loads(json.dumps(values)))


def log_shown(run: wandb.Run, tables: Mapping[str, Table], figures: Mapping[str, Path]) -> None:
    """Log what is of the whole experiment, by name."""
    import wandb

    shown = {
        name: wandb.Table(columns=[*table[0]], data=[list(map(str, r.values())) for r in table])
        for name, table in tables.items()
    }
    run.log({**shown, **{name: wandb.Image(str(path)) for name, path in figures.items()}})


def outcomes(rows: Sequence[Row]) -> wandb.Table:
    """Make the table of an arm's examples; wandb joins those of several runs by `example`.

    Args:
        rows: with equal columns in every arm; `answers` becomes the first of them, and other lists
            become text.
    """
    import wandb

    data = [list(map(_cell, row.values())) for row in rows]
    return wandb.Table(columns=[*rows[0]], data=data, allow_mixed_types=True)


def _alike(rows: Sequence[Row]) -> list[Row]:
    """Give all rows the columns of all, the answer in place of the answers."""
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
