"""Fixtures of the tests that run experiments."""

from __future__ import annotations

import pytest


@pytest.fixture
def tables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write neither figures nor a page, which take a third of a small run's time.

    Both have their own tests, and the runs of every task whose output is inspected write them.
    """
    monkeypatch.setattr("experiments.harness.figures.plot_comparison", lambda *_: None)
    monkeypatch.setattr("experiments.harness.run.write_report", lambda directory: None)
