"""Small vocabularies and constraints for full enumeration."""

from __future__ import annotations

from typing import Any

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


CONSTRAINTS = {"a_star_b": a_star_b, "few_words": few_words, "forced": forced}


def tiny_model(seed: int = 1, *, layers: int = 1) -> Any:
    """A `transformers` model over these tokens; token 4, which has no bytes, is its padding."""
    import torch
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
