"""Tokenization of prompts that are given as text.

A tokenizer adds special tokens to a text, usually a beginning-of-sequence token (BOS). Text from a
chat template already begins with this token. A second BOS is wrong: few models were trained with
two, and it changes all log-probabilities. Therefore a text that begins with the first special token
that its tokenizer would prepend is encoded without special tokens.
"""

from __future__ import annotations

from typing import Any


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Encode text with the tokenizer's special tokens, unless the text already begins with them."""
    ids = _ids(tokenizer, text, add_special_tokens=True)
    if ids[:1] and ids[0] in ids[1:]:  # the first special token occurs again, possibly by mistake
        plain = _ids(tokenizer, text, add_special_tokens=False)
        if plain[:1] == _find_prepended(tokenizer)[:1]:
            return plain
    return ids


def _find_prepended(tokenizer: Any) -> list[int]:
    """Return the special tokens that the tokenizer puts before a text."""
    probe = "a"
    ids = _ids(tokenizer, probe, add_special_tokens=True)
    plain = _ids(tokenizer, probe, add_special_tokens=False)
    for begin in range(len(ids) - len(plain) + 1):
        if ids[begin : begin + len(plain)] == plain:
            return ids[:begin]
    return []


def _ids(tokenizer: Any, text: str, *, add_special_tokens: bool) -> list[int]:
    # With `verbose`, the tokenizer would warn about the length, which `check_prompts` checks.
    options = {} if add_special_tokens else {"add_special_tokens": False}
    return list(tokenizer(text, verbose=False, **options)["input_ids"])
