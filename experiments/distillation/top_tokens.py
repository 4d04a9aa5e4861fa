"""Truncated next distributions of a language model: the K most probable tokens after each prefix.

Complete distributions take V numbers per prefix: 8 GB for 80,000 prefixes with 49,152 tokens in
half precision, compared with 31 MB for the 64 most probable tokens. EOS tokens are always included,
however improbable, because lookahead depends on when a text ends.

Each prefix also has a *sketch* of its distribution: all V logits minus their mean, randomly
projected to `SKETCH` numbers. Logits are linear in the last hidden state, so positions with similar
sketches have similar hidden states. Hidden states contain more than the next token: after a prompt
the model is certain of most next tokens, and positions with the same next token can still differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Float, Float16, Float32, Float64, Int32, Int64
from torch import Tensor

from experiments.distillation.lumping import Lumping

SKETCH = 128
_ROWS = 1 << 14  # prefixes per part
_LEAST = -100.0  # log-probability of impossible tokens in the sketch
_SEED = 0x5E7C4


@dataclass(frozen=True)
class TopTokens:
    """The most probable next tokens after M prefixes.

    Attributes:
        tokens: tokens of each prefix. EOS tokens come first, then the others by falling
            probability.
        log_p: their log-probabilities.
        sketch: sketch of all logits.
    """

    tokens: Int32[Tensor, "M K"]
    log_p: Float16[Tensor, "M K"]
    sketch: Float16[Tensor, "M D"]

    @classmethod
    def of(cls, log_p: Float[Tensor, "M V"], top: int, eos_ids: Sequence[int]) -> TopTokens:
        """Keep the `top` most probable tokens of complete distributions, EOS tokens first."""
        ranked = log_p.clone()
        ranked[:, list(eos_ids)] = torch.inf
        tokens = ranked.topk(min(max(top, len(eos_ids)), log_p.shape[1]), dim=1).indices
        logits = log_p.float().clamp(min=_LEAST)
        sketch = (logits - logits.mean(dim=1, keepdim=True)) @ _projection(
            logits.shape[1], logits.device
        )
        kept = (tokens.int(), log_p.gather(1, tokens).half(), sketch.half())
        return cls(*(array.cpu() for array in kept))

    @classmethod
    def join(cls, parts: Sequence[TopTokens]) -> TopTokens:
        """Concatenate the lists of several files or steps."""
        columns = ((part.tokens, part.log_p, part.sketch) for part in parts)
        return cls(*(torch.cat(column) for column in zip(*columns, strict=True)))

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: Int64[Tensor, "m"]) -> TopTokens:
        """Return the lists of the prefixes with the given indices."""
        return TopTokens(self.tokens[rows], self.log_p[rows], self.sketch[rows])

    def lump(self, lumping: Lumping) -> TopTokens:
        """Replace tokens by their classes; a class can then be listed more than once."""
        return replace(self, tokens=lumping.class_of[self.tokens.long()].int())

    def sum(self, num_tokens: int) -> Float64[Tensor, "V"]:
        """Return the sum of listed probabilities of each token over all prefixes."""
        sums = torch.zeros(num_tokens, dtype=torch.float64)
        for _, tokens, p in self.pieces():
            sums.index_add_(0, tokens.flatten(), p.flatten())
        return sums

    def pieces(self) -> Iterator[tuple[slice, Int64[Tensor, "R K"], Float64[Tensor, "R K"]]]:
        """Yield some rows at a time, as a slice with the rows' tokens and probabilities."""
        for start in range(0, len(self), _ROWS):
            rows = slice(start, start + _ROWS)
            yield rows, self.tokens[rows].long(), self.log_p[rows].double().exp()


@lru_cache(maxsize=1)
def _projection(num_tokens: int, device: torch.device) -> Float32[Tensor, "V D"]:
    """Return the projection of the sketch, which depends only on V and is equal for all files.

    It nearly preserves distances (Johnson and Lindenstrauss 1984).
    """
    generator = torch.Generator().manual_seed(_SEED)
    return (torch.randn(num_tokens, SKETCH, generator=generator) / SKETCH**0.5).to(device)
