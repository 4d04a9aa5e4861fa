"""The command's own tasks run with `model.device` set to another device, and give the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch.utils._pytree import tree_flatten

from experiments import run as experiment
from tests.devices.device import NAME
from tests.experiments.composing import composed
from tests.experiments.rows import RECORD, rows_of
from tests.experiments.toy_model import write_checkpoint


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("given")
    records = directory / "records.jsonl"
    records.write_text("".join(json.dumps({**RECORD, "id": i}) + "\n" for i in range(2)))
    return [
        f"model.path={write_checkpoint(directory / 'model')}", f"data.path={records}",
        "model.dtype=float32", "wandb=disabled", "+task=xlam",
        "task.num_examples=1", "task.particles=[2]", "task.budget=tight", "task.max_calls=1",
        "task.styles=[python]",
        "task.methods=[gcd]", "task.algorithms=[smc]",  # test_sampling has the other ones
    ]  # fmt: skip


def run(given: list[str], directory: Path, device: str) -> list[dict[str, Any]]:
    experiment.run(composed(*given, f"model.device={device}", f"run_dir={directory}"))
    rows = rows_of(directory)
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]


def test_tool_calls(given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Figures and the page are made of the rows.
    monkeypatch.setattr("experiments.figures.plot_all", lambda *_: {})
    monkeypatch.setattr("experiments.results.write_report", lambda directory: None)
    monkeypatch.setattr("experiments.evaluate._warm_up", lambda run, prepared, *_: prepared)
    found, names = tree_flatten(run(given, tmp_path / "there", NAME))
    expected, same = tree_flatten(run(given, tmp_path / "here", "cpu"))
    assert names == same
    for one, other in zip(found, expected, strict=True):
        # Floats may be rounded otherwise on the way to a file.
        assert one == (pytest.approx(other, abs=1e-3) if isinstance(other, float) else other)
    assert expected
