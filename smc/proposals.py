"""A proposal is the distribution from which the next token is drawn, given the constraint.

A proposal q(v) is proportional to p_lm(v) · g(v).  `guide` returns log g and the log of
Z = sum_v p_lm(v) g(v); the sampler draws from the product and sees to the weights.

    LM     g = 1                                              rejection baseline
    LCD    g = 1{ prefix can be completed at some length }    locally constrained decoding
    GCD    g = 1{ prefix can be completed within the remaining budget }
    GreedyClose    LCD's g, and GCD's once the budget is just enough for a shortest completion

A proposal sees token histories only, neither the language model nor weights.  It carries an
immutable state with one row per prefix, which has a `Walk`: where each prefix is in its automaton,
and how many tokens it may still take.  As the state is a function of the tokens alone, equal
prefixes have equal rows, and rolling back is keeping the old state.  A proposal that looks ahead
with a tractable model is in `smc.twisted`.

The sampler needs to know from a walk when a prefix is over:

    finished    in the automaton's final state: EOS was drawn where the constraint allows it
    dead        it left the language, or its budget is spent; `LM` also ends a prefix that can no
                longer finish in time, as its target has no mass there

Cost of a step: O(R·V) for R prefixes, memory-bound; a lookup of next states per token class and a
comparison with the remaining budget.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64
from torch import Tensor

from gcd.tokens.batch import AutomatonBatch
from gcd.tokens.budget import BudgetMask
from gcd.tokens.token_automaton import UNREACHABLE
from smc.scores import Outlook, Scores, scores_of
from smc.tabled import Tabled
from smc.vocabulary.class_mass import MaskGuide
from smc.vocabulary.factors import Guide, TiedGuide, by_class_alone


class Batch(NamedTuple):
    """The B examples that are sampled together, each with its own automaton and budget.

    Attributes:
        automata: one automaton per example, states numbered through.
        budgets: most tokens of each answer, EOS included.
    """

    automata: AutomatonBatch
    budgets: Int64[Tensor, "B"]


class Walk(NamedTuple):
    """The states of R prefixes in their automata, and what is left of their budgets.

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

    @property
    def which(self) -> Int64[Tensor, "R"]:
        """The automaton of each prefix; any, once it left the language."""
        return self.automata.automaton_of[self.states.clamp(min=0)]

    def only(self, alive: Bool[Tensor, "R C"]) -> Int64[Tensor, "R"]:
        """Returns the one token of these classes, where there is one and no other, or -1."""
        start = self.automata.classes.start[self.which]
        sizes = torch.where(alive, start.diff(dim=1), 0)
        klass = sizes.argmax(dim=1, keepdim=True)
        first = start.gather(1, klass).squeeze(1).clamp(max=self.automata.classes.of.shape[1] - 1)
        token = self.automata.classes.tokens[self.which, first].long()
        return torch.where(self.running & (sizes.sum(dim=1) == 1), token, -1)

    def outlook(self) -> Outlook:
        """Returns where each class of tokens leads."""
        after = self.automata.next_by_class(self.states)
        ends = (after >= 0) & self.automata.is_final[after.clamp(min=0)]
        return Outlook(self.automata.classes, self.which, after, ends)

    def steps_after_classes(self) -> Int32[Tensor, "R C"]:
        """Returns the fewest tokens to the end after one of each class, or `UNREACHABLE`.

        A class is allowed within the budget where this is less than `remaining`, and completes the
        text where it is zero.
        """
        return self.mask.steps_after(self.states)

    def steps_after_tokens(self, tokens: Int64[Tensor, "R K"]) -> Int32[Tensor, "R K"]:
        """Does what `steps_after_classes` does, for some tokens of each row."""
        after = self.automata.next(self.states.unsqueeze(1).expand_as(tokens), tokens)
        steps = self.automata.steps_to_accept[after.clamp(min=0)]
        return torch.where(after >= 0, steps, UNREACHABLE)

    def take(self, rows: Int64[Tensor, "Q"]) -> Walk:
        """Returns the walks of these rows."""
        return self._replace(states=self.states[rows], remaining=self.remaining[rows])

    def advance(self, tokens: Int[Tensor, "R T"]) -> Walk:
        """Walks on by these tokens; -1 stands for no token, and a prefix that is over stays."""
        states, remaining = self.states, self.remaining
        for token in tokens.long().unbind(dim=1):
            moves = (token >= 0) & (states >= 0) & (remaining > 0)
            moves &= ~self.automata.is_final[states.clamp(min=0)]
            after = self.automata.next(states, token.clamp(min=0))
            states = torch.where(moves, after, states)
            remaining = remaining - moves.long()
        return self._replace(states=states, remaining=remaining)


def start_walk(batch: Batch) -> Walk:
    """Returns the walks of empty prefixes, one per example, each with its whole budget left."""
    budgets = batch.budgets
    return Walk(
        automata=batch.automata,
        mask=BudgetMask(batch.automata, budgets),
        states=batch.automata.initial,
        remaining=budgets,
    )


@runtime_checkable
class Progress(Protocol):
    """What the sampler asks about R prefixes; a `Walk` answers it."""

    @property
    def finished(self) -> Bool[Tensor, "R"]:
        """True where the answer is complete."""
        ...

    @property
    def running(self) -> Bool[Tensor, "R"]:
        """True where another token is due."""
        ...

    @property
    def states(self) -> Int64[Tensor, "R"]:
        """The state of each prefix in its automaton; -1 once it left the language."""
        ...

    def outlook(self) -> Outlook:
        """Returns where each class of tokens leads."""
        ...


@runtime_checkable
class HasWalk(Protocol):
    """What every proposal's state has; the rest is up to the proposal."""

    @property
    def walk(self) -> Progress:
        """Which prefixes are finished, and which go on."""
        ...


State = TypeVar("State", bound=HasWalk)
"""The state of a proposal."""


@runtime_checkable
class Proposal(Tabled, Protocol[State]):
    """A family of distributions over the next token, one per prefix.

    To write one, derive from this class and give `start`, `guide`, `advance` and `take`; the other
    members have defaults, those of a proposal that never refuses and keeps nothing in memory.

    Attributes:
        potential: how the weights use g. True: g(x_t) is itself the potential psi_t of the prefix,
            so that the increment Z_t / psi_{t-1} is known before x_t is drawn, and resampling comes
            before drawing. (Where g is 0 or 1, psi is 1 and the increment Z_t.) False: the
            increment is Z_t / g(x_t), known after the draw.
    """

    potential: bool = True

    @abstractmethod
    def start(self, batch: Batch) -> State:
        """Returns the state of B empty prefixes, one per example.

        Raises:
            ConstraintError: the proposal cannot serve these constraints; see `check`.
        """
        ...

    @abstractmethod
    def guide(self, state: State, log_p: Float[Tensor, "R V"]) -> Guide:
        """Returns log g and log Z, given the log-probabilities of the next token."""
        ...

    def forced(self, state: State) -> Int64[Tensor, "R"]:
        """Returns the only token that g allows after each prefix, -1 where there are several.

        The language model need not be asked before such a token (`smc.forced`). A proposal that
        does not know returns -1 everywhere, which is the default, and is asked token by token.
        """
        states = state.walk.states
        return torch.full_like(states, -1)

    def log_g_of_forced(self, state: State, tokens: Int64[Tensor, "R"]) -> Float64[Tensor, "R"]:
        """Returns log g of tokens that `forced` gave, as `guide` would."""
        return torch.zeros_like(tokens, dtype=torch.float64)

    @abstractmethod
    def advance(self, state: State, tokens: Int[Tensor, "R T"]) -> State:
        """Returns the state after one or several more tokens; -1 stands for no token."""
        ...

    @abstractmethod
    def take(self, state: State, ancestors: Int64[Tensor, "Q"]) -> State:
        """Returns the state of these rows."""
        ...

    def without_host_sync(self) -> Proposal[State]:
        """Returns the proposal as one that never waits for the device, for steps in static shapes.

        That is itself, if not overridden; should it wait, it is refused there (`smc.waits`).
        """
        return self

    def score(self, state: State, log_p: Float[Tensor, "R V"]) -> Scores:
        """Returns g as the discrete particle filter scores next tokens with it (`smc.filter`).

        That is the g of `guide`, unless a proposal makes its g safe row by row, as that filter sees
        to the safety of all prefixes of an example together.
        """
        return scores_of(self.guide(state, log_p), state.walk.outlook())


class MaskProposal(Proposal[Walk]):
    """The base of proposals whose state is a `Walk` and nothing more; they give `guide` alone.

    All of this module are of this kind: their g is zero or one.
    """

    def start(self, batch: Batch) -> Walk:
        """Returns one empty prefix per example."""
        return start_walk(batch)

    def advance(self, state: Walk, tokens: Int[Tensor, "R T"]) -> Walk:
        """Walks on."""
        return state.advance(tokens)

    def take(self, state: Walk, ancestors: Int64[Tensor, "Q"]) -> Walk:
        """Returns the walks of these rows."""
        return state.take(ancestors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class LM(MaskProposal):
    """The language model itself is the proposal; what breaks the constraint or the budget dies."""

    def guide(self, state: Walk, log_p: Float[Tensor, "R V"]) -> TiedGuide:
        """Returns g = 1, Z = 1."""
        R, C = len(state.states), state.automata.widest
        even = torch.zeros(R, C, dtype=torch.float64, device=log_p.device)
        return TiedGuide(by_class_alone(even, state.automata.classes, state.which), even[:, 0])

    def score(self, state: Walk, log_p: Float[Tensor, "R V"]) -> Scores:
        """Returns the same: every token is a candidate, and weighs what it weighs."""
        outlook, factors = state.outlook(), self.guide(state, log_p).factors
        return Scores(factors, torch.ones_like(outlook.ends), outlook, is_indicator=True)

    def advance(self, state: Walk, tokens: Int[Tensor, "R T"]) -> Walk:
        """Walks on; a prefix that cannot be completed in time has left the target's support."""
        after = state.advance(tokens)
        needed = after.automata.steps_to_accept[after.states.clamp(min=0)]
        late = ~after.finished & (needed > after.remaining)
        return after._replace(states=torch.where(late, -1, after.states))


class ClassMaskProposal(MaskProposal):
    """The base of proposals that allow some classes of tokens; they give `alive` alone."""

    @abstractmethod
    def alive(self, walk: Walk) -> Bool[Tensor, "R C"]:
        """Returns the classes that are allowed after each prefix."""
        ...

    def guide(self, state: Walk, log_p: Float[Tensor, "R V"]) -> MaskGuide:
        """Returns g = 1{allowed}."""
        return MaskGuide(log_p, self.alive(state), state.automata.classes, state.which)

    def forced(self, state: Walk) -> Int64[Tensor, "R"]:
        """Returns the only token that is allowed, or -1."""
        return state.only(self.alive(state))


class LCD(ClassMaskProposal):
    """Locally constrained decoding allows what can be completed at some length."""

    def alive(self, walk: Walk) -> Bool[Tensor, "R C"]:
        """Returns the classes after which the text is completable at some length."""
        return walk.mask.lcd_class_mask(walk.states)


class GCD(ClassMaskProposal):
    """Globally constrained decoding allows what can be completed within the budget."""

    def alive(self, walk: Walk) -> Bool[Tensor, "R C"]:
        """Returns the classes after which the text is completable within the budget."""
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

    def alive(self, walk: Walk) -> Bool[Tensor, "R C"]:
        """Returns what is completable at some length, or, where time is up, within the budget."""
        needed = walk.automata.steps_to_accept[walk.states.clamp(min=0)]
        left = torch.where(needed < walk.remaining, UNREACHABLE, walk.remaining)
        return walk.mask.class_mask(walk.states, left)
