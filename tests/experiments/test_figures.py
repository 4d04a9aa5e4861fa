"""The axes of figures show each point at its value."""

from __future__ import annotations

import matplotlib
import pytest
from matplotlib.figure import Figure

from experiments import figures
from experiments.tables import COMPARED, VALID, differences, summarize

matplotlib.use("Agg")


def rows() -> list[dict]:
    """Accuracies below a tenth, where whole percents are too coarse for ticks."""
    return [
        {
            "example": f"{i}:{i}", "method": method, "algorithm": "smc", "particles": 1,
            "repeat": 0, "style": f"gold:{factor}", "valid": method == "gcd", "complete": True,
            "dead": False, "weighted_accuracy": float(i < 2 and method == "gcd"),
            "majority_correct": False, "best_correct": False, "log_evidence": -1.0, "ess": 1.0,
            "lm_calls": 5, "tokens": 9, "read": 4, "forced": 0, "drafted": 0, "used": 0,
            "landed": 0, "seconds": 1.0, "enumerated": False, "share_finished": 1.0,
        }
        for method in ("lcd", "gcd") for factor in (1.0, 2.0) for i in range(16)
    ]  # fmt: skip


def test_ticks_of_percent_are_true(monkeypatch, tmp_path):
    drawn = {}
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, path, **_: drawn.setdefault(path.stem, figure)
    )
    found = differences(rows(), 0, [*COMPARED, VALID], "lcd")
    files = figures.plot_all(summarize(rows()), found, tmp_path, "a title", "settings")
    assert files == {name: tmp_path / f"{name}.png" for name in drawn}
    assert [*drawn] == ["accuracy", "reads", "budgets"]
    for name in ("accuracy", "budgets"):
        drawn[name].canvas.draw()
        checked = 0
        for axis in drawn[name].axes:
            low, high = axis.get_ylim()
            for place, label in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True):
                if label.get_text().endswith("%") and low <= place <= high:
                    said = float(label.get_text().rstrip("%").replace("\N{MINUS SIGN}", "-")) / 100
                    assert said == pytest.approx(place, abs=1e-9)
                    checked += 1
        assert checked > 8
