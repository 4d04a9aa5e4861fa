"""Identification of checkpoints, and the errors for those that cannot be loaded."""

from __future__ import annotations

import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from experiments import models
from experiments.models import (
    ROOT,
    ModelConfig,
    digest_of,
    identity_of,
    load_model,
    settle,
    title_of,
    weights_of,
)

STORIES = ROOT / "tests" / "models" / "stories260K"


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "model.safetensors",
        "pytorch_model.bin",
        "pytorch_model-00001-of-00002.bin",
        "chat_template.jinja",
        "merges.txt",
        "tokenizer.model",
    ],
)
def test_every_file_that_is_loaded_is_in_the_digest(tmp_path, name):
    (tmp_path / "config.json").write_text("{}")
    before = digest_of(tmp_path)
    (tmp_path / name).write_bytes(b"one")
    one = digest_of(tmp_path)
    (tmp_path / name).write_bytes(b"two")
    assert len({before, one, digest_of(tmp_path)}) == 3


def test_a_card_is_not_in_the_digest(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = digest_of(tmp_path)
    (tmp_path / "README.md").write_text("words")
    assert digest_of(tmp_path) == before


def test_a_directory_is_told_by_its_files_and_a_hub_name_by_itself():
    assert identity_of(str(STORIES)) == digest_of(STORIES)
    assert identity_of("some/model") == "some/model"


def test_the_default_model_is_recognized_by_its_file_without_loading_it(monkeypatch):
    for name in ("smollm2_checkpoint", "find_smollm2"):
        monkeypatch.setattr(models, name, None)
    assert models.SMOLLM2_SHA256[:16] in identity_of("smollm2")
    assert weights_of(ModelConfig()) == {"model_files": identity_of("smollm2")}


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_checkpoint_is_named(tmp_path, name):
    shutil.copytree(STORIES, tmp_path / "lm")
    content = (tmp_path / "lm" / name).read_bytes()
    (tmp_path / "lm" / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"cannot load model\.path=.*lm: .+; give a complete"):
        load_model(ModelConfig(path=str(tmp_path / "lm"), device="cpu"))


def test_another_engine_is_not_ignored():
    with pytest.raises(ValueError, match=r"expected model\.engine=transformers, because this task"):
        load_model(ModelConfig(path=str(STORIES), device="cpu", engine="vllm"))


def test_a_model_on_all_devices_gives_the_same_as_on_one(monkeypatch):
    """Without a GPU the only device is the CPU; `tests/devices` has two."""
    load, asked = AutoModelForCausalLM.from_pretrained, []

    def loads(path, **options):
        asked.append(options.get("device_map"))
        return load(path, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", loads)
    spread, _ = load_model(ModelConfig(path=str(STORIES), device_map="auto"))
    alone, _ = load_model(ModelConfig(path=str(STORIES), device="cpu"))
    assert asked == ["auto", None]
    expected = alone.prefill([[1, 5, 9]])[1]
    torch.testing.assert_close(spread.prefill([[1, 5, 9]])[1].cpu(), expected)
    with pytest.raises(ValueError, match=r"model\.adapter=none with model\.device_map=auto"):
        load_model(ModelConfig(adapter=str(ROOT / "models" / "smollm2-xlam"), device_map="auto"))


# The meaning of `auto`.


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A project in which the default model has an adapter for one task."""
    directory = tmp_path / "models" / "smollm2-xlam"
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(models, "ROOT", tmp_path)
    return directory


def settled(task: str, **given: str) -> ModelConfig:
    model = ModelConfig(**given)
    settle(model, task)
    return model


def test_a_task_with_its_own_adapter_runs_with_it(own):
    model = settled("xlam", adapter="auto")
    assert (model.adapter, model.prompt) == (str(own), "compact")
    assert title_of(model) == f"{models.SMOLLM2_TITLE}, with smollm2-xlam"
    assert weights_of(model)["adapter_files"] == digest_of(own)
    assert settled("xlam", adapter="auto", prompt="chat").prompt == "chat"  # who asks, gets it


@pytest.mark.parametrize(
    ("task", "given"),
    [
        ("latency", {"adapter": "auto"}),  # it has none
        ("", {"adapter": "auto"}),
        ("xlam", {"adapter": "auto", "path": "some/model"}),  # not its own model's
        ("xlam", {}),  # none was asked for
    ],
)
def test_other_tasks_and_models_run_without(own, task, given):
    model = settled(task, **given)
    assert (model.adapter, model.prompt) == ("none", "auto")
    assert title_of(model) == given.get("path", models.SMOLLM2_TITLE)
    assert "adapter_files" not in weights_of(model)


def test_a_missing_adapter_is_named_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"expected an adapter in model\.adapter=/nowhere.*`none`"):
        settled("xlam", adapter="/nowhere")
