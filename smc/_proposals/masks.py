"""Mask proposals, in which the factor g of each token is zero or one.

    LM             g = 1; samples that violate the constraint are rejected
    LCD            g = 1 if the prefix with the token can be completed at some length
    GCD            g = 1 if the prefix with the token can be completed within the remaining budget
    GreedyClose    g of LCD, or g of GCD once the budget only fits a shortest completion

Cost of a step: O(R·V) for R prefixes, limited by memory bandwidth. A step looks up the next state
of each token class, and compares distances to the end with the remaining budget.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from gcd._tokens.token_automaton import UNREACHABLE
from smc._proposals.position import AutomatonPosition, Batch, start_position
from smc._proposals.protocol import Proposal
from smc._vocabulary.factors import Factors


class MaskProposal(Proposal[AutomatonPosition]):
    """Base class of proposals whose state is an `AutomatonPosition`; subclasses implement `guide`.

    All proposals in this module derive from it.
    """

    def start(self, batch: Batch) -> AutomatonPosition:
        """Return the automaton states and budgets of empty prefixes, one per example."""
        return start_position(batch)

    def advance(self, state: AutomatonPosition, tokens: Int[Tensor, "R T"]) -> AutomatonPosition:
        """Return the automaton states and budgets after the given tokens."""
        return state.advance(tokens)

    def take(self, state: AutomatonPosition, ancestors: Int64[Tensor, "Q"]) -> AutomatonPosition:
        """Return the state of the prefixes with these indices, which may repeat."""
        return state.take(ancestors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class LM(MaskProposal):
    """The language model itself as proposal.

    Prefixes that violate the constraint or can't be completed within the budget get weight zero.
    """

    def guide(self, state: AutomatonPosition, log_p: Float[Tensor, "R V"]) -> Factors:
        """Return g = 1 and Z = 1."""
        R, C = len(state.states), state.automata.widest
        every = torch.ones(R, C, dtype=torch.bool, device=log_p.device)
        found = Factors.mask(every, state.automata.classes, state.automaton_of_row)
        return found._replace(log_z=found.by_class[:, 0])

    def advance(self, state: AutomatonPosition, tokens: Int[Tensor, "R T"]) -> AutomatonPosition:
        """Append tokens to the prefixes; drop those that can't be completed within the budget."""
        after = state.advance(tokens)
        needed = after.automata.steps_to_accept[after.states.clamp(min=0)]
        late = needed > after.remaining  # never true for complete answers, which need 0 tokens
        return after._replace(states=torch.where(late, -1, after.states))


class ClassMaskProposal(MaskProposal):
    """Base class of proposals that allow whole token classes; subclasses implement `alive`.

    This class isn't public, because a mask with fewer tokens than GCD's would change the target
    without an error. Such a mask would also invalidate the bounds, which require that a forced
    token is the only token that the budget allows (`smc._inference.bounds`). To allow fewer texts,
    intersect the constraints. To use another g, subclass `smc.MaskProposal` or `smc.Lookahead`.
    """

    @abstractmethod
    def alive(self, position: AutomatonPosition) -> Bool[Tensor, "R C"]:
        """Return True for the token classes that are allowed after each prefix."""
        ...

    def guide(self, state: AutomatonPosition, log_p: Float[Tensor, "R V"]) -> Factors:
        """Return g = 1 for allowed tokens, and 0 for others."""
        return Factors.mask(self.alive(state), state.automata.classes, state.automaton_of_row)

    def forced(self, state: AutomatonPosition) -> Int64[Tensor, "R"]:
        """Return the only allowed token; -1 if several are allowed or none is."""
        return state.only(self.alive(state))


class LCD(ClassMaskProposal):
    """Locally constrained decoding: allow a token if the text can still be completed after it.

    The completion may have any number of tokens.
    """

    def alive(self, position: AutomatonPosition) -> Bool[Tensor, "R C"]:
        """Return True for classes after which the text can be completed at some length."""
        return position.mask.lcd_class_mask(position.states)


class GCD(ClassMaskProposal):
    """Globally constrained decoding: allow a token if the text still fits into the budget."""

    def alive(self, position: AutomatonPosition) -> Bool[Tensor, "R C"]:
        """Return True for classes after which the text can be completed within the budget."""
        return position.mask.class_mask(position.states, position.remaining)


class GreedyClose(ClassMaskProposal):
    """LCD that switches to a shortest completion when just enough tokens are left for it.

    It models an engine that masks by a grammar and knows each state's distance to the end, but not
    how the next token changes this distance. Let r be the number of tokens left, and d the number
    of tokens that a shortest completion takes.

        r > d    the mask is LCD's mask
        r = d    the mask only has the tokens of shortest completions, like GCD's mask
        r < d    the last token led too far from the end, and the prefix gets weight zero

    So a text is lost if a token increases the distance to the end beyond the remaining budget. The
    mask includes every token of GCD's mask, so weights are exact.
    """

    def alive(self, position: AutomatonPosition) -> Bool[Tensor, "R C"]:
        """Return the classes of LCD's mask, or of GCD's mask if a shortest completion just fits."""
        needed = position.automata.steps_to_accept[position.states.clamp(min=0)]
        left = torch.where(needed < position.remaining, UNREACHABLE, position.remaining)
        return position.mask.class_mask(position.states, left)
