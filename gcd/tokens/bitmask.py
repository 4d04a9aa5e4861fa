"""Boolean token masks, packed 32 to a word.

Serving engines (vLLM, SGLang) and grammar engines (XGrammar, llguidance) exchange masks in one
layout: row-major int32 words, token v being bit `v % 32` of word `v // 32`, 1 for allowed. Bits
past the last token are 0. A mask of 152 000 tokens is 19 kB that way.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from gcd.tokens.vocabulary import BITS, num_words


def pack(mask: Bool[Tensor, "*N V"]) -> Int32[Tensor, "*N W"]:
    """Pack boolean masks, one row of words for each row of tokens."""
    num_tokens = mask.shape[-1]
    padding = num_words(num_tokens) * BITS - num_tokens
    bits = torch.nn.functional.pad(mask, (0, padding)) if padding else mask
    words = bits.unflatten(-1, (-1, BITS)).to(torch.int32) << _shifts(mask.device)
    # Each word is a sum of distinct powers of two; bit 31 is the sign, so no carry occurs.
    return words.sum(-1, dtype=torch.int32)


def unpack(words: Int32[Tensor, "*N W"], num_tokens: int) -> Bool[Tensor, "*N V"]:
    """The boolean masks behind packed rows.

    Raises:
        ValueError: if the rows are not as wide as `num_tokens` tokens ask for.
    """
    if words.shape[-1] != num_words(num_tokens):
        raise ValueError(
            f"{num_tokens} tokens are packed in {num_words(num_tokens)} words a row, "
            f"got {words.shape[-1]}"
        )
    bits = (words.unsqueeze(-1) >> _shifts(words.device)) & 1
    return bits.flatten(-2)[..., :num_tokens].bool()


def apply_(logits: Float[Tensor, "*N V"], words: Int32[Tensor, "*N W"]) -> Float[Tensor, "*N V"]:
    """Set the logits of tokens that are not allowed to -inf, in place, and return them.

    Logits may be wider than the mask: ids beyond it are not allowed.

    Raises:
        ValueError: if the logits are narrower than the mask by a word or more, so that the two
            cannot be of one vocabulary.
    """
    width, num_masked = logits.shape[-1], words.shape[-1] * BITS
    if width <= num_masked - BITS:
        raise ValueError(
            f"logits have {width} tokens, fewer than the {num_masked - BITS + 1} or more that "
            f"{words.shape[-1]} words of mask stand for"
        )
    bits = (words.unsqueeze(-1) >> _shifts(words.device)) & 1
    refused = bits.flatten(-2) == 0
    minus_infinity = float("-inf")
    logits[..., :num_masked].masked_fill_(refused[..., :width], minus_infinity)
    logits[..., num_masked:] = minus_infinity
    return logits


def _shifts(device: torch.device) -> Int32[Tensor, "32"]:
    return torch.arange(BITS, dtype=torch.int32, device=device)
