"""Packing of boolean masks over tokens into 32-bit words.

Serving engines (vLLM, SGLang) and grammar engines (XGrammar, llguidance) exchange masks in one
layout: row-major int32 words, in which bit `v % 32` of word `v // 32` is 1 if token v is allowed.
Bits past the last token are 0. A mask of 152,000 tokens takes 19 kB.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int32
from torch import Tensor

from gcd._tokens.vocabulary import BITS, num_words


def pack(mask: Bool[Tensor, "*N V"]) -> Int32[Tensor, "*N W"]:
    """Pack boolean masks (true: allowed) over the last axis: V tokens become W words."""
    num_tokens = mask.shape[-1]
    padding = num_words(num_tokens) * BITS - num_tokens
    bits = torch.nn.functional.pad(mask, (0, padding)) if padding else mask
    words = bits.unflatten(-1, (-1, BITS)).to(torch.int32) << _shifts(mask.device)
    # Each word is a sum of distinct powers of two; bit 31 is the sign, so no carry occurs.
    return words.sum(-1, dtype=torch.int32)


def unpack(rows: Int32[Tensor, "*N W"], num_tokens: int) -> Bool[Tensor, "*N V"]:
    """Unpack rows of packed words into boolean masks; the inverse of `pack`."""
    bits = (rows.unsqueeze(-1) >> _shifts(rows.device)) & 1
    return bits.flatten(-2)[..., :num_tokens].bool()


def _shifts(device: torch.device) -> Int32[Tensor, "32"]:
    return torch.arange(BITS, dtype=torch.int32, device=device)
