"""Small tokenizers, trained in milliseconds, whose segmentations can be enumerated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from gcd import Vocabulary

tokenizers = pytest.importorskip("tokenizers")

CUTS = ("none", "gpt2", "smollm", "llama3")
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _cut(name: str) -> Any:
    cut = tokenizers.pre_tokenizers
    whole = cut.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = cut.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "none":
        return whole
    if name == "gpt2":
        return gpt2
    if name == "smollm":
        return cut.Sequence([cut.Digits(individual_digits=True), gpt2])
    return cut.Sequence([cut.Split(tokenizers.Regex(_LLAMA3), "isolated"), whole])


@cache
def train(corpus: Sequence[str], size: int, cut: str = "gpt2") -> Any:
    """Train a byte-level BPE tokenizer with all bytes, `</s>` as id 0, and at most `size` ids."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = _cut(cut)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """Return its vocabulary, with `</s>` as the end of a text."""
    return Vocabulary.from_tokenizer(tokenizer, eos_ids=[0])


def own(vocabulary: Vocabulary, text: str) -> tuple[int, ...]:
    """Return the tokenizer's own spelling."""
    assert vocabulary.segmentation is not None
    return tuple(vocabulary.segmentation.encode(text))
