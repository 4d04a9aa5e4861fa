"""A pass over the vocabulary weighs the next tokens of P particles and draws one for each.

What a step does with N particles is small; what it does with V tokens is not. So this is where the
time is, and there is more than one way to do it, all with the same results to rounding:

    torch       tensor operations: log-softmax, tilt, exponentials, running sums, bisection. The
                reference, for any device: for the same numbers it draws what `smc.sampler` draws
    fused       one reading of the logits gives sums over blocks of tokens, of exp(logit / T) and of
                exp(logit / T) g: these are log Z. A second one, of a single block, finds the token.
                Compiled for the CPU (`smc.kernels.blocks`), in Triton elsewhere
                (`smc.static.triton_blocks`)

Tokens are drawn from the row of an ancestor that is known only after all rows have been weighed;
hence two calls, `weigh` and `Weighed.draw`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from smc.draw import Categorical, categorical
from smc.guide import Factors, Guide, by_class_alone
from smc.proposals import LM, Proposal
from smc.twisted import Twisted
from smc.tying import MaskGuide


@runtime_checkable
class Weighed(Protocol):
    """The next tokens of P particles, weighed and ready to be drawn."""

    @property
    def log_z(self) -> Float64[Tensor, "P"]:
        """log of the sum over v of p(v) g(v)."""
        ...

    def draw(self, rows: Int64[Tensor, "P"], u: Float64[Tensor, "P"]) -> Int64[Tensor, "P"]:
        """Returns the token at u of the distribution of each of these rows."""
        ...

    def breaks(self, rows: Int64[Tensor, "P"]) -> Float64[Tensor, "P V"]:
        """Returns where in (0, 1) the token drawn from each of these rows changes."""
        ...

    def log_g(self, rows: Int64[Tensor, "P"], tokens: Int64[Tensor, "P"]) -> Float64[Tensor, "P"]:
        """Returns log g of one token in each of these rows."""
        ...


@runtime_checkable
class Pass(Protocol):
    """A way to go over the vocabulary."""

    def weigh(
        self,
        proposal: Proposal[Any],
        state: Any,
        logits: Float[Tensor, "R V"],
        row: Int64[Tensor, "P"],
        temperature: float,
    ) -> Weighed:
        """Weighs the next tokens.

        Args:
            proposal: whose g it is.
            state: of the P particles.
            logits: log-probabilities of the next token at temperature one, to an added constant,
                by rows of the model.
            row: the row of each particle.
            temperature: of p.
        """
        ...


class TorchWeighed(NamedTuple):
    """What `TorchPass` knows: all of q, by token."""

    guide: Guide
    q: Categorical

    @property
    def log_z(self) -> Float64[Tensor, "P"]:
        return self.guide.log_z.double()

    def draw(self, rows: Int64[Tensor, "P"], u: Float64[Tensor, "P"]) -> Int64[Tensor, "P"]:
        return self.q.at(rows, u)

    def breaks(self, rows: Int64[Tensor, "P"]) -> Float64[Tensor, "P V"]:
        return self.q.breaks(rows)

    def log_g(self, rows: Int64[Tensor, "P"], tokens: Int64[Tensor, "P"]) -> Float64[Tensor, "P"]:
        return self.guide.at(rows, tokens)


class TorchPass:
    """Tensor operations; the reference."""

    def weigh(
        self,
        proposal: Proposal[Any],
        state: Any,
        logits: Float[Tensor, "R V"],
        row: Int64[Tensor, "P"],
        temperature: float,
    ) -> TorchWeighed:
        """Weighs the next tokens; see `Pass`."""
        log_p = tempered(logits, temperature)[row]
        guide = guide_of(proposal, state, log_p)
        return TorchWeighed(guide, categorical(guide.tilted(log_p)))


def tempered(logits: Float[Tensor, "R V"], temperature: float) -> Float[Tensor, "R V"]:
    """Returns log p at this temperature, in the logits' precision, float32 at least."""
    precision = torch.promote_types(logits.dtype, torch.float32)
    log_p = logits.log_softmax(dim=1, dtype=precision)
    return log_p if temperature == 1 else (log_p / temperature).log_softmax(dim=1)


class Weighable(NamedTuple):
    """What fused passes sum up: scores of tokens, and factors g of classes and of a few tokens.

    Attributes:
        scores: logits by rows of the model, or log p by particle.
        row: the row of each particle.
        temperature: that the scores are still to be divided by.
        factors: log g.
        log_z: where it is known already.
    """

    scores: Float[Tensor, "R V"]
    row: Int64[Tensor, "P"]
    temperature: float
    factors: Factors
    log_z: Float64[Tensor, "P"] | None


def weighable(
    proposal: Proposal[Any],
    state: Any,
    logits: Float[Tensor, "R V"],
    row: Int64[Tensor, "P"],
    temperature: float,
) -> Weighable:
    """Asks the proposal for factors; the arguments are those of `Pass.weigh`.

    A lookahead wants probabilities, of the model's favourites and of classes; others are content
    with logits, whose normaliser then is one of the sums.
    """
    factors = factors_of(proposal, state, logits)
    if factors is not None:
        return Weighable(logits, row, temperature, factors, None)
    log_p = tempered(logits, temperature)[row]
    guide: Any = guide_of(proposal, state, log_p)
    own = torch.arange(len(row), device=row.device)
    return Weighable(log_p, own, 1.0, guide.factors, guide.log_z.double())


def guide_of(proposal: Proposal[Any], state: Any, log_p: Float[Tensor, "P V"]) -> Guide:
    """Returns what the proposal says, without waiting to see whether it is a number."""
    if isinstance(proposal, Twisted):
        return proposal.unchecked_guide(state, log_p)
    return proposal.guide(state, log_p)


def factors_of(proposal: Proposal[Any], state: Any, logits: Float[Tensor, "R V"]) -> Factors | None:
    """Returns g by class, where the proposal knows it without the model's probabilities."""
    walk = state.walk
    if isinstance(proposal, LM):
        C = walk.automata.widest
        even = torch.zeros(len(walk.states), C, dtype=torch.float64, device=logits.device)
        return by_class_alone(even, walk.automata.classes, walk.which)
    if isinstance(proposal, Twisted):
        return None
    guide = proposal.guide(state, logits)
    return guide.factors if isinstance(guide, MaskGuide) else None
