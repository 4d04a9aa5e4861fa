"""Fixtures of the tests that run experiments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import smc


@pytest.fixture
def interrupted_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[dict[str, Any]]]:
    """Interrupt one call of `smc.sample`, by its number from one; returns the arguments of all."""
    sample = smc.sample

    def start(number: int) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def interrupted(*args: Any, **kwargs: Any) -> list[smc.Posterior]:
            calls.append(kwargs)
            if len(calls) == number:
                raise KeyboardInterrupt
            return sample(*args, **kwargs)

        monkeypatch.setattr(smc, "sample", interrupted)
        return calls

    return start


@pytest.fixture
def tables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write neither figures nor a page, which take a third of a small run's time.

    Both have their own tests, and the runs of every task whose output is inspected write them.
    """
    monkeypatch.setattr("experiments.figures.plot_all", lambda *_: {})
    monkeypatch.setattr("experiments.results.write_report", lambda directory: None)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)


@pytest.fixture(autouse=True)
def _cold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs don't warm up, which takes as long as a small run and changes nothing but seconds.

    The first run of a file, made by a fixture for all its tests, does, and so do the tests of
    seconds.
    """
    if "warmed_up" not in request.fixturenames:
        monkeypatch.setattr("experiments.evaluate._warm_up", lambda run, prepared, *_: prepared)


@pytest.fixture
def warmed_up() -> None:
    """Runs warm up as they do for users."""
