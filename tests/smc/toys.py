"""Small vocabularies and constraints for full enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import smc
from gcd import Automaton, TokenAutomaton, Vocabulary, lift
from smc.testing import ToyLM, ToyRows

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


def many_words() -> TokenAutomaton:
    """Twenty words of up to five letters, with several spellings each."""
    middles = itertools.product("ab", ("", "a", "b"), ("", "a", "ba"))
    return lift(choice(*{"".join(parts) for parts in middles}), VOCABULARY)


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


class Hooked(ToyLM):
    """A toy that calls `before` with the tokens and lengths of each pass after the prompt."""

    def __init__(
        self,
        before: Callable[[Tensor, Tensor], Any],
        vocabulary: Vocabulary = VOCABULARY,
        *,
        seed: int = 1,
        spread: float = 1.5,
    ) -> None:
        super().__init__(vocabulary, seed=seed, spread=spread)
        self.before = before

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[ToyRows, Float[Tensor, "B V"]]:
        _, log_p = super().prefill(prompts)
        return HookedRows(self, [tuple(prompt) for prompt in prompts]), log_p


class HookedRows(ToyRows):
    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        self._lm.before(runs, lengths)  # type: ignore[attr-defined]
        return super().extend(runs, lengths)


class Slow(ToyLM):
    """A toy that takes a hundredth of a second for each prefix, on the clock `now` of deadlines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, seed: int, spread: float = 1.0) -> None:
        super().__init__(VOCABULARY, seed=seed, spread=spread)
        self.now = 0.0
        monkeypatch.setattr("smc._inference.deadlines._clock", lambda: self.now)

    def log_p(self, tokens: tuple[int, ...]) -> Tensor:
        self.now += 0.01
        return super().log_p(tokens)
