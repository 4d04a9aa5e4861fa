"""This script makes a wandb page that lays methods over each other, against their particles.

    python -m scripts.wandb_dashboard task=xlam --entity TEAM
    python -m scripts.wandb_dashboard task=xlam seed=0 --print

Settings choose the runs that are shown, by their configuration in wandb (`task`, `model`, `seed`,
`style`, `H`, ...); what they leave open, such as the seed, is averaged. `--print` shows what would
be saved, and needs no login. The page has a line for each arm, which is a method with an
algorithm; a point for each number of particles; the outcomes of examples, joined; and the figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from omegaconf import OmegaConf
from wandb_workspaces.expr import And

from experiments.harness.checks import one_of
from experiments.harness.command import errors_in_one_line
from experiments.harness.config import WandbConfig
from experiments.harness.figures import COMPARISONS
from experiments.harness.tracking import OUTCOMES, has_login
from experiments.tasks import TASKS

MEASURES = {
    "weighted_accuracy": "Accuracy, posterior-weighted",
    "valid": "Valid",
    "log_evidence": "Log evidence, mean",
    "ess_fraction": "ESS / N",
    "read": "Prefixes read",
    "seconds_each": "Seconds a request",
}
"""What is drawn against k: names in the summary of a run, and titles."""
_MOST_RUNS = 500  # drawn in a panel


def dashboard(chosen: Mapping[str, Any], entity: str, project: str) -> ws.Workspace:
    """Build the page; nothing is saved yet.

    Args:
        chosen: what the configuration of the runs must say.
        entity: user or team.
        project: of the runs.
    """
    arm, k = wr.Config("arm"), wr.Config("k")
    lines = [
        wr.LinePlot(
            title=title,
            x="k",
            y=[measure],
            log_x=True,
            groupby=arm,
            groupby_aggfunc="mean",
            groupby_rangefunc="minmax",
            max_runs_to_show=_MOST_RUNS,
        )
        for measure, title in MEASURES.items()
    ]
    points = [
        wr.ScatterPlot(title=title, x=k, y=wr.SummaryMetric(measure), log_x=True)
        for measure, title in MEASURES.items()
    ]
    wide = wr.Layout(w=24, h=14)
    return ws.Workspace(
        entity=entity,
        project=project,
        name="Methods: " + ", ".join(f"{key} {value}" for key, value in chosen.items()),
        sections=[
            ws.Section(name="Against particles", panels=[*lines], is_open=True),
            ws.Section(name="Every method and number of particles", panels=[*points]),
            ws.Section(
                name="Examples",
                panels=[wr.WeavePanelSummaryTable(table_name=OUTCOMES, layout=wide)],
            ),
            ws.Section(name="Figures", panels=[wr.MediaBrowser(media_keys=list(COMPARISONS))]),
            ws.Section(name="Settings", panels=[wr.RunComparer(diff_only="split", layout=wide)]),
        ],
        settings=ws.WorkspaceSettings(max_runs=_MOST_RUNS),
        runset_settings=ws.RunsetSettings(
            filters=And(*(ws.Config(key) == value for key, value in chosen.items())),
            groupby=[ws.Config("arm"), ws.Config("k")],
            order=[ws.Ordering(ws.Config("arm")), ws.Ordering(ws.Config("k"))],
        ),
    )


def as_json(workspace: ws.Workspace) -> str:
    """Write what would be saved."""
    return workspace._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("settings", nargs="+", metavar="KEY=VALUE", help="of the runs to show")
    parser.add_argument("--entity", help="user or team (default: yours)")
    parser.add_argument("--project", default=WandbConfig.project, help="(default: %(default)s)")
    parser.add_argument("--print", action="store_true", help="save nothing, show what would be")
    arguments = parser.parse_args()
    with errors_in_one_line():
        wrong = [each for each in arguments.settings if not all(each.partition("="))]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no setting: give KEY=VALUE, such as task=xlam")
        chosen: Any = OmegaConf.to_container(OmegaConf.from_dotlist(arguments.settings))
        if "task" in chosen:
            one_of("task", chosen["task"], tuple(TASKS))
        if arguments.print:
            print(as_json(dashboard(chosen, arguments.entity or "", arguments.project)))
            return
        if not has_login():
            raise ValueError("no login to wandb was found: give `wandb login` first, or --print")
        entity = arguments.entity or wandb.Api().default_entity
        print(dashboard(chosen, str(entity), arguments.project).save().url)


if __name__ == "__main__":
    main()
