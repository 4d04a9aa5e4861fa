"""The latency task at a tiny size: every method writes the fixed tokens, and is refused by name."""

from __future__ import annotations

import json
from unittest.mock import Mock, call

import pytest
import torch

import gcd
import smc
from experiments import latency as task
from experiments import run as experiment
from experiments.latency import PAPER, UNCOMPILED, make_vocabulary, methods_of, table_seconds
from tests.experiments import composing
from tests.experiments.rows import rows_of
from tests.experiments.toy_model import write_checkpoint


def composed(*overrides: str):
    return composing.composed("+task=latency", "wandb=disabled", "model.device=cpu", *overrides)


@pytest.mark.slow
@pytest.mark.usefixtures("tables_alone")
def test_every_method_is_timed(tmp_path, monkeypatch):
    short = {"properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}}}
    closed = {"type": "object", "required": ["n"], "additionalProperties": False}
    monkeypatch.setattr(task, "SCHEMA", {**short, **closed})
    run_dir = tmp_path / "run"
    config = composed(
        f"model.path={write_checkpoint(tmp_path / 'model')}", f"run_dir={run_dir}",
        "task.hidden=[3]", "task.batch=2", "task.tokens=9", "task.prompt_tokens=5",
        "task.repeats=2", "task.warm_up=0", "task.exact_top_k=4",
    )  # fmt: skip
    experiment.run(config)
    rows = rows_of(run_dir)
    methods = ["generate", "lm", "lcd", "gcd", "discrete", "pgcd:H3"]
    assert [row["method"] for row in rows] == methods * 2
    assert all(row["ms_per_token"] > 0 for row in rows if row["method"] != "generate")
    assert {row["method"] for row in rows if row["algorithm"] == "discrete"} == {"discrete"}
    assert all((row["table_seconds"] is not None) == ("pgcd" in row["method"]) for row in rows)
    summary = json.loads((run_dir / "summary.json").read_text())
    by_name = {record["method"]: record for record in summary["rows"]}
    assert by_name["lm"]["slowdown"] == 1
    ratios = [rows[i + 3]["ms_per_token"] / rows[i + 1]["ms_per_token"] for i in (0, 6)]
    assert by_name["gcd"]["slowdown"] == pytest.approx(sum(ratios) / 2)
    table = (run_dir / "table.md").read_text()
    assert f"{PAPER['gcd']:.2f}" in table
    assert "1.10" in table  # the paper's GCD over its unconstrained loop
    # Existing measurements aren't repeated, so they don't need a model.
    monkeypatch.setattr(task, "load_or_make", None)
    experiment.run(config)
    assert rows_of(run_dir) == rows


def test_compiled_steps_are_timed_beside_uncompiled_ones():
    config = composed("task.compile=true", "task.kinds=[lm,gcd]", "task.hidden=[64,256]")
    experiment.check(config)
    methods = methods_of(config.task.kinds, config.task.hidden, compile=config.task.compile)
    assert methods == [UNCOMPILED, "lm", "gcd"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.tokens=8"], r"expected task\.tokens to be at least .* got 8"),
        (["task.tokens=66", "task.batch=2000"], "lower particles"),
    ],
)
def test_what_the_model_shows_to_be_impossible_leaves_nothing_behind(tmp_path, overrides, message):
    model = write_checkpoint(tmp_path / "model")
    with pytest.raises(ValueError, match=message):
        experiment.run(composed(f"model.path={model}", f"run_dir={tmp_path / 'run'}", *overrides))
    assert not (tmp_path / "run").exists()


def test_the_shape_is_only_for_this_task(tmp_path):
    config = composing.composed(
        "+task=xlam", "model=llama3_1_8b_shape", "wandb=disabled", "model.device=cpu",
        "hmm.path=auto", "task.methods=[gcd]", f"run_dir={tmp_path}",
    )  # fmt: skip
    with pytest.raises(ValueError, match="expected a model with weights"):
        experiment.run(config)


def test_a_vocabulary_is_made_up():
    words = make_vocabulary(49152)
    assert words.size == 49152
    assert len({*words.token_bytes}) == 49152
    assert tuple(words.eos_ids) == (49151,)


def test_a_table_is_warmed_up_with_a_small_one_that_is_forgotten():
    vocabulary = gcd.Vocabulary.from_bytes([b"a", b"b", b""], [2])
    proposal = Mock(spec=smc.PGCD)
    table_seconds(proposal, gcd.lift(gcd.regex("a{2,6}"), vocabulary), 5, torch.device("cpu"))
    small, free, whole = proposal.mock_calls
    assert [each.args[0].budgets.tolist() for each in (small, whole)] == [[3], [5]]
    assert free == call.free()
