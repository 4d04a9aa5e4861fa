"""An experiment with a model that two workers share: the rows of one worker.

VLLM_CPU_OMP_THREADS_BIND="0|1" VLLM_ENABLE_V1_MULTIPROCESSING=0 pytest ...
"""

from __future__ import annotations

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
    """Sums of two halves round differently, so some tokens may differ, but not in every row."""
    seeded = torch.Generator().manual_seed(0)
    hmm.save(hmm.HMM.random(6, 512, generator=seeded, concentration=0.3), tmp_path / "hmms" / "own")
    common = (
        f"model.path={peaked_llama}", f"hmm.path={tmp_path / 'hmms' / 'own'}",
        "model.engine=vllm", "model.chunk=4", "task.methods=[gcd,pgcd]", "task.algorithms=[smc]",
        "hmm.lookahead=conditional",
    )  # fmt: skip
    found = rows_of(
        *common, f"+model.engine_args={{{ARGS}, {SPLIT}}}", f"run_dir={tmp_path / 'two'}"
    )
    with monkeypatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0")
        expected = rows_of(*common, f"+model.engine_args={{{ARGS}}}", f"run_dir={tmp_path / 'one'}")
    assert {row["method"] for row in found} == {"gcd", "pgcd"}
    texts = {
        (row["example"], row["method"]): [each["text"] for each in row["answers"]] for row in found
    }
    number = found[0]["example"]
    assert texts[number, "gcd"] != texts[number, "pgcd"]
    fixed = ("example", "method", "algorithm", "particles", "budget", "needed", "style", "gold")
    equal = 0
    for one, other in zip(expected, found, strict=True):
        assert list(one) == list(other)
        assert [one[name] for name in fixed] == [other[name] for name in fixed]
        assert one["valid"]
        assert other["valid"]
        error = math.hypot(one["log_evidence_error"], other["log_evidence_error"])
        difference = other["log_evidence"] - one["log_evidence"]
        print(f"{one['example']} {one['method']}: difference {difference:.1e}, error {error:.2f}")
        assert abs(difference) < 5 * error
        if texts[one["example"], one["method"]] == [each["text"] for each in one["answers"]]:
            assert abs(difference) < 1e-3
            equal += 1
    assert equal > 0
