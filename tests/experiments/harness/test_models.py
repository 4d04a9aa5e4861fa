"""What tells one checkpoint from another, and what is said of one that cannot be loaded."""

from __future__ import annotations

import shutil

import pytest

from experiments.harness.config import ModelConfig
from experiments.harness.models import EMBEDDED, digest_of, identity_of, load_model


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


def test_the_embedded_model_is_told_by_its_files_and_a_hub_name_by_itself():
    assert identity_of("embedded") == digest_of(EMBEDDED)
    assert identity_of("some/model") == "some/model"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_checkpoint_is_named(tmp_path, name):
    shutil.copytree(EMBEDDED, tmp_path / "lm")
    content = (tmp_path / "lm" / name).read_bytes()
    (tmp_path / "lm" / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"model\.path=.*lm: cannot load it: .+; give a whole"):
        load_model(ModelConfig(path=str(tmp_path / "lm"), device="cpu"))
