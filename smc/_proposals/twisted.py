"""Twisted proposal: draw the next token with the lookahead of a tractable model.

    q(v) proportional to p_lm(v) g(v),    g(v) = P_model(completed within the budget | prefix, v)

GCD tests whether a prefix *can* still be completed. This proposal uses the probability under a
model (`smc.Lookahead`) that it *will* be. If this model equals the language model, g is the
Bayes-correct twist, and all particles have the same weight. Weights use the same g, so they are
correct for any g that is positive for all of GCD's tokens, including the approximations below.

**Twist.** g is one of the following functions of the lookahead's probabilities joint, mass and
eventual:

    conditional    joint(v) / mass(v), the probability above
    in_time        joint(v) / eventual(v), the probability that a text which obeys the constraint
                   ends within the budget
    a number a     (joint(v) / eventual(v)) (eventual(v) / mass(v))^a, from 0 to 1
    joint          joint(v)

`in_time` is for language models with a prompt, which the lookahead doesn't see. The prompt may make
a continuation probable that is improbable under the lookahead, such as the name of the right tool.
`conditional` would then favor continuations that are more common without the prompt. `in_time`
leaves the content to the language model, and only predicts whether it fits into the budget. If the
budget is ample, g is 1, and the proposal equals GCD.

A number interpolates between the two: 0 is `in_time` and 1 is `conditional`. The first factor is
the probability that a text which obeys the constraint ends in time. The second factor is the
probability that the text obeys the constraint at all, and the exponent a is its weight. If the
prompt determines the answer, a model that doesn't see the prompt predicts the second factor poorly.
Without a prompt, the language model and the lookahead have the same information.

`joint` includes the token's probability twice, in p_lm and in g, and needs more particles. It
exists for comparison with related methods. (With tying, a class's joint probability is divided
evenly among its tokens.)

**Tying.** g is computed once for each class of tokens (hundreds instead of a hundred thousand), and
then exactly for the K allowed tokens that are most probable under the language model. All tokens of
a class lead to the same automaton state. They differ only in what they reveal about later tokens.

**Defensive mixture.** The sampler mixes a share eps of GCD's proposal into the normalized q
(`smc._vocabulary.factors`): q' = (1 - eps) q + eps q_gcd.

**Support.** g' is positive for exactly the tokens of GCD's mask. If the lookahead gives an allowed
token probability zero (by a zero parameter or an underflow), the prefix's share eps is at least
`LEAST_DEFENSE`. If it gives probability zero to every token that the language model can produce, g
is GCD's mask. This happens, for example, after a prefix that is impossible under the lookahead's
model. `Twisted.counts` counts both cases.

Cost of a step: the lookahead, and passes over R x V numbers (`smc._vocabulary`).

**Lookaheads.** For each item v that may come next (a token or a class of tokens), a lookahead
returns the logarithms of

    joint(v)    = P(v is next, and the text is completed in C within the r tokens | prefix)
    mass(v)     = P(v is next | prefix)
    eventual(v) = P(v is next, and the text is completed in C at some length | prefix)

under its own model, where C is the constraint and r the remaining budget of the prefix in tokens.
`smc.HMMLookahead` implements the protocol with a hidden Markov model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64
from torch import Tensor

from gcd import TokenAutomaton
from gcd._arguments import check_shapes
from gcd._tokens.distances import fits
from smc._proposals import GCD, AutomatonPosition, Batch, Proposal, start_position
from smc._proposals.masks import HasTables
from smc._vocabulary.factors import Factors, top_k_and_class_sums


class Expectation(NamedTuple):
    """Log-probabilities that each of K items (classes or tokens) comes next, for R prefixes.

    Values of items that the constraint or the budget doesn't allow are ignored.

    Attributes:
        log_joint: log P(the item is next, and the text is completed within the budget | prefix).
        log_mass: log P(the item is next | prefix).
        log_eventual: log P(the item is next, and the text is completed at some length | prefix);
            None unless the lookahead's `eventual` is True.
    """

    log_joint: Float64[Tensor, "R K"]
    log_mass: Float64[Tensor, "R K"]
    log_eventual: Float64[Tensor, "R K"] | None = None


ModelState = TypeVar("ModelState")
"""State of a lookahead for R prefixes: an immutable tuple of tensors with one row per prefix."""


@runtime_checkable
class Lookahead(HasTables, Protocol[ModelState]):
    """Base class of models that can compute the probability that a text is completed in time.

    To write a lookahead, derive from this class and implement `start`, `advance`, `take`, `classes`
    and `tokens`; the other members have defaults. Methods receive each prefix's automaton state and
    remaining budget as an `AutomatonPosition`. Results for prefixes that have ended are ignored.

    Attributes:
        eventual: whether the results of `classes` and `tokens` include `log_eventual`.
    """

    eventual: bool = False

    def without_host_sync(self) -> Lookahead[ModelState]:
        """Return a version of the lookahead that never synchronizes with the host.

        Static shapes require it. The default returns the lookahead itself.
        """
        return self

    @abstractmethod
    def start(self, batch: Batch) -> ModelState:
        """Return the state of B empty prefixes, one per example.

        Raises:
            ConstraintError: the model doesn't support these constraints; see `check`.
        """
        ...

    @abstractmethod
    def advance(self, state: ModelState, tokens: Int[Tensor, "R T"]) -> ModelState:
        """Return the state after one or more tokens per prefix; -1 means no token."""
        ...

    @abstractmethod
    def take(self, state: ModelState, ancestors: Int64[Tensor, "Q"]) -> ModelState:
        """Return the state of the prefixes with these indices, which may repeat."""
        ...

    @abstractmethod
    def classes(self, state: ModelState, position: AutomatonPosition) -> Expectation:
        """Return the log-probabilities of all token classes of each prefix's automaton."""
        ...

    @abstractmethod
    def tokens(
        self, state: ModelState, position: AutomatonPosition, tokens: Int64[Tensor, "R K"]
    ) -> Expectation:
        """Return the log-probabilities of the given tokens."""
        ...

    def all_tokens(self, state: ModelState, position: AutomatonPosition) -> Expectation:
        """Return the log-probabilities of all tokens in the vocabulary."""
        every = torch.arange(position.automata.vocabulary.size, device=position.states.device)
        return self.tokens(state, position, every.expand(len(position.states), -1))


TWISTS: dict[str, float | None] = {"conditional": 1.0, "in_time": 0.0, "joint": None}
"""Names of twists, and the number a that each corresponds to; None for "joint"."""


@dataclass(frozen=True, eq=False)
class TwistedState(Generic[ModelState]):
    """The positions of R prefixes, and the lookahead's state for them.

    Attributes:
        position: positions in the automata.
        model: the lookahead's state.
    """

    position: AutomatonPosition
    model: ModelState


class Counts(NamedTuple):
    """Numbers of prefixes where g was zero, over all calls of `guide`.

    Attributes:
        rows: number of prefixes for which g was computed.
        fallbacks: number of prefixes where g of all allowed tokens was zero, so that GCD's mask
            replaced it.
        holes: number of other prefixes where g of some allowed token was zero, so that the share of
            the defensive mixture was at least `LEAST_DEFENSE`.
    """

    rows: int
    fallbacks: int
    holes: int


class Twisted(Proposal[TwistedState[ModelState]], Generic[ModelState]):
    """Proposal q = p g / Z with a factor g from a lookahead.

    Args:
        lookahead: a model over the language model's vocabulary.
        twist: how g depends on the lookahead. "conditional" or 1 is for a lookahead that
            approximates the language model well, and "in_time" or 0 for prompts that state the
            content of the answer. Numbers between 0 and 1 are between these two. "joint" is for
            comparison.
        exact_top_k: number of most probable tokens for which g is exact. All others use the g of
            their class. 0 means no tokens, and None all tokens.
        defense: share of GCD's proposal in the defensive mixture, from 0 to 1.

    Raises:
        ValueError: an argument is invalid.
    """

    def __init__(
        self,
        lookahead: Lookahead[ModelState],
        *,
        twist: str | float | int = "conditional",
        exact_top_k: int | None = 64,
        defense: float | int = 0.01,
    ) -> None:
        if not isinstance(lookahead, Lookahead):
            raise ValueError(
                f"expected lookahead to be a smc.Lookahead, got {type(lookahead).__name__}; for an "
                "HMM use smc.PGCD(hmm)"
            )
        belief = belief_of("twist", twist)
        if needs_eventual(twist) and not lookahead.eventual:
            raise ValueError(
                f"expected a lookahead that computes log_eventual for twist={twist!r}, but "
                f"{type(lookahead).__name__} doesn't (`eventual` is False); use "
                "twist='conditional' or another lookahead"
            )
        if exact_top_k is not None and not _is_number_of_tokens(exact_top_k):
            raise ValueError(
                f"expected exact_top_k to be an integer of at least 0 or None, got {exact_top_k!r}"
            )
        if not 0 <= defense <= 1:
            raise ValueError(f"expected defense to be from 0 to 1, got {defense!r}")
        self.lookahead = lookahead
        self.twist = twist
        self._belief = belief
        self.exact_top_k = None if exact_top_k is None else int(exact_top_k)
        self.defense = float(defense)
        self.max_bytes = lookahead.max_bytes
        self._tallies: dict[torch.device, Tensor] = {}  # shared with `without_host_sync` copies

    def check(self, automata: Sequence[TokenAutomaton], budgets: Sequence[int]) -> None:
        """Raise the errors of the lookahead for these examples; see `Proposal.check`."""
        self.lookahead.check(automata, budgets)

    def memory(self, automaton: TokenAutomaton, budget: int) -> int:
        """Return the size in bytes of the lookahead's tables for one example."""
        return self.lookahead.memory(automaton, budget)

    def free(self) -> None:
        """Release the lookahead's cached tables."""
        self.lookahead.free()

    def without_host_sync(self) -> Twisted[ModelState]:
        """Return a version of this proposal whose lookahead never synchronizes with the host."""
        other = copy(self)
        other.lookahead = self.lookahead.without_host_sync()
        return other

    def start(self, batch: Batch) -> TwistedState[ModelState]:
        """Return the state of empty prefixes, one per example.

        Raises:
            ConstraintError: the lookahead doesn't support these constraints.
        """
        return TwistedState(start_position(batch), self.lookahead.start(batch))

    def advance(
        self, state: TwistedState[ModelState], tokens: Int[Tensor, "R T"]
    ) -> TwistedState[ModelState]:
        """Return the state after one or more tokens per prefix; -1 means no token."""
        model = self.lookahead.advance(state.model, tokens)
        return TwistedState(state.position.advance(tokens), model)

    def take(
        self, state: TwistedState[ModelState], ancestors: Int64[Tensor, "Q"]
    ) -> TwistedState[ModelState]:
        """Return the state of the prefixes with these indices, which may repeat."""
        model = self.lookahead.take(state.model, ancestors)
        return TwistedState(state.position.take(ancestors), model)

    def guide(self, state: TwistedState[ModelState], log_p: Float[Tensor, "R V"]) -> Factors:
        """Return log g, to which the sampler adds the defensive mixture.

        NaN in the lookahead's probabilities gives NaN in the result.
        """
        if self.exact_top_k is None:
            factors, allowed = self._factors_of_tokens(state)
        else:
            factors, allowed = self._factors_of_classes(state, log_p, self.exact_top_k)
        zero = allowed & factors.by_item.isneginf()
        none = (zero == allowed).all(dim=1)
        self._count(len(log_p), none, zero.any(dim=1) & ~none)
        return factors._replace(defense=self.defense, fallback=none)

    def forced(self, state: TwistedState[ModelState]) -> Int64[Tensor, "R"]:
        """Return the only token of GCD's mask; -1 if the mask has several tokens or none."""
        position = state.position
        return position.only(_alive(position, position.steps_after_classes()))

    def log_g_of_forced(
        self, state: TwistedState[ModelState], tokens: Int64[Tensor, "R"]
    ) -> Float64[Tensor, "R"]:
        """Return log g' of the only allowed token.

        This is log g, or 0 if g is zero, because g' is then GCD's mask.
        """
        item = tokens.unsqueeze(1)
        steps = state.position.steps_after_tokens(item)
        expected = self.lookahead.tokens(state.model, state.position, item)
        log_g = self._log_g(expected, steps, _alive(state.position, steps)).squeeze(1)
        if bool(log_g.isnan().any()):
            raise FloatingPointError(self._not_numbers())
        return log_g.masked_fill(log_g.isneginf(), 0.0)

    @property
    def counts(self) -> Counts:
        """Number of prefixes where g was zero, since this object was created.

        Warm-up calls (`smc._inference.captured`) and repeated steps are included.
        """
        none = torch.zeros(3, dtype=torch.int64, device="cpu")
        return Counts(*sum((tally.cpu() for tally in self._tallies.values()), none).tolist())

    def _count(self, rows: int, fallback: Bool[Tensor, "R"], holes: Bool[Tensor, "R"]) -> None:
        counts = torch.stack([fallback.new_full((), rows, dtype=torch.int64),
                              fallback.sum(), holes.sum()])  # fmt: skip
        if counts.device not in self._tallies:
            with torch.inference_mode(False):
                self._tallies[counts.device] = torch.zeros_like(counts)
        self._tallies[counts.device] += counts  # in place, so that captured steps count, too

    def _not_numbers(self) -> str:
        return (
            f"expected log-probabilities from {type(self.lookahead).__name__}, got NaN; check the "
            "lookahead's arithmetic"
        )

    def _factors_of_tokens(
        self, state: TwistedState[ModelState]
    ) -> tuple[Factors, Bool[Tensor, "R V"]]:
        """Compute g of all tokens, and the mask of allowed tokens."""
        position = state.position
        steps = position.steps_after_classes().gather(1, position.class_of_token)
        alive = _alive(position, steps)
        log_g = self._log_g(self.lookahead.all_tokens(state.model, position), steps, alive)
        return Factors.dense(log_g)._replace(alive=alive), alive

    def _factors_of_classes(
        self, state: TwistedState[ModelState], log_p: Float[Tensor, "R V"], top_k: int
    ) -> tuple[Factors, Bool[Tensor, "R CK"]]:
        """Compute g of all classes and of the top-k tokens, and the mask of the allowed ones."""
        position, classes = state.position, state.position.automata.classes
        steps = position.steps_after_classes()
        alive = _alive(position, steps)
        tied = self.lookahead.classes(state.model, position)
        if self._belief is None:
            sizes = classes.start.diff(dim=1).clamp(min=1)[position.automaton_of_row]
            tied = tied._replace(log_joint=tied.log_joint - sizes.double().log())

        K = min(top_k, log_p.shape[1])
        rest = top_k_and_class_sums(log_p, classes, position.automaton_of_row, alive, K)
        exact = self.lookahead.tokens(state.model, position, rest.tokens)
        steps_too = position.steps_after_tokens(rest.tokens)
        alive_too = _alive(position, steps_too)
        factors = Factors(
            self._log_g(tied, steps, alive),
            rest.tokens,
            self._log_g(exact, steps_too, alive_too),
            classes,
            position.automaton_of_row,
            alive=alive,
            log_mass=torch.cat([rest.log_mass, rest.best], dim=1),
        )
        return factors, torch.cat([alive, alive_too], dim=1)

    def _log_g(
        self, expected: Expectation, steps: Int32[Tensor, "R K"], alive: Bool[Tensor, "R K"]
    ) -> Float64[Tensor, "R K"]:
        """Return log g of K items; -inf if g is zero or the item isn't allowed.

        For every twist except "joint", g is a conditional probability. It is limited to one, and
        is exactly one for an item that completes the text, regardless of the lookahead.
        """
        shape, source = tuple(steps.shape), type(self.lookahead).__name__
        fields = expected._asdict().items()
        check_shapes(*((x, shape, f"{n} from {source}") for n, x in fields if x is not None))
        log_g, belief = expected.log_joint.double(), self._belief
        if belief is not None:
            given = expected.log_mass
            if belief < 1:
                eventual = expected.log_eventual
                assert eventual is not None, "a lookahead with `eventual` gives log_eventual"
                given = eventual if belief == 0 else torch.lerp(eventual, given, belief)
            possible = ~log_g.isneginf()
            log_g = torch.where(possible, log_g - given, -torch.inf).clamp(max=0)
            log_g = torch.where(steps == 0, 0.0, log_g)
        return log_g.masked_fill(~alive, -torch.inf)

    def _options(self) -> str:
        """Format the options for `repr`."""
        return f"exact_top_k={self.exact_top_k}, defense={self.defense}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lookahead!r}, twist={self.twist!r}, {self._options()})"


def belief_of(key: str, twist: str | float | int) -> float | None:
    """Return the exponent a of a twist, from 0 to 1; None for "joint"."""
    if isinstance(twist, str) and twist in TWISTS:
        return TWISTS[twist]
    if isinstance(twist, Real) and not isinstance(twist, bool) and 0 <= twist <= 1:
        return float(twist)
    raise ValueError(
        f"expected {key} to be one of {', '.join(TWISTS)}, or a number from 0 (in_time) to 1 "
        f"(conditional), got {twist!r}"
    )


def needs_eventual(twist: str | float | int) -> bool:
    """Return whether a twist needs the probability of completion without a budget."""
    belief = belief_of("twist", twist)
    return belief is not None and belief < 1


def looking_ahead(lookahead: object) -> Proposal[Any]:
    """Return the proposal for a lookahead.

    A `Twisted` is returned unchanged. A `Lookahead` is wrapped in a `Twisted` with default options.
    None gives `GCD()`.
    """
    if lookahead is None:
        return GCD()
    if isinstance(lookahead, Lookahead) and not isinstance(lookahead, type):
        return Twisted(lookahead)
    if not isinstance(lookahead, Twisted):
        raise ValueError(
            f"expected lookahead to be a proposal such as smc.PGCD(hmm), a smc.Lookahead or None, "
            f"got {lookahead!r}"
        )
    return lookahead


def _alive(position: AutomatonPosition, steps: Int32[Tensor, "R K"]) -> Bool[Tensor, "R K"]:
    """Return True for the items after which the text can be completed within the budget."""
    return fits(steps, position.remaining.unsqueeze(1))


def _is_number_of_tokens(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0
