"""Proposals whose g is zero or one need nothing but the automaton's masks.

    LM     g = 1                                              rejection baseline
    LCD    g = 1{ prefix can be completed at some length }    locally constrained decoding
    GCD    g = 1{ prefix can be completed within the remaining budget }
    GreedyClose    LCD's g, and GCD's once the budget is just enough for a shortest completion

Cost of a step: O(R·V) for R prefixes, memory-bound; a lookup of next states per token class and a
comparison with the remaining budget.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from gcd.tokens.token_automaton import UNREACHABLE
from smc.competition import CandidateGuide
from smc.proposals.position import AutomatonPosition, Batch, start_position
from smc.proposals.protocol import Proposal
from smc.vocabulary.class_mass import MaskGuide
from smc.vocabulary.factors import TiedGuide, by_class_alone


class MaskProposal(Proposal[AutomatonPosition]):
    """The base of proposals whose state is an `AutomatonPosition`; subclasses add `guide`.

    All of this module are of this kind: their g is zero or one.
    """

    def start(self, batch: Batch) -> AutomatonPosition:
        """Return one empty prefix per example."""
        return start_position(batch)

    def advance(self, state: AutomatonPosition, tokens: Int[Tensor, "R T"]) -> AutomatonPosition:
        """Walk on."""
        return state.advance(tokens)

    def take(self, state: AutomatonPosition, ancestors: Int64[Tensor, "Q"]) -> AutomatonPosition:
        """Return the walks of these rows."""
        return state.take(ancestors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class LM(MaskProposal):
    """The language model itself is the proposal; what breaks the constraint or the budget dies."""

    def guide(self, state: AutomatonPosition, log_p: Float[Tensor, "R V"]) -> TiedGuide:
        """Return g = 1, Z = 1."""
        R, C = len(state.states), state.automata.widest
        even = torch.zeros(R, C, dtype=torch.float64, device=log_p.device)
        return TiedGuide(
            by_class_alone(even, state.automata.classes, state.automaton_of_row), even[:, 0]
        )

    def score(self, state: AutomatonPosition, log_p: Float[Tensor, "R V"]) -> CandidateGuide:
        """Return the same: every token is a candidate, and weighs what it weighs."""
        successors, factors = state.successors(), self.guide(state, log_p).factors
        return CandidateGuide(
            factors, torch.ones_like(successors.ends), successors, is_indicator=True
        )

    def advance(self, state: AutomatonPosition, tokens: Int[Tensor, "R T"]) -> AutomatonPosition:
        """Walk on; a prefix that cannot be completed in time has left the target's support."""
        after = state.advance(tokens)
        needed = after.automata.steps_to_accept[after.states.clamp(min=0)]
        late = needed > after.remaining  # a complete answer needs none
        return after._replace(states=torch.where(late, -1, after.states))


class ClassMaskProposal(MaskProposal):
    """The base of proposals that allow some classes of tokens; subclasses give `alive` alone.

    It isn't public, because a mask narrower than GCD's would change the target without a word, and
    make bounds wrong, which rely on forced tokens being the only ones that the budget allows
    (`smc.bounds`). To allow less, intersect the languages; for another g, subclass
    `smc.MaskProposal` or `smc.Lookahead`.
    """

    @abstractmethod
    def alive(self, walk: AutomatonPosition) -> Bool[Tensor, "R C"]:
        """Return the classes that are allowed after each prefix."""
        ...

    def guide(self, state: AutomatonPosition, log_p: Float[Tensor, "R V"]) -> MaskGuide:
        """Return g = 1{allowed}."""
        return MaskGuide(log_p, self.alive(state), state.automata.classes, state.automaton_of_row)

    def forced(self, state: AutomatonPosition) -> Int64[Tensor, "R"]:
        """Return the only token that is allowed, or -1."""
        return state.only(self.alive(state))


class LCD(ClassMaskProposal):
    """Locally constrained decoding allows what can be completed at some length."""

    def alive(self, walk: AutomatonPosition) -> Bool[Tensor, "R C"]:
        """Return the classes after which the text is completable at some length."""
        return walk.mask.lcd_class_mask(walk.states)


class GCD(ClassMaskProposal):
    """Globally constrained decoding allows what can be completed within the budget."""

    def alive(self, walk: AutomatonPosition) -> Bool[Tensor, "R C"]:
        """Return the classes after which the text is completable within the budget."""
        return walk.mask.class_mask(walk.states, walk.remaining)


class GreedyClose(ClassMaskProposal):
    """Greedy closing is LCD that heads for a shortest completion when the budget runs low.

    It is the best that an engine can do which masks by a grammar and knows how far each state is
    from the end, but not what a token will do to that distance. With r tokens left, in a state
    whose shortest completion takes d,

        r > d    the mask is LCD's;
        r = d    tokens of shortest completions alone, by their probability among each other;
        r < d    the last token led too far, and the prefix dies at once.

    So a text is lost where one token lengthens what must still be written by more than is left. Its
    mask has every token of GCD's (for r = d it *is* GCD's), so weights are exact.
    """

    def alive(self, walk: AutomatonPosition) -> Bool[Tensor, "R C"]:
        """Return what is completable at some length, or, where time is up, within the budget."""
        needed = walk.automata.steps_to_accept[walk.states.clamp(min=0)]
        left = torch.where(needed < walk.remaining, UNREACHABLE, walk.remaining)
        return walk.mask.class_mask(walk.states, left)
