"""The environment of the engine of `model.engine=vllm`, and a missing installation."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
import torch

import gcd_vllm
import hmm
from experiments.evaluate import Trial, load_engine
from experiments.run import check_shared
from experiments.vllm_model import VllmModel
from tests.experiments import composing
from tests.processes import ROOT


def composed(*overrides):
    return composing.composed("+task=xlam", "task.methods=[gcd]", "wandb=disabled", *overrides)


def test_a_missing_installation_is_reported(monkeypatch):
    config = composed("model.engine=vllm", "task.algorithms=[smc,smc_none]")
    check_shared(config)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ValueError, match=r"install it with `pip install '\.\[vllm\]'`"):
        VllmModel("nothing", config.model)


NAMES = ("GCD_VLLM_HMMS", "VLLM_ENABLE_V1_MULTIPROCESSING")


@pytest.fixture
def seen(monkeypatch):
    """An engine that draws nothing; returns the environments that it was started and called in."""
    found = []

    def note(*_, **given):
        found.append(({name: os.environ.get(name) for name in NAMES}, given))

    def start(*_, **__):
        note()
        model = SimpleNamespace(max_model_len=64)
        return SimpleNamespace(
            llm_engine=SimpleNamespace(vllm_config=SimpleNamespace(model_config=model))
        )

    def draw(*_, **given):
        note(**given)
        return []

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=start))
    tokenizers = SimpleNamespace(from_pretrained=lambda _: None)  # importing takes seconds
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=tokenizers))
    monkeypatch.setattr(gcd_vllm, "vocabulary_of", lambda _: None)
    monkeypatch.setattr(gcd_vllm, "sample", draw)
    return found


@pytest.mark.parametrize("before", [None, "/srv/hmms"])
def test_the_engine_finds_hmms_and_the_environment_is_put_back(before, seen, tmp_path, monkeypatch):
    """Workers in other processes have the environment of the start."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv("GCD_VLLM_HMMS", before)
    hmm.save(hmm.HMM.random(2, 512, generator=torch.Generator().manual_seed(0)), tmp_path / "mine")
    stories = ROOT / "tests" / "models" / "stories260K"
    config = composed(
        "model.engine=vllm", "task.methods=[pgcd]", f"hmm.path={tmp_path / 'mine'}",
        f"model.path={stories}", "model.adapter=none",
    )  # fmt: skip
    check_shared(config)
    lm, _ = load_engine(config)
    lm.sample(Trial("pgcd", "smc", 4, 0), [SimpleNamespace(prompt=(), constraint=None, budget=1,
              number=0)], config, None)  # fmt: skip
    (started, _), (called, given) = seen
    assert started == {"GCD_VLLM_HMMS": str(tmp_path), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    assert called == {"GCD_VLLM_HMMS": str(tmp_path), "VLLM_ENABLE_V1_MULTIPROCESSING": None}
    assert given["proposal"].hmm == "mine"
    assert os.environ.get("GCD_VLLM_HMMS") == before
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ


def test_an_engine_that_does_not_start_leaves_the_environment_as_it_was(monkeypatch):
    def fails(*_, **__):
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        raise RuntimeError("no memory")

    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=fails))
    with pytest.raises(RuntimeError, match="no memory"):
        VllmModel("nothing", composed("model.engine=vllm").model)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ
