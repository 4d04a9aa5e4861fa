"""Every table and figure by name; the paper's methods in one run at tiny size on a toy model."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_composes(name):
    config = composed(f"+experiment={name}", "model.path=somewhere")
    experiment.check(config)


def test_the_paper_s_model_is_a_ready_config():
    config = composed("+experiment=table1_satisfaction", "model=llama3_1_8b")
    assert config.model.path == "meta-llama/Llama-3.1-8B-Instruct"
    assert (config.model.dtype, config.model.prompt) == ("bfloat16", "chat")


@pytest.mark.slow
@pytest.mark.usefixtures("tables_alone")
def test_all_methods_stand_side_by_side_in_one_run(tmp_path):
    """Rejection, LCD, greedy closing, GCD, two HMMs in P-GCD, one of them alone."""
    for H in (2, 3):
        hmm = HMM.random(H, 257, generator=torch.Generator().manual_seed(H))
        save(hmm, tmp_path / f"hmm{H}", config={"eos_token_id": [256]})
    (tmp_path / "records.jsonl").write_text(json.dumps(RECORD))
    methods = ["lm", "lcd", "greedy_close", "gcd", "pgcd:H64", "pgcd:H256", "hmm:H64"]
    run_dir = tmp_path / "run"
    config = composed(
        "+experiment=table3_hmm_size", f"task.methods=[{','.join(methods)}]",
        f"hmm.paths={{H64:{tmp_path}/hmm2,H256:{tmp_path}/hmm3}}", "task.budget=tight",
        "task.algorithms=[smc,discrete]", "task.particles=[2]", "task.num_examples=1",
        "task.max_calls=1", f"model.path={write_checkpoint(tmp_path / 'model')}",
        "model.device=cpu", f"data.path={tmp_path / 'records.jsonl'}", "wandb=disabled",
        f"run_dir={run_dir}",
    )  # fmt: skip
    experiment.run(config)
    rows = {(row["method"], row["algorithm"]): row for row in rows_of(run_dir)}
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
    identity = json.loads((run_dir / "identity.json").read_text())
    assert identity["hmm_files.H64"] != identity["hmm_files.H256"]
    assert "Difference to GCD at equal particles" in (run_dir / "table.md").read_text()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert {d["method"] for d in summary["differences"]} == {*methods} - {"gcd"}
