"""The wandb page is built without a server, and draws what runs really log."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import wandb_workspaces.workspaces as ws

from experiments.harness.summary import summarize
from experiments.harness.tracking import OUTCOMES, logged_arms
from experiments.tasks import TASKS
from scripts import wandb_dashboard
from scripts.wandb_dashboard import MEASURES, as_json, dashboard
from tests.experiments.harness.test_summary import row


def wire(workspace: ws.Workspace) -> Any:
    """What would be saved, without random names of panels, and sizes, which reading loses."""

    def unnamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: unnamed(v) for k, v in value.items() if k not in ("__id__", "layout")}
        return [unnamed(each) for each in value] if isinstance(value, list) else value

    return unnamed(json.loads(as_json(workspace)))


def page(**chosen: Any) -> Any:
    return wire(dashboard(chosen or {"task": "xlam"}, "team", "project"))["spec"]["section"]


def panels_of(section: Any) -> dict[str, list[Any]]:
    return {s["name"]: s["panels"] for s in section["panelBankConfig"]["sections"]}


def test_the_page_is_a_function_of_what_is_chosen():
    assert page() == page()
    assert page(task="sql") != page()
    built = dashboard({"task": "xlam"}, "team", "project")
    assert wire(ws.Workspace._from_model(built._to_model())) == wire(built)


def test_arms_lie_over_each_other_against_k():
    lines = panels_of(page())["Against particles"]
    assert [line["config"]["metrics"] for line in lines] == [[m] for m in MEASURES]
    for line in lines:
        config = line["config"]
        assert (config["xAxis"], config["xLogScale"], config["groupBy"]) == ("k", True, "arm.value")
    points = panels_of(page())["Every method and number of particles"]
    for point, measure in zip(points, MEASURES, strict=True):
        axes = point["config"]["xAxis"], point["config"]["yAxis"]
        assert axes == ("config:k.value", f"summary:{measure}")


def test_runs_are_chosen_and_grouped_by_their_configuration():
    [runs] = page(task="xlam", seed=0)["runSets"]
    chosen = {f["key"]["name"]: f["value"] for f in runs["filters"]["filters"]}
    assert chosen == {"task": "xlam", "seed": 0}
    assert [key["name"] for key in runs["grouping"]] == ["arm.value", "k.value"]


def test_what_is_drawn_is_logged():
    rows = [row("gcd", 4, 0.5), row("gcd", 4, 1.0, example="1")]
    [arm] = logged_arms(summarize(rows), rows, {})
    assert MEASURES.keys() <= arm.measures.keys()
    assert {"arm", "k"} <= arm.names.keys()
    assert OUTCOMES not in arm.measures  # the table would hide it
    assert OUTCOMES in json.dumps(panels_of(page())["Examples"])


def test_the_command_prints_without_a_login_and_does_not_ask_for_one(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    for given, message in [
        (["task=xlam"], "error: no login to wandb was found: give `wandb login` first, or --print"),
        (["xlam"], "error: 'xlam' is no setting: give KEY=VALUE, such as task=xlam"),
        (["task=nix", "--print"],
         f"error: unknown value 'nix' for task: use one of {', '.join(TASKS)}"),
    ]:  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["wandb_dashboard", *given])
        with pytest.raises(SystemExit, match="2"):
            wandb_dashboard.main()
        assert capsys.readouterr().err.strip() == message
    monkeypatch.setattr(sys, "argv", ["wandb_dashboard", "task=xlam", "seed=0", "--print"])
    wandb_dashboard.main()
    shown = json.loads(capsys.readouterr().out)
    assert shown["displayName"] == "Methods: task xlam, seed 0"
