"""Logging to wandb: offline without a login, and never a question."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.harness import tracking
from experiments.harness.config import WandbConfig
from experiments.harness.figures import plot_accuracy, plot_reads
from experiments.harness.summary import as_table, summarize
from tests.experiments.harness.test_summary import row


@pytest.fixture
def no_login(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-such-netrc"))


@pytest.mark.usefixtures("no_login")
def test_auto_is_offline_without_a_login(monkeypatch):
    assert tracking.resolve_mode("auto") == "offline"
    assert tracking.resolve_mode("disabled") == "disabled"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert tracking.resolve_mode("auto") == "disabled"
    assert tracking.resolve_mode("offline") == "offline"


@pytest.mark.usefixtures("no_login")
def test_auto_is_online_with_a_login(monkeypatch, tmp_path):
    keys = tmp_path / "netrc"
    keys.write_text("machine wandb.example login user password secret\n")
    keys.chmod(0o600)
    monkeypatch.setenv("NETRC", str(keys))
    assert tracking.resolve_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    assert tracking.resolve_mode("auto") == "online"
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert tracking.resolve_mode("auto") == "online"


@pytest.mark.slow
@pytest.mark.usefixtures("no_login")
def test_an_offline_run_holds_figures_and_tables(tmp_path):
    rows = [
        row(method, n, accuracy, algorithm=algorithm, example=str(accuracy))
        for method in ("lcd", "gcd")
        for algorithm in ("smc", "discrete")
        for n in (1, 4, 16)
        for accuracy in (0.0, 0.4, 1.0)
    ]
    summary = summarize(rows)
    figures = {name: tmp_path / f"{name}.png" for name in ("accuracy", "reads")}
    for draw, path in zip((plot_accuracy, plot_reads), figures.values(), strict=True):
        draw(summary, path, "a title")
        assert path.read_bytes().startswith(b"\x89PNG")
    settings = WandbConfig(mode="auto")
    with tracking.start(settings, tmp_path, {"seed": 0}, "name", "abc") as run:
        tracking.log_results(run, summary, as_table(summary), pd.DataFrame(rows), figures)
        assert run.settings.mode == "offline"
        assert run.summary["gcd/discrete@16/weighted_accuracy"] == pytest.approx(1.4 / 3)
    stored = list((tmp_path / "wandb").rglob("*.wandb"))
    assert len(stored) == 1
    assert stored[0].stat().st_size > 0
