"""Proposals: their protocol, positions in automata, mask proposals, and the effect of the budget.

A proposal q(v) is proportional to p_lm(v) · g(v). `Proposal.guide` returns log g. The sampler
computes Z = sum_v p_lm(v) g(v), draws tokens from q, and computes the weights.

**States.** A proposal has an immutable state with one row per prefix. Each row has a position in
its automaton (`AutomatonPosition`). The state depends only on the tokens, so equal prefixes have
equal rows, and a sampler can return to an earlier step by keeping its state. `guide` also receives
the language model's log-probabilities of the next token. A proposal never receives weights. The
sampler decides from the position whether a prefix has ended:

    finished    the automaton is in its final state: EOS was drawn or forced
    dead        the prefix has left the language, or its budget is used up; with `LM`, also a prefix
                that can't be completed within its budget, because its target probability is zero

**Masks** are proposals in which g is zero or one:

    LM             g = 1; samples that violate the constraint are rejected
    LCD            g = 1 if the prefix with the token can be completed at some length
    GCD            g = 1 if the prefix with the token can be completed within the remaining budget
    GreedyClose    g of LCD, or g of GCD once the budget only fits a shortest completion

Cost of a step: O(R·V) for R prefixes, limited by memory bandwidth. A step looks up the next state
of each token class, and compares distances to the end with the remaining budget.

**Effect of the budget.** Let x be a prefix that can still be completed within the budget, with r
tokens left, and v a next token that the constraint allows. The budget *removes* v if a shortest
completion after v takes r tokens or more. Let m(x) be the sum of p_lm(v | x) over these tokens v.
Then

    removed mass  =  sum of p_lm(x) m(x)  over all such prefixes x
                  =  P_lm( a text that obeys the constraint so far can no longer end in time ).

Together with the evidence it bounds the evidence without a budget:

    P_lm(C) <= P_lm(C within n) + removed mass

A sampler estimates the sum without bias, by the weights of the prefixes that it computes. Each
position in a run of forced tokens is evaluated, too, because near its end the budget forces most
tokens. A pass over the vocabulary is needed only where the masks with and without the budget
differ: a next token leads further from the end than r allows (`TokenAutomaton.reach`, one number
per state). In static shapes, the pass is always made.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64
from torch import Tensor

from gcd import AutomatonBatch, BudgetMask, TokenAutomaton
from gcd._tokens.distances import UNREACHABLE
from smc._vocabulary.factors import Factors, log_sum_of_classes, sums_by


class Batch(NamedTuple):
    """B examples that are sampled together, each with an automaton and a budget.

    Attributes:
        automata: one automaton per example, with states numbered consecutively over the batch.
        budgets: maximum number of tokens of each answer, including EOS.
    """

    automata: AutomatonBatch
    budgets: Int64[Tensor, "B"]


class AutomatonPosition(NamedTuple):
    """The automaton states of R prefixes, and their remaining budgets.

    Attributes:
        automata: the automata of the batch.
        mask: GCD's mask, which allows tokens after which the text can be completed in time.
        states: automaton state of each prefix; -1 once the prefix has left the language.
        remaining: number of tokens that each prefix may still take, including EOS.
    """

    automata: AutomatonBatch
    mask: BudgetMask
    states: Int64[Tensor, "R"]
    remaining: Int64[Tensor, "R"]

    @property
    def position(self) -> AutomatonPosition:
        """The object itself, so that a proposal can use it as its state (`HasPosition`)."""
        return self

    @property
    def finished(self) -> Bool[Tensor, "R"]:
        """True for prefixes that are complete answers."""
        return (self.states >= 0) & self.automata.is_final[self.states.clamp(min=0)]

    @property
    def running(self) -> Bool[Tensor, "R"]:
        """True for prefixes that take another token, because they are neither finished nor dead."""
        return (self.states >= 0) & ~self.finished & (self.remaining > 0)

    @property
    def automaton_of_row(self) -> Int64[Tensor, "R"]:
        """The index of each prefix's automaton; arbitrary once the prefix has left the language."""
        return self.automata.automaton_of[self.states.clamp(min=0)]

    @property
    def class_of_token(self) -> Int64[Tensor, "R V"]:
        """The class of every token in each prefix's automaton."""
        return self.automata.class_of[self.automaton_of_row].long()

    def only(self, alive: Bool[Tensor, "R C"]) -> Int64[Tensor, "R"]:
        """Return the only token in the allowed classes; -1 if they have several tokens or none."""
        start = self.automata.classes.start[self.automaton_of_row]
        sizes = torch.where(alive, start.diff(dim=1), 0)
        klass = sizes.argmax(dim=1, keepdim=True)
        first = start.gather(1, klass).squeeze(1).clamp(max=self.automata.classes.of.shape[1] - 1)
        token = self.automata.classes.tokens[self.automaton_of_row, first].long()
        return torch.where(sizes.sum(dim=1) == 1, token, -1)

    def ends(self, *, by_token: bool) -> Bool[Tensor, "R C"]:
        """Return whether each token class, or each token, ends the text."""
        after = self.automata.next_by_class(self.states)
        ends = (after >= 0) & self.automata.is_final[after.clamp(min=0)]
        return ends.gather(1, self.class_of_token) if by_token else ends

    def steps_after_classes(self) -> Int32[Tensor, "R C"]:
        """Return the fewest tokens from the state after each token class to the end of the text.

        The number is `UNREACHABLE` if the end can't be reached. A class is allowed within the
        budget if its number is less than `remaining`, and completes the text if it is zero.
        """
        return self.mask.steps_after(self.states)

    def steps_after_tokens(self, tokens: Int64[Tensor, "R K"]) -> Int32[Tensor, "R K"]:
        """Return the fewest tokens from the state after each given token to the end of the text.

        The number is `UNREACHABLE` if the end can't be reached.
        """
        after = self.automata.next(self.states.unsqueeze(1).expand_as(tokens), tokens)
        steps = self.automata.steps_to_accept[after.clamp(min=0)]
        return torch.where(after >= 0, steps, UNREACHABLE)

    def take(self, rows: Int64[Tensor, "Q"]) -> AutomatonPosition:
        """Return the states and budgets of the prefixes with these indices, which may repeat."""
        return self._replace(states=self.states[rows], remaining=self.remaining[rows])

    def advance(self, tokens: Int[Tensor, "R T"]) -> AutomatonPosition:
        """Return the automaton states and budgets after the given tokens.

        -1 means no token, and prefixes that have ended don't change.
        """
        states, remaining = self.states, self.remaining
        for token in tokens.long().unbind(dim=1):
            moves = (token >= 0) & (states >= 0) & (remaining > 0)
            moves &= ~self.automata.is_final[states.clamp(min=0)]
            after = self.automata.next(states, token.clamp(min=0))
            states = torch.where(moves, after, states)
            remaining = remaining - moves.long()
        return self._replace(states=states, remaining=remaining)


def start_position(batch: Batch) -> AutomatonPosition:
    """Return the initial states of empty prefixes, one per example, and their full budgets."""
    budgets = batch.budgets
    return AutomatonPosition(
        automata=batch.automata,
        mask=BudgetMask(batch.automata, budgets),
        states=batch.automata.initial,
        remaining=budgets,
    )


@runtime_checkable
class Progress(Protocol):
    """Properties of R prefixes that the sampler uses; `AutomatonPosition` implements them."""

    @property
    def finished(self) -> Bool[Tensor, "R"]:
        """True for prefixes that are complete answers."""
        ...

    @property
    def running(self) -> Bool[Tensor, "R"]:
        """True for prefixes that take another token."""
        ...

    @property
    def states(self) -> Int64[Tensor, "R"]:
        """The automaton state of each prefix; -1 once the prefix has left the language."""
        ...

    def ends(self, *, by_token: bool) -> Bool[Tensor, "R C"]:
        """Return whether each token class, or each token, ends the text."""
        ...


@runtime_checkable
class HasPosition(Protocol):
    """Protocol of a proposal's state, which must have the member `position` and may have others."""

    @property
    def position(self) -> Progress:
        """The positions of the prefixes in their automata."""
        ...


State = TypeVar("State", bound=HasPosition)
"""The state of a proposal."""


class HasTables(Protocol):
    """Base of proposals and lookaheads, which may compute tables; by default there are none.

    Attributes:
        max_bytes: memory limit for the tables that `start` computes, in bytes; None for no limit.
    """

    max_bytes: int | None = None

    def check(self, automata: Sequence[TokenAutomaton], budgets: Sequence[int]) -> None:
        """Raise the errors that `start` would raise for these examples, before any computation.

        Raises:
            ConstraintError: `start` would raise this error.
        """
        del automata, budgets

    def memory(self, automaton: TokenAutomaton, budget: int) -> int:
        """Return the size in bytes of one example's tables.

        The tables of a batch have at most the sum of the sizes of its examples.
        """
        del automaton, budget
        return 0

    def free(self) -> None:
        """Release the cached tables."""
        return


@runtime_checkable
class Proposal(HasTables, Protocol[State]):
    """Base class of proposals, which are distributions q = p g / Z over the next token.

    To write a proposal, derive from this class and implement `start`, `guide`, `advance` and
    `take`. By default, a proposal accepts every constraint and doesn't have tables.

    Attributes:
        potential: whether g(x_t) is the potential psi_t of a prefix. If True, weights are
            multiplied by Z_t / psi_{t-1}. This factor is known before x_t is drawn, so particles
            are resampled before the draw. (If g is 0 or 1, psi is 1 and the factor is Z_t.) If
            False, weights are multiplied by Z_t / g(x_t), which is known after the draw.
    """

    potential: bool = True

    @abstractmethod
    def start(self, batch: Batch) -> State:
        """Return the state of B empty prefixes, one per example.

        Raises:
            ConstraintError: the proposal doesn't support these constraints; see `check`.
        """
        ...

    @abstractmethod
    def guide(self, state: State, log_p: Float[Tensor, "R V"]) -> Factors:
        """Return log g, given the model's log-probabilities of the next token.

        g must *not* include a defensive mixture with the mask of allowed tokens. The sampler adds
        the mixture: particles mix over the next tokens of each prefix, and the discrete filter over
        all candidates of an example (`Factors.defense`).
        """
        ...

    def forced(self, state: State) -> Int64[Tensor, "R"]:
        """Return the only token that g allows after each prefix; -1 if g allows several tokens.

        The sampler appends such a token without a forward pass before it (`smc._forward.reader`).
        The default returns -1 for all prefixes, so that every token takes a forward pass.
        """
        states = state.position.states
        return torch.full_like(states, -1)

    def log_g_of_forced(self, state: State, tokens: Int64[Tensor, "R"]) -> Float64[Tensor, "R"]:
        """Return log g of the tokens that `forced` returned, as `guide` would return it.

        g is the potential after these tokens. The default, log g = 0, is correct for masks. Weights
        are correct for any value, but resampling is more accurate with the correct value.
        """
        return torch.zeros_like(tokens, dtype=torch.float64)

    @abstractmethod
    def advance(self, state: State, tokens: Int[Tensor, "R T"]) -> State:
        """Return the state after one or more tokens per prefix; -1 means no token."""
        ...

    @abstractmethod
    def take(self, state: State, ancestors: Int64[Tensor, "Q"]) -> State:
        """Return the state of the prefixes with these indices, which may repeat."""
        ...

    def without_host_sync(self) -> Proposal[State]:
        """Return a version of the proposal that never synchronizes with the host.

        Static shapes require it. The default returns the proposal itself. A proposal that
        synchronizes anyway is rejected (`smc._inference.captured`).
        """
        return self


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


@dataclass(frozen=True)
class BudgetEffect:
    """The probability that the budget removed, after the prefixes that were computed.

    Attributes:
        log_removed: log of the estimated probability of texts that obey the constraint up to a
            token after which they can't end within the budget. -inf if no token was removed.
        removed: this probability divided by the sum of it and the estimated evidence, from 0 to 1.
    """

    log_removed: float
    removed: float

    @classmethod
    def of(cls, log_removed: float, log_evidence: float) -> BudgetEffect:
        """Return the effect for an estimate of the log evidence."""
        if log_removed == -math.inf:
            return cls(log_removed, 0.0)
        return cls(log_removed, 1 / (1 + math.exp(min(700.0, log_evidence - log_removed))))


def binds(position: AutomatonPosition) -> Bool[Tensor, "R"]:
    """Return True for prefixes where the budget changes the mask of next tokens."""
    here, left = position.states.clamp(min=0), position.remaining
    in_time = (position.states >= 0) & (position.automata.steps_to_accept[here] <= left)
    return in_time & (position.automata.reach[here] >= left)


def compute_removed(
    position: AutomatonPosition,
    log_p: Float[Tensor, "Q V"],
    indices: Callable[[Bool[Tensor, "R"]], Int64[Tensor, "K"]],
    row: Int64[Tensor, "R"] | None = None,
) -> Float64[Tensor, "R"]:
    """Return the log-probability of the next tokens that only the budget forbids after R prefixes.

    `row` is the row of `log_p` for each prefix; None if there is one row per prefix.
    """
    does = binds(position)
    some = indices(does)
    nothing = torch.full_like(position.remaining, -torch.inf, dtype=torch.float64)
    if not len(some):
        return nothing
    position = position.take(some)
    steps = position.steps_after_classes()
    removed = (steps < UNREACHABLE) & (steps >= position.remaining.unsqueeze(1))
    if row is not None or len(some) < len(log_p):
        log_p = log_p[some if row is None else row[some]]
    classes = position.automata.classes
    log_sum = log_sum_of_classes(log_p, classes, position.automaton_of_row, removed)
    return nothing.index_copy(0, some, log_sum).masked_fill(~does, -torch.inf)


def add_removed(
    total: Float64[Tensor, "B"], log_weight: Float64[Tensor, "P"], mass: Float64[Tensor, "P"]
) -> Float64[Tensor, "B"]:
    """Add the removed mass after each particle to the sum of its example, in log space."""
    example = torch.arange(len(mass), device=mass.device) // (len(mass) // len(total))
    return torch.logaddexp(total, sums_by(log_weight + mass, example, len(total)))


def add_removed_in_step(
    total: Float64[Tensor, "B"],
    position: AutomatonPosition,
    log_p: Float[Tensor, "R V"],
    indices: Callable[[Bool[Tensor, "R"]], Int64[Tensor, "K"]],
    row: Int64[Tensor, "P"],
    reached: Float64[Tensor, "P"],
    drawn: Float64[Tensor, "P"],
    along: Float64[Tensor, "P"],
) -> Float64[Tensor, "B"]:
    """Add the probability that the budget removes after each prefix and along its forced run.

    `reached` and `drawn` are the weights of the particles before the step and after their draw.
    """
    mass = compute_removed(position, log_p, indices)
    return add_removed(add_removed(total, reached, mass[row]), drawn, along)
