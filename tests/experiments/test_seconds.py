"""The seconds of rows compare methods: which one comes first does not show in them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

import smc
from experiments import run as experiment
from experiments.arms import METHODS
from experiments.models import ROOT, load_model
from experiments.tool_calling import task as tool_calling
from tests.experiments.composing import composed
from tests.experiments.rows import rows_of

SMALL = (
    "+task=xlam", "task.num_examples=2", "model.adapter=none", "task.particles=[2]",
    "task.budget=tight", "task.max_calls=1", "task.styles=[python]", "task.methods=[gcd,again]",
    "wandb=disabled", "trace.examples=0",  # an observer has its own clock
    f"model.path={ROOT / 'tests' / 'models' / 'stories260K'}", "model.device=cpu",
    f"data.path={ROOT / 'tests' / 'experiments' / 'requests.jsonl'}",
)  # fmt: skip


def counted(lm: smc.TransformersLM, monkeypatch) -> list[int]:
    """Make the sampler's clock show how many tokens the model has read, padding included."""
    read: list[int] = []

    def count(module: object, args: object, kwargs: dict) -> None:
        read.append(kwargs["input_ids"].numel())

    lm.model.register_forward_pre_hook(count, with_kwargs=True)
    clock = SimpleNamespace(perf_counter=lambda: float(sum(read)))
    monkeypatch.setattr("smc._interface.interface.time", clock)
    monkeypatch.setattr(tool_calling, "load_engine", lambda settings: (lm, lm.tokenizer))
    return read


@pytest.mark.usefixtures("tables_alone", "warmed_up")
@pytest.mark.parametrize(
    ("memory", "kept"), [(64, 2), (0, 0)], ids=["all prompts fit", "no memory for prompts"]
)
def test_the_first_method_is_charged_what_the_others_are(memory, kept, monkeypatch, tmp_path):
    """One method under two names; the second must not find what the first has read."""
    monkeypatch.setitem(METHODS, "again", replace(METHODS["gcd"], title="GCD again"))
    config = composed(*SMALL, f"run_dir={tmp_path}", f"model.prompt_mib={memory}")
    read = counted(load_model(config.model)[0], monkeypatch)
    experiment.run(config)
    rows = rows_of(tmp_path)
    assert len(rows) == 2 * 2
    first, again = (
        [row["seconds"] for row in rows if row["method"] == name] for name in ("gcd", "again")
    )
    assert first == pytest.approx(again)
    assert 0 < sum(first) + sum(again) < sum(read)  # before: prompts, and warming up
    note = f"model.prompt_mib={memory}, {2 - kept} prompts"
    assert (note in (tmp_path / "table.md").read_text()) == (kept < 2)
    if kept:  # A run that goes on charges what the whole one does.
        path = tmp_path / "results.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
        counted(load_model(config.model)[0], monkeypatch)
        experiment.run(config)
        assert rows_of(tmp_path) == rows
