"""An experiment with a model that two workers share: the rows of one worker.

VLLM_CPU_OMP_THREADS_BIND="0|1" VLLM_ENABLE_V1_MULTIPROCESSING=0 pytest ...
"""

from __future__ import annotations

import json
import math
import os

import pytest

if "|" not in os.environ.get("VLLM_CPU_OMP_THREADS_BIND", ""):
    pytest.skip("`make vllm` runs it separately", allow_module_level=True)

import torch

import hmm
from tests_vllm.test_experiments import rows_of

ARGS = "enforce_eager: true, max_num_seqs: 16, max_model_len: 512, block_size: 32"
SPLIT = "tensor_parallel_size: 2, distributed_executor_backend: mp"


def test_rows_are_those_of_one_worker(peaked_llama, tmp_path, monkeypatch):
    """Sums of two halves round differently, so a few tokens may differ."""
    seeded = torch.Generator().manual_seed(0)
    hmm.save(hmm.HMM.random(6, 512, generator=seeded, concentration=0.3), tmp_path / "hmms" / "own")
    common = (
        f"model.path={peaked_llama}", f"hmm.path={tmp_path / 'hmms' / 'own'}",
        "model.engine=vllm", "model.chunk=4", "task.methods=[gcd,pgcd]", "task.algorithms=[smc]",
    )  # fmt: skip
    found = rows_of(
        *common, f"+model.engine_args={{{ARGS}, {SPLIT}}}", f"run_dir={tmp_path / 'two'}"
    )
    with monkeypatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0")
        expected = rows_of(*common, f"+model.engine_args={{{ARGS}}}", f"run_dir={tmp_path / 'one'}")
    assert {row["method"] for row in found} == {"gcd", "pgcd"}
    fixed = ("example", "method", "algorithm", "particles", "budget", "needed", "style", "gold")
    for one, other in zip(expected, found, strict=True):
        assert list(one) == list(other)
        assert [one[name] for name in fixed] == [other[name] for name in fixed]
        assert one["valid"]
        assert other["valid"]
        same = {name for name in one if one[name] == other[name]}
        print(json.dumps({name: [one[name], other[name]] for name in one if name not in same}))
        error = math.hypot(one["log_evidence_error"], other["log_evidence_error"])
        assert abs(one["log_evidence"] - other["log_evidence"]) < 5 * error
