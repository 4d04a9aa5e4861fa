"""What a language model says after prefixes is kept as the K most probable tokens of each.

Whole distributions take V numbers a prefix: 8 GB for 80 000 prefixes of a vocabulary of 49 152, in
half precision, against 31 MB for the 64 most probable tokens. End-of-sequence tokens are always
among them, however improbable: when a text ends is what lookahead asks first.

Beside them is a *sketch* of the whole: all V logits, less their mean, projected to `SKETCH` numbers
at random. Logits are a linear function of a language model's last hidden state, so places with near
sketches have near hidden states. These know more than what comes next: a model that reads a prompt
is sure of its next token nearly everywhere, and two places that agree in it need not be alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Float, Float16, Float32, Float64, Int32, Int64
from torch import Tensor

from experiments.distillation.clones import random_projection
from hmm.lumping import Lumping

SKETCH = 128
_ROWS = 1 << 14  # prefixes whose lists are widened at once
_LEAST = -100.0  # log-probability of what a model calls impossible, for the sketch
_SEED = 0x5E7C4


@dataclass(frozen=True)
class TopTokens:
    """The most probable next tokens after M prefixes.

    Attributes:
        tokens: of each prefix, by falling probability; ends first.
        log_p: their log-probabilities.
        sketch: of all logits.
    """

    tokens: Int32[Tensor, "M K"]
    log_p: Float16[Tensor, "M K"]
    sketch: Float16[Tensor, "M D"]

    @classmethod
    def of(cls, log_p: Float[Tensor, "M V"], top: int, eos_ids: Sequence[int]) -> TopTokens:
        """Keep the `top` most probable tokens of whole distributions, the ends among them."""
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
    def joined(cls, parts: Sequence[TopTokens]) -> TopTokens:
        """Join the lists of several files or steps."""
        columns = ((part.tokens, part.log_p, part.sketch) for part in parts)
        return cls(*(torch.cat(column) for column in zip(*columns, strict=True)))

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: Int64[Tensor, "m"]) -> TopTokens:
        """Keep these prefixes alone."""
        return TopTokens(self.tokens[rows], self.log_p[rows], self.sketch[rows])

    def lumped(self, lumping: Lumping) -> TopTokens:
        """Name classes in place of tokens; one may be listed more than once then."""
        return replace(self, tokens=lumping.class_of[self.tokens.long()].int())

    def expected(self, num_tokens: int) -> Float64[Tensor, "V"]:
        """Sum up what is listed of each token, over all prefixes."""
        sums = torch.zeros(num_tokens, dtype=torch.float64)
        for _, tokens, p in self.pieces():
            sums.index_add_(0, tokens.flatten(), p.flatten())
        return sums

    def pieces(self) -> Iterator[tuple[slice, Int64[Tensor, "R K"], Float64[Tensor, "R K"]]]:
        """Yield rows, their tokens and probabilities, some at a time."""
        for start in range(0, len(self), _ROWS):
            rows = slice(start, start + _ROWS)
            yield rows, self.tokens[rows].long(), self.log_p[rows].double().exp()


@lru_cache(maxsize=1)
def _projection(num_tokens: int, device: torch.device) -> Float32[Tensor, "V D"]:
    """The projection of the sketch. It depends on V alone, so sketches of all files agree."""
    generator = torch.Generator().manual_seed(_SEED)
    return random_projection(num_tokens, SKETCH, generator).to(device)
