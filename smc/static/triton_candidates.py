"""Triton kernels go over the candidates of P prefixes: greatest scores, sums, points of a sum.

The kernels are those that draw tokens (`smc.static.triton_blocks`). The K greatest scores of a row
lie in the K blocks whose greatest scores are greatest, so that only these are looked into after one
reading that sums up every block; what is left of them is added to the sums of the other blocks, and
nothing is subtracted. To find candidates at points of the running sum over those that are not kept
for certain, these get a factor of zero of their own, and a second reading sums up blocks again.

The oracle is `smc.static.candidates.TENSORS`. Tested in Triton's interpreter, on CPU
tensors; not measured, as no machine with a GPU was at hand.
"""

from __future__ import annotations

import torch
import triton
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from smc.candidates import Known, Weighed, repeated
from smc.guide import Factors
from smc.static.candidates import Candidates
from smc.static.triton_blocks import BLOCK, TritonWeighed, block_sums, own_tokens


def weigh(log_p: Float[Tensor, "P V"], factors: Factors, most: int) -> Weighed:
    """Does what `smc.candidates.weigh` does: one reading, and a look into a few blocks."""
    P, V = log_p.shape
    whole = _summed(log_p, factors)
    sums, blocks = whole.sums, triton.cdiv(V, BLOCK)
    _, best = sums.top.topk(min(most, blocks), dim=1)
    token = (best.unsqueeze(2) * BLOCK + torch.arange(BLOCK, device=best.device)).flatten(1)
    inside, token = token < V, token.clamp(max=V - 1)
    row = torch.arange(P, device=best.device).unsqueeze(1).expand_as(token)
    klass = factors.classes.of[factors.which.unsqueeze(1), token].long()
    log_g = factors.by_class.gather(1, klass)
    if whole.own is not None:
        own = whole.own.gather(1, token).long()
        mine = factors.by_token.gather(1, (own - 1).clamp(min=0))
        log_g = torch.where(own > 0, mine, log_g)
    score = (log_p[row, token] + log_g).masked_fill(~inside, -torch.inf)
    log_score, place = score.topk(most, dim=1)
    left = score.scatter(1, place, -torch.inf).logsumexp(dim=1)
    others = (sums.top + sums.total.log()).scatter(1, best, -torch.inf).logsumexp(dim=1)
    tokens = torch.where(log_score.isneginf(), 0, token.gather(1, place))
    return Weighed(tokens, log_score, torch.logaddexp(left, others))


def locate(
    log_p: Float[Tensor, "P V"],
    factors: Factors,
    known: Known,
    log_c: Float64[Tensor, "P"],
    rows: Int64[Tensor, "M"],
    targets: Float64[Tensor, "M"],
) -> Int64[Tensor, "M"]:
    """Does what `smc.candidates.locate` does: another reading, and one of a block a target."""
    others = _summed(log_p, without(factors, known))
    log_mass = (others.sums.top + others.sums.total.log()).logsumexp(dim=1)
    possible = ~(log_mass.isneginf() | log_c.isneginf())[rows]
    # A target beyond the last candidate, by rounding, is that candidate's.
    share = (targets.log() + (log_c - log_mass)[rows]).exp()
    u = torch.where(possible, share, 0.5).clamp(min=0, max=1)
    found = others.draw(rows, u)
    return torch.where(possible & ~repeated(rows, found), found, -1)


TRITON = Candidates(weigh, locate)


def without(factors: Factors, known: Known) -> Factors:
    """Returns the same factors, but zero for candidates that are kept for certain."""
    column = torch.arange(known.tokens.shape[1], device=known.tokens.device)
    sure = column < known.kept.unsqueeze(1)
    tokens = torch.cat([factors.tokens, known.tokens], dim=1)
    P, K = tokens.shape
    row = torch.arange(P, device=tokens.device).repeat_interleave(K, output_size=P * K)
    log_g = factors.at(row, tokens.flatten()).view(P, K)
    hidden = ((tokens.unsqueeze(2) == known.tokens.unsqueeze(1)) & sure.unsqueeze(1)).any(dim=2)
    return factors._replace(tokens=tokens, by_token=log_g.masked_fill(hidden, -torch.inf))


def _summed(log_p: Float[Tensor, "P V"], factors: Factors) -> TritonWeighed:
    """All rows, summed up by blocks."""
    row = torch.arange(len(log_p), device=log_p.device)
    own = own_tokens(factors, log_p)
    sums = block_sums(log_p, row, 1.0, factors, own)
    return TritonWeighed(log_p, row, 1.0, factors, own, sums, sums.log_z)
