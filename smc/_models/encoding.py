"""Tokenization of prompts that are given as text.

A tokenizer adds its special tokens to a text, usually a beginning-of-sequence token (BOS). Text
from a chat template already begins with that token. A second BOS is always wrong: few models were
trained with one, and it shifts every log-probability. So a text that begins with the first special
token that its tokenizer would prepend is encoded without adding special tokens.
"""

from __future__ import annotations

from typing import Any


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Encode text with the tokenizer's special tokens, unless the text already begins with them."""
    ids = _ids(tokenizer, text, add_special_tokens=True)
    if ids[:1] and ids[0] in ids[1:]:  # the first special token may be duplicated
        plain = _ids(tokenizer, text, add_special_tokens=False)
        if plain[:1] == _prepended(tokenizer)[:1]:
            return plain
    return ids


def _prepended(tokenizer: Any) -> list[int]:
    """Return the special tokens that the tokenizer puts before a text."""
    probe = "a"
    ids = _ids(tokenizer, probe, add_special_tokens=True)
    plain = _ids(tokenizer, probe, add_special_tokens=False)
    for begin in range(len(ids) - len(plain) + 1):
        if ids[begin : begin + len(plain)] == plain:
            return ids[:begin]
    return []


def _ids(tokenizer: Any, text: str, *, add_special_tokens: bool) -> list[int]:
    # `verbose` would warn about the length, which `check_prompts` checks anyway.
    options = {} if add_special_tokens else {"add_special_tokens": False}
    return list(tokenizer(text, verbose=False, **options)["input_ids"])
