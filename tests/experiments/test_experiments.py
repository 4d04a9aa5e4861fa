"""Every table and figure by name; the paper's methods in one run at tiny size on a toy model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from experiments import run as experiment
from hmm._checkpoint import save
from hmm._model import HMM
from tests.experiments.composing import composed
from tests.experiments.rows import RECORD, rows_of
from tests.experiments.toy_model import write_checkpoint

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
NAMES = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))

pytestmark = pytest.mark.usefixtures("tables_alone")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[str, ...]:
    """Overrides that make any experiment on tool calls one of seconds."""
    directory = tmp_path_factory.mktemp("tiny")
    model = write_checkpoint(directory / "model")
    for H in (2, 3):
        hmm = HMM.random(H, 257, generator=torch.Generator().manual_seed(H))
        save(hmm, directory / f"hmm{H}", config={"eos_token_id": [256]})
    records = directory / "records.jsonl"
    records.write_text(json.dumps({**RECORD, "id": 0}) + "\n")
    return (
        f"model.path={model}", "model.device=cpu", f"data.path={records}", "wandb=disabled",
        "task.num_examples=1", "task.particles=[2]", "task.styles=[json]", "task.max_calls=1",
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_composes(name):
    config = composed(f"+experiment={name}", "model.path=somewhere")
    experiment.check(config)


def test_the_paper_s_model_is_a_ready_config():
    config = composed("+experiment=table1_satisfaction", "model=llama3_1_8b")
    assert config.model.path == "meta-llama/Llama-3.1-8B-Instruct"
    assert (config.model.dtype, config.model.prompt) == ("bfloat16", "chat")


@pytest.mark.slow
def test_all_methods_stand_side_by_side_in_one_run(tiny, tmp_path):
    """Rejection, LCD, greedy closing, GCD, two HMMs in P-GCD, one of them alone."""
    directory = Path(tiny[0].partition("=")[2]).parent
    methods = ["lm", "lcd", "greedy_close", "gcd", "pgcd:H64", "pgcd:H256", "hmm:H64"]
    config = composed(
        "+experiment=table3_hmm_size", *tiny, f"task.methods=[{','.join(methods)}]",
        f"hmm.paths={{H64:{directory}/hmm2,H256:{directory}/hmm3}}", "task.budget=tight",
        "task.algorithms=[smc,discrete]", f"run_dir={tmp_path}",
    )  # fmt: skip
    experiment.run(config)
    rows = {(row["method"], row["algorithm"]): row for row in rows_of(tmp_path)}
    assert [*rows] == [(m, a) for m in methods for a in ("smc", "discrete")]
    for (method, _), row in rows.items():
        assert row["seconds"] > 0
        if row["dead"]:
            assert method in ("lm", "lcd", "greedy_close")
            assert row["weighted_accuracy"] == 0
            assert not row["valid"]
        elif method == "hmm:H64":
            assert row["log_evidence"] is None
            assert row["lm_calls"] == row["tokens"] == row["read"] == 0
        else:
            assert row["log_evidence"] <= 1e-6
        if method.startswith(("gcd", "pgcd", "hmm")):
            assert row["valid"]
            assert row["complete"]
    # Each P-GCD is by its own HMM.
    found = {rows[f"pgcd:{name}", "smc"]["log_evidence"] for name in ("H64", "H256")}
    assert len(found) == 2
    identity = json.loads((tmp_path / "identity.json").read_text())
    assert identity["hmm_files.H64"] != identity["hmm_files.H256"]
    assert "Difference to GCD at equal particles" in (tmp_path / "table.md").read_text()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {d["method"] for d in summary["differences"]} == {*methods} - {"gcd"}


@pytest.mark.slow
def test_budgets_by_the_right_answer(tiny, tmp_path):
    overrides = ("task.methods=[lcd,gcd]", f"run_dir={tmp_path}")
    experiment.run(composed("+experiment=truncation", *tiny, *overrides))
    rows = rows_of(tmp_path)
    assert len(rows) == 2 * 3  # methods, budgets
    gold = '[{"name": "f", "arguments": {"a": 1}}]'
    for row in rows:
        style, _, rule = row["style"].partition(", ")
        assert (style, row["gold"]) == ("json", gold)
        needed = len(gold) + 1  # a token is a byte
        assert row["budget"] == math.ceil(float(rule.removeprefix("gold:")) * needed)
        if row["method"] == "gcd":
            assert row["valid"]
            assert row["parses"]
        if row["dead"]:
            assert not row["valid"]
    table = (tmp_path / "table.md").read_text()
    assert "Budget 1, 1.25 and 2 times the tokens of the gold answer" in table
    assert "Tool calls: 1 request" in table
