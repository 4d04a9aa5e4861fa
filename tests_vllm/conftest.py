"""Models for vLLM: SmolLM2, and a small random Llama with the tokenizer of stories260K."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STORIES = ROOT / "tests" / "models" / "stories260K"


def _llama(folder: Path, scale: float) -> str:
    """Two random layers over 512 tokens; heads of 64, as vLLM's attention on CPUs wants them."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = json.loads((STORIES / "config.json").read_text())
    sizes = {"hidden_size": 128, "head_dim": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**(config | sizes)))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("proj.weight") or "embed" in name or "lm_head" in name:
                weight *= scale
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(STORIES / name, folder)
    return str(folder)


@pytest.fixture(scope="session")
def random_llama(tmp_path_factory) -> str:
    """A model whose next tokens are nearly all equally likely."""
    return _llama(tmp_path_factory.mktemp("random_llama"), 1.0)


@pytest.fixture(scope="session")
def peaked_llama(tmp_path_factory) -> str:
    """A model whose next tokens differ in probability, and depend on what came before."""
    return _llama(tmp_path_factory.mktemp("peaked_llama"), 5.0)


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The directory of SmolLM2-135M-Instruct, dequantized once."""
    from experiments.models import SMOLLM2, resolve

    return resolve(SMOLLM2)
