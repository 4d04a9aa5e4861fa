"""Passes over the vocabulary as Triton kernels on CUDA devices, which read every row once.

`smc._vocabulary.passes` defines the passes, and is the reference implementation. One kernel sums
the weights exp(log p + log g) of each block of tokens, with a scale per block. Another kernel finds
a block by these sums, and the token in it. g is stored by token class. So for each log p, a kernel
reads the 4 bytes of the token's class, and a small table. For tokens with a separate g, it also
reads two bytes per token that locate this g. Exponentials are in the precision of log p, and sums
in float64.

The best candidates are found by tensor operations (`smc._vocabulary.passes.best`), which were
faster than a search in the best blocks.

On an H100, drawing a token for each of 16 rows of 151,936 tokens takes 33 to 45 us, and 590 us with
tensor operations (benchmarks/claims.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from smc._vocabulary.draw import Draws
from smc._vocabulary.factors import Factors
from smc._vocabulary.kernels import triton_blocks as kernels

BLOCK = 1024
"""Number of tokens in a block."""


class Blocks(NamedTuple):
    """The distributions q of R prefixes as sums over blocks of tokens.

    Attributes:
        log_p: log-probabilities of the next token.
        factors: log g.
        log_z: log of the sum over v of p(v) g(v).
        own: for each token, the 1-based index of its separate g; 0 for no separate g. None if no
            token has a separate g.
        top: maximum of log p + log g in each block.
        total: sum of exp(log p + log g - top) over each block.
    """

    log_p: Float[Tensor, "R V"]
    factors: Factors
    log_z: Float64[Tensor, "R"]
    own: Int[Tensor, "R V"] | None
    top: Float64[Tensor, "R blocks"]
    total: Float64[Tensor, "R blocks"]

    def draw(self, rows: Int64[Tensor, "M"], u: Float64[Tensor, "M"]) -> Int64[Tensor, "M"]:
        """Return the token at quantile u of the distribution q of each given row."""
        out = torch.empty_like(rows)
        count = self.top.shape[1]
        kernels.draw[(len(rows),)](
            *_tables(self.log_p, self.factors, self.own), self.top, self.total, rows, u, out,
            *_sizes(self.log_p, self.factors), count,
            **_options(self.log_p, self.own), BLOCKS=triton.next_power_of_2(count),
        )  # fmt: skip
        return out


def prepare_draws(
    factors: Factors, log_p: Float[Tensor, "R V"], needed: Bool[Tensor, "R"] | None = None
) -> Draws:
    """Prepare to draw from q proportional to p g, for R prefixes; see `tensors.prepare_draws`."""
    del needed  # a selection of rows would take a host synchronization
    found = _sum_blocks(log_p, factors)
    log_z = found.log_z if factors.log_z is None else factors.log_z.double()
    return Draws(log_z, found.draw)


def _sum_blocks(log_p: Float[Tensor, "R V"], factors: Factors) -> Blocks:
    """Sum the weights of all rows by blocks of tokens."""
    factors.check(log_p)
    own = _own_tokens(factors, log_p)
    R, count = len(log_p), triton.cdiv(log_p.shape[1], BLOCK)
    top, total = (torch.empty(R, count, dtype=torch.float64, device=log_p.device) for _ in range(2))
    kernels.weigh[(R, count)](
        *_tables(log_p, factors, own), top, total, *_sizes(log_p, factors), count,
        **_options(log_p, own),
    )  # fmt: skip
    log_z = (top + total.log()).logsumexp(dim=1)
    return Blocks(log_p, factors, log_z, own, top, total)


def _own_tokens(factors: Factors, log_p: Float[Tensor, "R V"]) -> Int[Tensor, "R V"] | None:
    """Return the 1-based index of the separate g of each token; 0 for no separate g."""
    K = factors.tokens.shape[1]
    if not K:
        return None
    dtype = torch.int16 if K < 1 << 15 else torch.int32
    index = torch.arange(1, K + 1, dtype=dtype, device=log_p.device)
    none = torch.zeros(log_p.shape, dtype=dtype, device=log_p.device)
    return none.scatter(1, factors.tokens, index.expand(len(log_p), K))


def _tables(log_p: Tensor, factors: Factors, own: Tensor | None) -> tuple[Tensor, ...]:
    """Return the tensors that both kernels read.

    If no token has a separate g, the kernels don't read the last two, which are then placeholders.
    """
    by_class, by_token = factors.by_class.contiguous(), factors.by_token.contiguous()
    classes = factors.classes.of
    return (
        log_p.contiguous(), classes, factors.automaton_of_row, by_class,
        classes if own is None else own, by_class if own is None else by_token,
    )  # fmt: skip


def _sizes(log_p: Tensor, factors: Factors) -> tuple[int, int, int]:
    """Return the numbers of tokens (V), of classes (C), and of tokens with a separate g (K)."""
    return log_p.shape[1], factors.by_class.shape[1], factors.tokens.shape[1]


def _options(log_p: Tensor, own: Tensor | None) -> dict[str, Any]:
    wide = tl.float64 if log_p.dtype == torch.float64 else tl.float32
    return {"OWN": own is not None, "BLOCK": BLOCK, "WIDE": wide}
