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
from tests.experiments import composing
from tests.experiments.rows import rows_of

pytestmark = pytest.mark.usefixtures("tables_alone", "warmed_up")

SMALL = (
    "+task=xlam", "task.num_examples=2", "model.adapter=none", "task.particles=[2]",
    "task.budget=tight", "task.max_calls=1", "task.styles=[python]",
    "task.methods=[gcd,again]", "task.repeats=2",
    "wandb=disabled", "trace.examples=0",  # an observer has its own clock
    f"model.path={ROOT / 'tests' / 'models' / 'stories260K'}", "model.device=cpu",
    f"data.path={ROOT / 'tests' / 'experiments' / 'requests.jsonl'}",
)  # fmt: skip


def composed(*overrides: str):
    return composing.composed(*SMALL, *overrides)


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


@pytest.fixture(autouse=True)
def _two_names(monkeypatch):
    monkeypatch.setitem(METHODS, "again", replace(METHODS["gcd"], title="GCD again"))


@pytest.mark.parametrize(
    ("memory", "kept"),
    [(64, 2), (0, 0)],
    ids=["all prompts fit", "no memory for prompts"],
)
def test_the_first_method_is_charged_what_the_others_are(memory, kept, monkeypatch, tmp_path):
    """One method under two names; the second must not find what the first has read."""
    config = composed(f"run_dir={tmp_path}", f"model.prompt_mib={memory}")
    lm, _ = load_model(config.model)
    read = counted(lm, monkeypatch)
    experiment.run(config)
    rows = rows_of(tmp_path)
    assert len(rows) == 2 * 2 * 2
    seconds = {
        name: [row["seconds"] for row in rows if row["method"] == name] for name in ("gcd", "again")
    }
    assert seconds["gcd"] == pytest.approx(seconds["again"])
    assert sum(seconds["gcd"]) > 0
    assert sum(read) > sum(map(sum, seconds.values()))  # before: prompts, and warming up
    assert (
        f"model.prompt_mib={memory}, {2 - kept} prompts" in (tmp_path / "table.md").read_text()
    ) == (kept < 2)


def test_a_run_that_goes_on_charges_what_a_whole_one_does(monkeypatch, tmp_path):
    config = composed(f"run_dir={tmp_path}")
    counted(load_model(config.model)[0], monkeypatch)
    experiment.run(config)
    whole = rows_of(tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    counted(load_model(config.model)[0], monkeypatch)
    experiment.run(config)
    assert rows_of(tmp_path) == whole
