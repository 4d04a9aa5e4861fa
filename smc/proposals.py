"""Proposals: from which distribution the next token is drawn, given the constraint.

A proposal q(v) is proportional to p_lm(v) · g(v).  `guide` returns log g and the log of
Z = sum_v p_lm(v) g(v); the sampler draws from the product and sees to the weights.

    LM     g = 1                                              rejection baseline
    LCD    g = 1{ prefix can be completed at some length }    locally constrained decoding
    GCD    g = 1{ prefix can be completed within the remaining budget }

A proposal sees token histories only, neither the language model nor weights.  It carries an
immutable state with one row per prefix, which begins with a `Walk`: where each prefix is in its
automaton, and how many tokens it may still take.  As the state is a function of the tokens alone,
equal prefixes have equal rows, and rolling back is keeping the old state.

The sampler needs to know from a walk when a prefix is over:

    finished    in the automaton's final state: EOS was drawn where the constraint allows it
    dead        it left the language, or its budget is spent; `LM` also ends a prefix that can no
                longer finish in time, as its target has no mass there

Cost of a step: O(R·V) for R prefixes, memory-bound; a lookup of next states per token class and a
comparison with the remaining budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from gcd.tokens.batch import AutomatonBatch
from gcd.tokens.budget import BudgetMask
from gcd.tokens.token_automaton import TokenAutomaton
from smc.tying import TiedGuide, even_guide


class Batch(NamedTuple):
    """What is to be generated: B examples, each with its own automaton and budget.

    Attributes:
        automata: one automaton per example, states numbered through.
        budgets: most tokens of each answer, EOS included.
    """

    automata: AutomatonBatch
    budgets: Int64[Tensor, "B"]


class Walk(NamedTuple):
    """Where R prefixes are in their automata.

    Attributes:
        automata: the automata of the batch.
        mask: which next tokens keep a prefix completable.
        states: state of each prefix; -1 once it left the language.
        remaining: tokens that each prefix may still take, EOS included.
    """

    automata: AutomatonBatch
    mask: BudgetMask
    states: Int64[Tensor, "R"]
    remaining: Int64[Tensor, "R"]

    @property
    def walk(self) -> Walk:
        """Itself: a walk alone is a complete proposal state."""
        return self

    @property
    def finished(self) -> Bool[Tensor, "R"]:
        """True where the answer is complete."""
        return (self.states >= 0) & self.automata.is_final[self.states.clamp(min=0)]

    @property
    def running(self) -> Bool[Tensor, "R"]:
        """True where another token is due: neither finished nor dead."""
        return (self.states >= 0) & ~self.finished & (self.remaining > 0)

    def take(self, rows: Int64[Tensor, "Q"]) -> Walk:
        """The walks of these rows."""
        return self._replace(states=self.states[rows], remaining=self.remaining[rows])

    def advance(self, tokens: Int[Tensor, "R T"]) -> Walk:
        """After these tokens; -1 stands for no token, and nothing moves a prefix that is over."""
        states, remaining = self.states, self.remaining
        for token in tokens.long().unbind(dim=1):
            moves = (token >= 0) & (states >= 0) & (remaining > 0)
            moves &= ~self.automata.is_final[states.clamp(min=0)]
            after = self.automata.next(states, token.clamp(min=0))
            states = torch.where(moves, after, states)
            remaining = remaining - moves.long()
        return self._replace(states=states, remaining=remaining)


def start_walk(batch: Batch) -> Walk:
    """One prefix per example, empty, with the whole budget before it."""
    budgets = batch.budgets
    return Walk(
        automata=batch.automata,
        mask=BudgetMask(batch.automata, budgets),
        states=batch.automata.initial,
        remaining=budgets,
    )


@runtime_checkable
class ProposalState(Protocol):
    """An immutable tuple of tensors with one row per prefix, and constants that they index."""

    @property
    def walk(self) -> Walk:
        """Where the prefixes are."""
        ...


class Guide(NamedTuple):
    """The proposal's view of the next token.

    Attributes:
        log_g: log g(v); -inf for a token that must not be drawn.
        log_z: log sum_v p_lm(v) g(v); -inf where no token can be drawn.
        lost: rows where g is a makeshift, because whoever computes it had nothing to say; None for
            none. They are counted.
    """

    log_g: Float64[Tensor, "R V"]
    log_z: Float64[Tensor, "R"]
    lost: Bool[Tensor, "R"] | None = None

    def at(self, rows: Int64[Tensor, "M"], tokens: Int64[Tensor, "M"]) -> Float64[Tensor, "M"]:
        """log g of one token each."""
        return self.log_g[rows, tokens]

    def tilted(self, log_p: Float[Tensor, "R V"]) -> Float64[Tensor, "R V"]:
        """log p(v) + log g(v), which is the log of Z q(v)."""
        return log_p + self.log_g


@runtime_checkable
class Proposal(Protocol):
    """A family of distributions over the next token, one per prefix.

    `potential` says how its weights enter.  True: g(x_t) is itself the potential psi_t of the
    prefix, so that the increment Z_t / psi_{t-1} is known before x_t is drawn, and resampling comes
    before drawing.  (Where g is 0 or 1, psi is 1 and the increment Z_t.)  False: the increment is
    Z_t / g(x_t), known after the draw.
    """

    @property
    def potential(self) -> bool:
        """Whether g is the potential."""
        ...

    def start(self, batch: Batch) -> Any:
        """The state of B empty prefixes, one per example."""
        ...

    def guide(self, state: Any, log_p: Float[Tensor, "R V"]) -> Guide | TiedGuide:
        """log g and log Z, given the log-probabilities of the next token."""
        ...

    def advance(self, state: Any, tokens: Int[Tensor, "R T"]) -> Any:
        """The state after one or several more tokens; -1 stands for no token."""
        ...

    def take(self, state: Any, ancestors: Int64[Tensor, "Q"]) -> Any:
        """The state of these rows."""
        ...


@runtime_checkable
class Checked(Protocol):
    """A proposal that may refuse a batch, and can tell before the language model does any work."""

    def check(self, automata: Sequence[TokenAutomaton], budgets: Sequence[int]) -> None:
        """Raises ConstraintError for what `start` would refuse of these examples."""
        ...


class _Masked:
    """What `LM`, `LCD` and `GCD` share: their state is a `Walk`, their g is zero or one."""

    potential = True

    def start(self, batch: Batch) -> Walk:
        """One empty prefix per example."""
        return start_walk(batch)

    def advance(self, state: Walk, tokens: Int[Tensor, "R T"]) -> Walk:
        """Walks on."""
        return state.advance(tokens)

    def take(self, state: Walk, ancestors: Int64[Tensor, "Q"]) -> Walk:
        """The walks of these rows."""
        return state.take(ancestors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class LM(_Masked):
    """The language model itself; a sample that breaks the constraint or the budget dies."""

    def guide(self, state: Walk, log_p: Float[Tensor, "R V"]) -> Guide:
        """g = 1, Z = 1."""
        log_g = torch.zeros_like(log_p, dtype=torch.float64)
        return Guide(log_g, log_g.new_zeros(log_p.shape[0]))

    def advance(self, state: Walk, tokens: Int[Tensor, "R T"]) -> Walk:
        """Walks on; a prefix that cannot be completed in time has left the target's support."""
        after = state.advance(tokens)
        needed = after.automata.steps_to_accept[after.states.clamp(min=0)]
        late = ~after.finished & (needed > after.remaining)
        return after._replace(states=torch.where(late, -1, after.states))


class LCD(_Masked):
    """Locally constrained decoding: whatever can still be completed, never mind the budget."""

    def guide(self, state: Walk, log_p: Float[Tensor, "R V"]) -> TiedGuide:
        """g = 1{completable at some length}."""
        return _masked(state, log_p, state.mask.lcd_class_mask(state.states))


class GCD(_Masked):
    """Globally constrained decoding: whatever can still be completed within the budget."""

    def guide(self, state: Walk, log_p: Float[Tensor, "R V"]) -> TiedGuide:
        """g = 1{completable within the remaining budget}."""
        return _masked(state, log_p, state.mask.class_mask(state.states, state.remaining))


def _masked(walk: Walk, log_p: Float[Tensor, "R V"], classes: Bool[Tensor, "R C"]) -> TiedGuide:
    """g = 1 for these classes of tokens, 0 for the others."""
    which = walk.automata.automaton_of[walk.states.clamp(min=0)]
    return even_guide(log_p, walk.automata.classes, which, classes)
