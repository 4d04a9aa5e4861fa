"""Refusals of `model.engine=vllm`, before anything is loaded."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_dir

from experiments.harness.results import results_config
from experiments.harness.settings import check_shared
from experiments.harness.vllm_model import VllmModel
from experiments.tasks import register
from tests.processes import ROOT

COMMON = ("+task=xlam", "task.methods=[gcd]", "wandb=disabled")


def composed(*overrides):
    register()
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return compose("config", [*COMMON, *overrides])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("task.methods=[gcd,lm,json_close]",), "doesn't have the method lm, the method json_cl"),
        (("task.algorithms=[smc,discrete]",), "doesn't have the algorithm discrete: leave it out"),
        (("smc.top_p=0.9", "smc.read_ahead=auto"), r"smc\.top_p=0\.9, smc\.read_ahead=auto"),
        (("smc.execution=static",), r"smc\.execution=static"),
        (("model.device=cuda:1",), r"model\.device=cuda:1 \(see model\.engine_args\)"),
        (("model.dtype=float64",), r"model\.dtype=float64"),
        (("model.engine=transformers", "model.chunk=4"), r"model\.chunk=4 would be ignored"),
        (("model.engine=llama",), r"expected model\.engine to be .*, got 'llama'"),
    ],
)
def test_what_the_engine_lacks_is_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        check_shared(composed("model.engine=vllm", *settings))


def test_an_engine_is_part_of_what_determines_results():
    """Runs on transformers keep their directories."""
    check_shared(composed("model.engine=vllm", "task.algorithms=[smc,smc_none]"))
    usual = results_config(composed())["model"]
    other = results_config(composed("model.engine=vllm"))["model"]
    assert other == usual | {"engine": "vllm", "chunk": 16}


def test_a_missing_installation_is_reported(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    with pytest.raises(ValueError, match=r"install it with `pip install '\.\[vllm\]'`"):
        VllmModel("nothing", composed("model.engine=vllm").model)
