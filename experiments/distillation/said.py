"""What a language model says after prefixes is kept as the K most probable tokens of each.

Whole distributions take V numbers a prefix: 8 GB for 80 000 prefixes of a vocabulary of 49 152, in
half precision. The 64 most probable tokens and their log-probabilities take 384 bytes, 31 MB in
all. End-of-sequence tokens are always among them, however improbable: when a text ends is what
lookahead asks first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float16, Float64, Int32, Int64
from torch import Tensor

from hmm.lumping import Lumping

_ROWS = 1 << 14  # prefixes whose lists are widened at once


@dataclass(frozen=True)
class Said:
    """The most probable next tokens after M prefixes.

    Attributes:
        tokens: of each prefix, by falling probability; ends first.
        log_p: their log-probabilities.
    """

    tokens: Int32[Tensor, "M K"]
    log_p: Float16[Tensor, "M K"]

    @classmethod
    def of(cls, log_p: Float[Tensor, "M V"], top: int, eos_ids: Sequence[int]) -> Said:
        """Keep the `top` most probable tokens, the ends among them, of whole distributions."""
        ranked = log_p.clone()
        ranked[:, list(eos_ids)] = torch.inf
        tokens = ranked.topk(min(max(top, len(eos_ids)), log_p.shape[1]), dim=1).indices
        return cls(tokens.int().cpu(), log_p.gather(1, tokens).half().cpu())

    @classmethod
    def joined(cls, parts: Sequence[Said]) -> Said:
        """Join the lists of several files or steps."""
        return cls(torch.cat([p.tokens for p in parts]), torch.cat([p.log_p for p in parts]))

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: Int64[Tensor, "m"]) -> Said:
        """Keep these prefixes alone."""
        return Said(self.tokens[rows], self.log_p[rows])

    def lumped(self, lumping: Lumping) -> Said:
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
