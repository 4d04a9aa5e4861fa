"""Triton kernels read the logits of P particles once: mask, temperature, log Z, sums for a draw.

As in `smc.static.blocks`, of which these are the form for accelerators: `weigh` sums the weights
exp(logit / T + log g) of each block of tokens, and exp(logit / T) beside them, every block on its
own scale; `draw` finds a block among the sums, and the token in it. g comes by class of token, so
that what is read is 4 bytes of class beside each logit and a small table; where tokens have their
own g, a map of two bytes a token says which. Exponentials are in the precision of the logits,
float32 at least, sums in float64.

The oracle is `smc.static.passes.TorchPass`. Tested in Triton's interpreter, on CPU tensors; not
measured, as no machine with a GPU was at hand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float64, Int16, Int64
from torch import Tensor

from smc.draw import categorical
from smc.guide import Factors
from smc.kernels import triton_blocks as kernels
from smc.proposals import Proposal
from smc.static.passes import weighable

BLOCK = 1024
"""Tokens of a block."""


class TritonSums(NamedTuple):
    """The rows of P particles summed by blocks, each over exp of its own scale.

    Attributes:
        top_all, sum_all: of exp(logit / T): scale and sum of each block.
        top, total: likewise, of exp(logit / T) g.
    """

    top_all: Float64[Tensor, "P blocks"]
    sum_all: Float64[Tensor, "P blocks"]
    top: Float64[Tensor, "P blocks"]
    total: Float64[Tensor, "P blocks"]

    @property
    def log_z(self) -> Float64[Tensor, "P"]:
        """log of the share of the total that g leaves."""
        every = (self.top_all + self.sum_all.log()).logsumexp(dim=1)
        return (self.top + self.total.log()).logsumexp(dim=1) - every


class TritonWeighed(NamedTuple):
    """What `TritonPass` knows; see `smc.static.passes.Weighed`.

    Attributes:
        logits: by rows of the model, and the row of each particle.
        own: for each token the place of its own g, from 1; 0 for none. None where no token has one.
        log_z: log of the sum over v of p(v) g(v).
    """

    logits: Float[Tensor, "R V"]
    row: Int64[Tensor, "P"]
    temperature: float
    factors: Factors
    own: Int16[Tensor, "P V"] | None
    sums: TritonSums
    log_z: Float64[Tensor, "P"]

    def draw(self, rows: Int64[Tensor, "P"], u: Float64[Tensor, "P"]) -> Int64[Tensor, "P"]:
        """Returns the token at u of the distribution of each of these rows."""
        out = torch.empty_like(rows)
        blocks = self.sums.top.shape[1]
        kernels.draw[(len(rows),)](
            *_tables(self.logits, self.row, self.factors, self.own), self.sums.top,
            self.sums.total, rows, u, out, _inverse(self.temperature, rows),
            *_sizes(self.logits, self.factors), blocks,
            **_options(self.logits, self.own), BLOCKS=triton.next_power_of_2(blocks),
        )  # fmt: skip
        return out

    def breaks(self, rows: Int64[Tensor, "P"]) -> Float64[Tensor, "P V"]:
        """Returns where in (0, 1) the token drawn from each of these rows changes."""
        scores = self.logits[self.row].double() / self.temperature
        return categorical(self.factors.applied(scores)).breaks(rows)

    def log_g(self, rows: Int64[Tensor, "P"], tokens: Int64[Tensor, "P"]) -> Float64[Tensor, "P"]:
        """Returns log g of one token in each of these rows."""
        return self.factors.at(rows, tokens)


class TritonPass:
    """Two kernels, one to weigh and one to draw; see `smc.static.passes.Pass`."""

    def weigh(
        self,
        proposal: Proposal[Any],
        state: Any,
        logits: Float[Tensor, "R V"],
        row: Int64[Tensor, "P"],
        temperature: float,
    ) -> TritonWeighed:
        """Weighs the next tokens; see `Pass`."""
        given = weighable(proposal, state, logits, row, temperature)
        own = own_tokens(given.factors, given.scores)
        sums = block_sums(given.scores, given.row, given.temperature, given.factors, own)
        log_z = sums.log_z if given.log_z is None else given.log_z
        scores, factors = given.scores, given.factors
        return TritonWeighed(scores, given.row, given.temperature, factors, own, sums, log_z)


def own_tokens(factors: Factors, log_p: Float[Tensor, "P V"]) -> Int16[Tensor, "P V"] | None:
    """Maps each token to the place of its own g, from 1; 0 for none."""
    K = factors.tokens.shape[1]
    if not K:
        return None
    place = torch.arange(1, K + 1, dtype=torch.int16, device=log_p.device)
    none = torch.zeros(log_p.shape, dtype=torch.int16, device=log_p.device)
    return none.scatter(1, factors.tokens, place.expand(len(log_p), K))


def block_sums(
    logits: Float[Tensor, "R V"],
    row: Int64[Tensor, "P"],
    temperature: float,
    factors: Factors,
    own: Int16[Tensor, "P V"] | None,
) -> TritonSums:
    """Sums up the row of each particle, by blocks of tokens."""
    P, blocks = len(row), triton.cdiv(logits.shape[1], BLOCK)
    sums = TritonSums(
        *(torch.empty(P, blocks, dtype=torch.float64, device=row.device) for _ in range(4))
    )
    kernels.weigh[(P, blocks)](
        *_tables(logits, row, factors, own), *sums, _inverse(temperature, row),
        *_sizes(logits, factors), blocks, **_options(logits, own),
    )  # fmt: skip
    return sums


def _tables(
    logits: Tensor, row: Tensor, factors: Factors, own: Tensor | None
) -> tuple[Tensor, ...]:
    """What both kernels read; where there is no map, any tensor stands for it."""
    by_class, by_token = factors.by_class.contiguous(), factors.by_token.contiguous()
    classes = factors.classes.of
    return (
        logits.contiguous(), row, classes, factors.which, by_class,
        classes if own is None else own, by_class if own is None else by_token,
    )  # fmt: skip


def _sizes(logits: Tensor, factors: Factors) -> tuple[int, int, int]:
    """V, C and K."""
    return logits.shape[1], factors.by_class.shape[1], factors.tokens.shape[1]


def _inverse(temperature: float, like: Tensor) -> Float64[Tensor, "1"]:
    """1/T where the kernels read it; filled on the device, so that nothing is waited for."""
    return torch.full((1,), 1 / temperature, dtype=torch.float64, device=like.device)


def _options(logits: Tensor, own: Tensor | None) -> dict[str, Any]:
    wide = tl.float64 if logits.dtype == torch.float64 else tl.float32
    return {"OWN": own is not None, "BLOCK": BLOCK, "WIDE": wide}
