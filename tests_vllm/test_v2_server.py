"""Posteriors from `vllm serve` with the V2 model runner, its Triton kernels interpreted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import hmm
from tests_vllm import test_server_weights as v1

INTERPRETER = Path(__file__).parent / "interpreter"


@pytest.fixture(scope="module")
def url(peaked_llama, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    model = hmm.HMM.random(6, 512, generator=torch.Generator().manual_seed(0), concentration=0.3)
    hmm.save(model, log.parent / "random")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setenv("PYTHONPATH", f"{INTERPRETER}:{os.environ['PYTHONPATH']}")
        more = ["--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"]
        with v1.serving(peaked_llama, log, *more, hmms=log.parent) as base:
            assert "Using V2 Model Runner" in log.read_text()
            yield base


def test_each_token_has_the_weight_and_probability_of_brute_force(url, peaked_llama):
    v1.test_each_token_has_the_weight_and_probability_of_brute_force(url, peaked_llama, 2)


@pytest.mark.parametrize("chunk", [None, 2])
def test_pgcd_finds_the_evidence(url, peaked_llama, chunk):
    v1.test_pgcd_finds_the_evidence(url, peaked_llama, chunk)
