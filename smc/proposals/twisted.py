"""The twisted proposal draws the next token with the lookahead of a tractable model.

    q(v) proportional to p_lm(v) g(v),    g(v) = P_model(completed within the budget | prefix, v)

GCD asks whether a prefix *can* still be completed; this proposal asks a model (`smc.Lookahead`) how
probably it *will* be. With the language model itself as the model, g is the Bayes-correct twist:
every particle has the same weight. Any g that is positive wherever GCD allows a token gives correct
weights, as long as they use the g that was really used, which leaves room for what follows.

**Twist.** Which g, given what the model expects (`smc.proposals.lookahead.Expectation`):

    conditional    joint(v) / mass(v), the probability above
    in_time        joint(v) / eventual(v), the probability that a text which does obey the
                   constraint ends within the budget
    joint          joint(v)
    a number a     (joint(v) / eventual(v)) (eventual(v) / mass(v))^a, from 0 to 1

`in_time` is for language models that read a prompt which the lookahead has never seen. Such a model
may know what to the lookahead is a surprise, such as the name of the tool at hand, and the
conditional twist then favours, of two ways on, the one whose literal text is more usual. `in_time`
leaves to the language model what is said, and asks only whether there is room for it. It is one
wherever the budget is ample, so that the proposal becomes GCD there. `joint` counts the token
twice, once in p_lm and once in the model, and costs particles; it is what related methods do, and
is here for comparison. (Tied, a class's joint probability is divided evenly among its tokens.)

A number lies between the two: 0 is `in_time`, 1 is `conditional`. The first factor is the chance
that a text which obeys the constraint ends in time; the second is the chance that it ever obeys,
and a says how far the model is believed there. Where a prompt tells what has to come, the model
that has not read it knows little of that; where no prompt tells, it is all there is to go by.

**Tying.** g is computed for each class of tokens (hundreds rather than a hundred thousand), then
exactly for the K tokens that the language model likes best among those allowed. Within a class all
tokens lead to the same state, and differ only in what they reveal about what is to come.

**Defence.** A share eps of GCD's proposal is mixed into the normalised q, because g has no fixed
scale. With Z = sum p_lm g and M = sum p_lm 1{allowed},

    g' = (1 - eps) g + eps (Z / M) 1{allowed}      so that q' = (1 - eps) q + eps q_gcd, and Z' = Z.

**Support.** It is that of GCD always. Where the model gives an allowed token no chance (a zero
parameter, an underflow), the row is defended by at least `LEAST_DEFENCE`; where it gives none to
anything that the language model may say, as after a prefix that it holds impossible, g is GCD's
mask. Both are counted (`Twisted.counts`).

Cost of a step: that of the lookahead, plus passes over R x V numbers (`smc.vocabulary`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Generic, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64
from torch import Tensor

from gcd.support.indices import check_shape
from gcd.tokens.distances import fits
from gcd.tokens.token_automaton import TokenAutomaton
from smc.competition import LEAST_DEFENCE, CandidateGuide, Masses, Successors
from smc.proposals import GCD, AutomatonPosition, Batch, Proposal, start_position
from smc.proposals.lookahead import Expectation, Lookahead, ModelState
from smc.vocabulary.class_mass import top_k_and_class_mass
from smc.vocabulary.factors import DenseGuide, Factors, Guide, TiedGuide, by_class_alone

TWISTS: dict[str, float | None] = {"conditional": 1.0, "in_time": 0.0, "joint": None}
"""The twists that have names, with the number that each of them is."""


@dataclass(frozen=True, eq=False)
class TwistedState(Generic[ModelState]):
    """Where R prefixes are, and what the lookahead knows about them.

    Attributes:
        walk: where they are in their automata.
        model: the lookahead's own state.
    """

    walk: AutomatonPosition
    model: ModelState


class Counts(NamedTuple):
    """How often the lookahead had nothing to say, over all calls of `guide` and `score`.

    Attributes:
        rows: prefixes guided.
        fallbacks: of these, prefixes where all of g was zero, so that GCD's mask took its place.
            `guide` asks only about tokens that the language model may say, `score` about all.
        holes: of the others, prefixes where g of some allowed token was zero, so that the defence
            was at least `LEAST_DEFENCE`.
    """

    rows: int
    fallbacks: int
    holes: int


class _Mixture(NamedTuple):
    """The defended g' of K items (tokens, or classes and tokens); see `Counts` for the rows."""

    log_g: Float64[Tensor, "R K"]
    log_z: Float64[Tensor, "R"]
    fallback: Bool[Tensor, "R"]
    holes: Bool[Tensor, "R"]


class _View(NamedTuple):
    """What the lookahead says of R prefixes, before anything is mixed in.

    Attributes:
        factors: log g by class and by token.
        alive: the classes allowed within the budget.
        alive_too: the tokens with their own g that are allowed within the budget.
        successors: where the classes lead.
        masses: probabilities under the language model; None where every token is a class.
    """

    factors: Factors
    alive: Bool[Tensor, "R C"]
    alive_too: Bool[Tensor, "R K"]
    successors: Successors
    masses: Masses | None

    @property
    def log_g(self) -> Float64[Tensor, "R CK"]:
        """Return log g of the classes, then of the tokens."""
        return torch.cat([self.factors.by_class, self.factors.by_token], dim=1)

    @property
    def allowed(self) -> Bool[Tensor, "R CK"]:
        """Return which classes, then which tokens, are allowed within the budget."""
        return torch.cat([self.alive, self.alive_too], dim=1)


class Twisted(Proposal[TwistedState[ModelState]], Generic[ModelState]):
    """A proposal that looks ahead with any tractable model.

    Args:
        lookahead: the model, over the language model's vocabulary.
        twist: "conditional" or 1, for a model like the language model; "in_time" or 0, for language
            models that read prompts; a number between these; or, for comparison, "joint".
        exact_top_k: for so many of the language model's favourites g is exact, for the others it is
            that of their class; 0 for none, None for all.
        defence: share of GCD's proposal that is mixed in, in [0, 1].
        potential: whether g is also the potential, so that weights are known, and particles
            resampled, before a token is drawn; otherwise potentials are one and weights follow.

    Raises:
        ValueError: an argument makes no sense.
    """

    def __init__(
        self,
        lookahead: Lookahead[ModelState],
        *,
        twist: str | float | int = "conditional",
        exact_top_k: int | None = 64,
        defence: float | int = 0.01,
        potential: bool = True,
    ) -> None:
        if not isinstance(lookahead, Lookahead):
            raise ValueError(
                f"lookahead is {type(lookahead).__name__}; give a smc.Lookahead, or for an HMM "
                "take smc.PGCD(hmm)"
            )
        belief = belief_of("twist", twist)
        if needs_eventual(twist) and not lookahead.eventual:
            raise ValueError(
                f"twist {twist!r} needs a lookahead that gives log_eventual, and "
                f"{type(lookahead).__name__} does not (its `eventual` is false)"
            )
        if exact_top_k is not None and not _is_number_of_tokens(exact_top_k):
            raise ValueError(f"exact_top_k is a number of tokens or None, not {exact_top_k!r}")
        if not 0 <= defence <= 1:
            raise ValueError(f"defence is a share, from 0 to 1, not {defence!r}")
        if not isinstance(potential, bool):
            raise ValueError(f"potential is True or False, not {potential!r}")
        self.lookahead = lookahead
        self.twist = twist
        self._belief = belief
        self.exact_top_k = None if exact_top_k is None else int(exact_top_k)
        self.defence = float(defence)
        self.potential = potential
        self.max_bytes = lookahead.max_bytes
        self._tallies: dict[torch.device, Tensor] = {}  # shared with what `without_host_sync` gives

    def check(self, automata: Sequence[TokenAutomaton], budgets: Sequence[int]) -> None:
        """Refuse what the lookahead refuses; see `Proposal.check`."""
        self.lookahead.check(automata, budgets)

    def memory(self, automaton: TokenAutomaton, budget: int) -> int:
        """Return the bytes of the lookahead's tables for an example; many take at most the sum."""
        return self.lookahead.memory(automaton, budget)

    def free(self) -> None:
        """Give back the tables that are kept for the next call with the same constraints."""
        self.lookahead.free()

    def without_host_sync(self) -> Twisted[ModelState]:
        """Return this proposal with a lookahead that never waits for the device."""
        other = copy(self)
        other.lookahead = self.lookahead.without_host_sync()
        return other

    def start(self, batch: Batch) -> TwistedState[ModelState]:
        """Return one empty prefix per example.

        Raises:
            ConstraintError: the lookahead cannot serve these constraints.
        """
        return TwistedState(start_position(batch), self.lookahead.start(batch))

    def advance(
        self, state: TwistedState[ModelState], tokens: Int[Tensor, "R T"]
    ) -> TwistedState[ModelState]:
        """Move walk and model on; -1 stands for no token."""
        return TwistedState(state.walk.advance(tokens), self.lookahead.advance(state.model, tokens))

    def take(
        self, state: TwistedState[ModelState], ancestors: Int64[Tensor, "Q"]
    ) -> TwistedState[ModelState]:
        """Return the state of these rows."""
        return TwistedState(state.walk.take(ancestors), self.lookahead.take(state.model, ancestors))

    def guide(self, state: TwistedState[ModelState], log_p: Float[Tensor, "R V"]) -> Guide:
        """Return log g' and log Z; the support of g' is GCD's. NaN stays NaN, and is refused."""
        view = self._view(state, log_p)
        masses = log_p if view.masses is None else torch.cat(view.masses, dim=1)
        mixture = self._mix(view.log_g, masses, view.allowed)
        self._count(len(log_p), mixture.fallback, mixture.holes)
        if view.masses is None:
            return DenseGuide(mixture.log_g, mixture.log_z, mixture.fallback)
        C = view.alive.shape[1]  # g is not spread over the tokens of a class
        factors = view.factors._replace(
            by_class=mixture.log_g[:, :C].contiguous(), by_token=mixture.log_g[:, C:].contiguous()
        )
        return TiedGuide(factors, mixture.log_z, mixture.fallback)

    def forced(self, state: TwistedState[ModelState]) -> Int64[Tensor, "R"]:
        """Return the only token of GCD's mask, or -1."""
        walk = state.walk
        return walk.only(_alive(walk, walk.steps_after_classes()))

    def log_g_of_forced(
        self, state: TwistedState[ModelState], tokens: Int64[Tensor, "R"]
    ) -> Float64[Tensor, "R"]:
        """Return log g' of the only token that is allowed: log g, or 0 where g is zero.

        Where g is zero the row falls back to GCD's mask.
        """
        item = tokens.unsqueeze(1)
        steps = state.walk.steps_after_tokens(item)
        expected = self.lookahead.tokens(state.model, state.walk, item)
        log_g = self._log_g(expected, steps, _alive(state.walk, steps)).squeeze(1)
        if bool(log_g.isnan().any()):
            raise FloatingPointError(self._not_numbers())
        return log_g.masked_fill(log_g.isneginf(), 0.0)

    @property
    def counts(self) -> Counts:
        """How often the lookahead had nothing to say since this object was made.

        Warm-up calls (`smc.proposals.waits`, `smc.loop`) and repeated steps are included.
        """
        none = torch.zeros(3, dtype=torch.int64, device="cpu")
        return Counts(*sum((tally.cpu() for tally in self._tallies.values()), none).tolist())

    def score(self, state: TwistedState[ModelState], log_p: Float[Tensor, "R V"]) -> CandidateGuide:
        """Return g without the defence, which the discrete particle filter mixes in itself.

        A class derived from this one that has a guide of its own is scored by that guide.
        """
        if type(self).guide is not Twisted.guide:
            return super().score(state, log_p)
        view = self._view(state, log_p)
        zero = view.allowed & view.log_g.isneginf()
        none = (zero == view.allowed).all(dim=1)
        self._count(len(log_p), none, zero.any(dim=1) & ~none)
        return CandidateGuide(
            view.factors, view.alive, view.successors, view.masses, self.defence, none
        )

    def _count(self, rows: int, fallback: Bool[Tensor, "R"], holes: Bool[Tensor, "R"]) -> None:
        counts = torch.stack([fallback.new_full((), rows, dtype=torch.int64),
                              fallback.sum(), holes.sum()])  # fmt: skip
        if counts.device not in self._tallies:
            with torch.inference_mode(False):
                self._tallies[counts.device] = torch.zeros_like(counts)
        self._tallies[counts.device] += counts  # in place, so that a captured step counts, too

    def _not_numbers(self) -> str:
        return f"{type(self.lookahead).__name__} returned expectations that are not numbers (NaN)"

    def _view(self, state: TwistedState[ModelState], log_p: Float[Tensor, "R V"]) -> _View:
        """Ask the lookahead about every token, or about classes and favourites."""
        if self.exact_top_k is None:
            return self._view_of_tokens(state)
        return self._view_of_classes(state, log_p, self.exact_top_k)

    def _view_of_tokens(self, state: TwistedState[ModelState]) -> _View:
        """Ask the lookahead about every token by itself."""
        walk = state.walk
        class_of = walk.automata.class_of[walk.automaton_of_row].long()
        steps = walk.steps_after_classes().gather(1, class_of)
        alive = _alive(walk, steps)
        log_g = self._log_g(self.lookahead.all_tokens(state.model, walk), steps, alive)
        successors = walk.successors().of_tokens()
        factors = by_class_alone(log_g, successors.classes, successors.automaton_of_row)
        return _View(factors, alive, alive[:, :0], successors, None)

    def _view_of_classes(
        self, state: TwistedState[ModelState], log_p: Float[Tensor, "R V"], top_k: int
    ) -> _View:
        """Ask the lookahead about each class, and about the favourites by themselves."""
        walk, classes = state.walk, state.walk.automata.classes
        steps = walk.steps_after_classes()
        alive = _alive(walk, steps)
        tied = self.lookahead.classes(state.model, walk)
        if self._belief is None:
            sizes = classes.start.diff(dim=1).clamp(min=1)[walk.automaton_of_row]
            tied = tied._replace(log_joint=tied.log_joint - sizes.double().log())

        K = min(top_k, log_p.shape[1])
        rest = top_k_and_class_mass(log_p, classes, walk.automaton_of_row, alive, K)
        exact = self.lookahead.tokens(state.model, walk, rest.tokens)
        steps_too = walk.steps_after_tokens(rest.tokens)
        alive_too = _alive(walk, steps_too)
        factors = Factors(
            self._log_g(tied, steps, alive),
            rest.tokens,
            self._log_g(exact, steps_too, alive_too),
            classes,
            walk.automaton_of_row,
        )
        masses = Masses(rest.log_mass, rest.best)
        return _View(factors, alive, alive_too, walk.successors(), masses)

    def _log_g(
        self,
        expected: Expectation,
        steps: Int32[Tensor, "R K"],
        alive: Bool[Tensor, "R K"],
    ) -> Float64[Tensor, "R K"]:
        """Return log g of some items; -inf where g is zero or the item is not allowed.

        A probability that is conditional on the item is at most one, and one where the item
        completes the text, whatever the model thinks of it.
        """
        for name, values in expected._asdict().items():
            if values is not None:
                check_shape(
                    values, tuple(steps.shape), f"{name} by {type(self.lookahead).__name__}"
                )
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

    def _mix(
        self,
        log_g: Float64[Tensor, "R K"],
        log_mass: Float[Tensor, "R K"],
        alive: Bool[Tensor, "R K"],
    ) -> _Mixture:
        """Mix GCD's proposal in, over items with these masses under p_lm."""
        log_z = torch.logsumexp(log_mass + log_g, dim=1)
        log_alive = torch.logsumexp(log_mass.masked_fill(~alive, -torch.inf), dim=1)
        empty = log_z.isneginf()
        holes = (alive & log_g.isneginf()).any(dim=1) & ~empty
        share = torch.full_like(log_z, self.defence).unsqueeze(1)
        share = share.masked_fill(holes.unsqueeze(1), max(self.defence, LEAST_DEFENCE))
        log_even = torch.where(empty, 0.0, log_z - log_alive).unsqueeze(1)
        mixed = torch.logaddexp(log_g + torch.log1p(-share), log_even + share.log())
        mixed = torch.where(empty.unsqueeze(1), 0.0, mixed).masked_fill(~alive, -torch.inf)
        log_z = torch.where(empty, log_alive, log_z)
        return _Mixture(mixed, log_z, empty & ~log_alive.isneginf(), holes)

    def _options(self) -> str:
        """Return the options, for `repr`."""
        return f"exact_top_k={self.exact_top_k}, defence={self.defence}, potential={self.potential}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lookahead!r}, twist={self.twist!r}, {self._options()})"


def belief_of(key: str, twist: str | float | int) -> float | None:
    """Return how far the model is believed about whether a text obeys: 0 to 1; None for "joint".

    Raises:
        ValueError: no such twist; `key` is what the caller calls it.
    """
    if isinstance(twist, str) and twist in TWISTS:
        return TWISTS[twist]
    if isinstance(twist, Real) and not isinstance(twist, bool) and 0 <= twist <= 1:
        return float(twist)
    raise ValueError(
        f"{key} is one of {', '.join(TWISTS)}, or a number from 0 (in_time) to 1 (conditional), "
        f"not {twist!r}"
    )


def needs_eventual(twist: str | float | int) -> bool:
    """Tell whether a twist asks for the probability of completion without a budget."""
    belief = belief_of("twist", twist)
    return belief is not None and belief < 1


def looking_ahead(lookahead: object) -> Proposal[Any]:
    """Return the proposal that goes with a lookahead: itself, one made of it, or GCD for None.

    Raises:
        ValueError: it is neither a `Twisted` nor a `Lookahead` nor None.
    """
    if lookahead is None:
        return GCD()
    if isinstance(lookahead, Lookahead) and not isinstance(lookahead, type):
        return Twisted(lookahead)
    if not isinstance(lookahead, Twisted):
        raise ValueError(
            f"lookahead is {lookahead!r}; give a proposal that looks ahead, such as "
            "smc.PGCD(hmm), or a smc.Lookahead"
        )
    return lookahead


def _alive(walk: AutomatonPosition, steps: Int32[Tensor, "R K"]) -> Bool[Tensor, "R K"]:
    """Return the items after which the text can be completed within the budget."""
    return fits(steps, walk.remaining.unsqueeze(1))


def _is_number_of_tokens(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0
