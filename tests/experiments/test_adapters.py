"""Adapters are added to the weights that they were trained for, and to no others."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from experiments.models import (
    BASE,
    ROOT,
    ModelConfig,
    identity_of,
    load_model,
    without_renaming,
    write_base,
)
from tests.experiments.toy_model import write_checkpoint

STORIES = str(ROOT / "tests" / "models" / "stories260K")


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("toy") / "lm"))


@pytest.fixture
def adapter(toy, tmp_path) -> Path:
    """An adapter of the toy that changes all it may, at random."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(toy)
    shape = LoraConfig(r=2, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
    with without_renaming():
        model = get_peft_model(base, shape)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(tmp_path / "adapter")
    write_base(tmp_path / "adapter", identity_of(toy), "a toy")
    return tmp_path / "adapter"


def log_p(path: str, adapter: object = "none") -> torch.Tensor:
    lm, _ = load_model(ModelConfig(path=path, adapter=str(adapter), device="cpu"))
    return lm.prefill([[5, 6, 7, 8]])[1]


def test_it_is_the_formula_that_is_added(toy, adapter):
    """W + (alpha / r) B A on every linear layer but the last, by hand."""
    from safetensors.torch import load_file

    by_hand = AutoModelForCausalLM.from_pretrained(toy)
    stored = load_file(adapter / "adapter_model.safetensors")
    down = {name: weight for name, weight in stored.items() if "lora_A" in name}
    weights = by_hand.state_dict()
    assert len(down) == 7  # four of attention, three of the rest, in one layer
    for name, A in down.items():
        inner = name.removeprefix("base_model.model.").replace("lora_A.", "")
        weights[inner] += 3 * stored[name.replace("lora_A", "lora_B")] @ A
    by_hand.load_state_dict(weights)
    with torch.inference_mode():
        logits = by_hand.eval()(torch.tensor([[5, 6, 7, 8]])).logits[:, -1]
    expected = logits.log_softmax(dim=-1)
    torch.testing.assert_close(log_p(toy, adapter).float(), expected, atol=1e-5, rtol=0)
    assert (log_p(toy, adapter) - log_p(toy)).abs().max() > 0.1


def test_what_peft_asks_of_transformers_is_not_told_to_the_user(toy, adapter):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        log_p(toy, adapter)
        with without_renaming(), pytest.raises(FutureWarning, match="ours"):
            warnings.warn("ours", FutureWarning, stacklevel=1)


def test_one_of_another_model_is_refused_before_loading(adapter, monkeypatch):
    monkeypatch.setattr("transformers.AutoModelForCausalLM", None)
    with pytest.raises(ValueError, match=r"of model\.path=.*260K, but .* was trained for a toy"):
        log_p(STORIES, adapter)


def test_one_that_does_not_say_is_taken_if_it_fits(toy, adapter):
    known = log_p(toy, adapter)
    (adapter / BASE).unlink()
    assert torch.equal(log_p(toy, adapter), known)
    with pytest.raises(ValueError, match=r"cannot load model\.adapter=.*: .+; copy it again"):
        log_p(STORIES, adapter)  # another shape


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", BASE])
def test_a_damaged_one_is_named(toy, adapter, name):
    content = (adapter / name).read_bytes()
    (adapter / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"adapter.*again"):
        log_p(toy, adapter)


def test_one_without_weights_is_named(toy, adapter):
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no adapter_model\.safetensors; give"):
        log_p(toy, adapter)


def test_what_is_missing_in_its_base_is_said(toy, adapter):
    (adapter / BASE).write_text(json.dumps({"something": 1}))
    with pytest.raises(ValueError, match=r"base\.json"):
        log_p(toy, adapter)
