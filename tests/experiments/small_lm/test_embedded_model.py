"""The checkpoint in the repository: plain, small, exact about bytes, and it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

import gcd
from experiments.harness.methods import EMBEDDED_HMM
from experiments.small_lm.greedy import exact_match
from experiments.tool_calling.answers import STYLES
from experiments.tool_calling.generator import generate
from hmm.checkpoint import load
from smc import TransformersLM

MODEL = Path(__file__).resolve().parents[3] / "models" / "toolcall-lm"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(MODEL)


def test_its_size(model: torch.nn.Module, tokenizer: Any) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) <= 10_000_000
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= 25_000_000
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.max_position_embeddings == 2048
    assert model.dtype == torch.float32


def test_it_ends_with_its_tokenizers_eos(model: torch.nn.Module, tokenizer: Any) -> None:
    assert tokenizer.eos_token == "<eos>"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.chat_template is None


@settings(deadline=None, max_examples=100)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_texts_come_back_as_they_went_in(tokenizer: Any, text: str) -> None:
    if "<eos>" not in text and "<pad>" not in text:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_its_hmm_names_its_tokens(model: torch.nn.Module, tokenizer: Any) -> None:
    """What `hmm.checkpoint.name_vocabulary` writes, the digest of every token's bytes included."""
    vocabulary = TransformersLM(model, tokenizer).vocabulary
    config = load(EMBEDDED_HMM, vocabulary=vocabulary).config
    assert config["vocabulary_digest"] == vocabulary.fingerprint.hex()
    swapped = [*vocabulary.token_bytes]
    swapped[700], swapped[701] = swapped[701], swapped[700]
    with pytest.raises(ValueError, match="bytes differ"):
        load(EMBEDDED_HMM, vocabulary=gcd.Vocabulary.from_bytes(swapped, vocabulary.eos_ids))


def test_every_byte_has_a_token(tokenizer: Any) -> None:
    assert len({tokenizer(chr(b))["input_ids"][0] for b in range(128)}) == 128
    assert len(tokenizer("\U0010ffff")["input_ids"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_it_answers_requests_for_tools_it_never_saw(
    model: torch.nn.Module, tokenizer: Any, style: str
) -> None:
    right = exact_match(model, tokenizer, generate(40, 77, split="held_out"), style)
    assert sum(right) >= 6  # 10 when it was made; the card has a larger sample
