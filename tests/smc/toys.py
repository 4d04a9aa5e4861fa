"""Small vocabularies and constraints for full enumeration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import smc
from gcd import Automaton, TokenAutomaton, Vocabulary, lift

# Tokens of several bytes, a text with two spellings, an id without bytes, and two EOS ids.
VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"ab", b"", b"", b""], [3, 5])


def choice(*texts: str) -> Automaton:
    """These texts."""
    return Automaton.union([Automaton.literal(text) for text in texts])


def a_star_b() -> TokenAutomaton:
    """Any number of a, then b."""
    return lift(Automaton.literal("a").star() + Automaton.literal("b"), VOCABULARY)


def few_words() -> TokenAutomaton:
    """Four words: one is the beginning of another, and one is long."""
    return lift(choice("a", "ab", "ba", "bbb"), VOCABULARY)


def forced() -> TokenAutomaton:
    """A single word."""
    return lift(choice("ba"), VOCABULARY)


STORIES = Path(__file__).resolve().parents[1] / "models" / "stories260K"
CONSTRAINTS = {"a_star_b": a_star_b, "few_words": few_words, "forced": forced}


def timeless(posterior: smc.Posterior) -> smc.Posterior:
    """The posterior without times."""
    diagnostics = replace(posterior.diagnostics, seconds=0.0, start_seconds=0.0)
    return replace(posterior, diagnostics=diagnostics)


def stories(device: Any = "cpu", layers: int = 2, **options: Any) -> smc.TransformersLM:
    """Some layers of a trained model, in double precision unless the options say otherwise."""
    transformers = pytest.importorskip("transformers")
    given = {"dtype": options.pop("dtype", torch.float64), "num_hidden_layers": layers}
    model = transformers.AutoModelForCausalLM.from_pretrained(STORIES, **given).to(device)
    return smc.TransformersLM(model, transformers.AutoTokenizer.from_pretrained(STORIES), **options)


def tiny_model(seed: int = 1, *, layers: int = 1) -> Any:
    """A `transformers` model over these tokens; token 4, which has no bytes, is its padding."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY.size,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=layers,
        num_attention_heads=1,
        max_position_embeddings=64,
        initializer_range=1.0,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config = GenerationConfig(eos_token_id=[3, 5], pad_token_id=4)
    return model
