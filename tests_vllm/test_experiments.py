"""An experiment with `model.engine=vllm`: the rows of the same experiment on transformers.

VLLM_ENABLE_V1_MULTIPROCESSING=0 pytest ...
"""

from __future__ import annotations

import json
import math
import os

import pytest

if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0":
    pytest.skip("`make vllm` runs it separately", allow_module_level=True)

import torch
from hydra import compose, initialize_config_dir

import hmm
from experiments import run as experiment
from tests_vllm.conftest import ROOT

COMMON = (
    "+task=xlam", "task.num_examples=2", "task.particles=[16]", "task.methods=[lcd,gcd,pgcd]",
    "task.algorithms=[smc,smc_none]", "task.budget=tight", "task.styles=[python]",
    "trace.examples=0", "wandb=disabled",
    f"data.path={ROOT / 'tests' / 'experiments' / 'requests.jsonl'}",
)  # fmt: skip
ENGINE = (
    "model.engine=vllm", "model.chunk=4",
    "+model.engine_args={enforce_eager: true, max_num_seqs: 16, max_model_len: 512, "
    "block_size: 32}",
)  # fmt: skip


def rows_of(*settings):
    """Run an experiment; return its rows."""
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = compose("config", [*COMMON, *settings])
    run_dir = experiment.run(config)
    assert {"results.jsonl", "table.md", "report.html"} <= {each.name for each in run_dir.iterdir()}
    lines = (run_dir / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_rows_are_those_of_transformers(random_llama, tmp_path):
    seeded = torch.Generator().manual_seed(0)
    hmm.save(hmm.HMM.random(6, 512, generator=seeded, concentration=0.3), tmp_path / "hmms" / "own")
    common = (f"model.path={random_llama}", f"hmm.path={tmp_path / 'hmms' / 'own'}")
    expected = rows_of(*common, "model.device=cpu", f"run_dir={tmp_path / 'transformers'}")
    found = rows_of(*common, *ENGINE, f"run_dir={tmp_path / 'vllm'}")
    assert "GCD_VLLM_HMMS" not in os.environ
    fixed = ("example", "method", "algorithm", "particles", "budget", "needed", "style", "gold")
    for one, other in zip(expected, found, strict=True):
        assert list(one) == list(other)
        assert [one[name] for name in fixed] == [other[name] for name in fixed]
        if one["method"] != "lcd":
            assert one["valid"]
            assert other["valid"]
            error = math.hypot(one["log_evidence_error"], other["log_evidence_error"])
            assert abs(one["log_evidence"] - other["log_evidence"]) < 5 * error
