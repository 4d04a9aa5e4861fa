"""Probabilistic globally constrained decoding: the next token is drawn with lookahead.

    q(v) proportional to p_lm(v) g(v),    g(v) = P_hmm(completed within the budget | prefix, v)

GCD asks whether a prefix *can* still be completed; this proposal asks an HMM, distilled from the
language model, how probably it *will* be (arXiv 2606.01926). With the HMM in place of the language
model g is the Bayes-correct twist: every particle has the same weight. Any g that is positive
wherever GCD allows a token gives correct weights, as long as they use the g that was really used,
which leaves room for four things.

**Tying.** g is computed for each class of tokens (hundreds rather than a hundred thousand), then
exactly for the K tokens that the language model likes best among those allowed. Not the class but
its *completion* matters: within a class all tokens lead to the same state, and differ only in what
they reveal about the hidden state.

**Temper.** g to a power.

**Defence.** A share eps of GCD's proposal is mixed in, without regard to scale, as g is tiny
everywhere where a long text is still to come. With Z = sum p_lm g and M = sum p_lm 1{alive},

    g' = (1 - eps) g + eps (Z / M) 1{alive}        so that q' = (1 - eps) q + eps q_gcd, and Z' = Z.

**Support.** It is that of GCD always. Where the HMM gives an allowed token no chance (a zero
parameter, an underflow), the row is defended by at least `FLOOR`; where it gives none to anything
that the language model may say, as after a prefix that it holds impossible, g is GCD's mask. Both
are counted (`PGCD.counts`).

**Prompts.** The HMM sees answers and no prompt, and the language model may know from its prompt
what to the HMM is a surprise, such as the name of the tool at hand. Then g above misleads: of two
ways on it favours the one whose literal text is more usual. `lookahead="in_time"` leaves to the
language model what is said and asks the HMM only whether there is room for it,

    g(v) = P_hmm(completed within the budget | prefix, v) / P_hmm(completed at all | prefix, v),

the probability that a text which does obey the constraint ends in time. It is one wherever the
budget is ample, so that P-GCD becomes GCD there.

`lookahead="joint"` takes g(v) = P_hmm(v, completed | prefix) instead, as related methods do. That
counts the token twice, once in p_lm and once in the HMM, and costs particles; it is here for
comparison. (Tied, a class's joint probability is shared out evenly among its tokens.)

Cost of a step: that of `hmm.lookahead`, plus the passes of `smc.tying` over R x V numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from gcd.tokens.token_automaton import TokenAutomaton
from hmm.inference import filter_step, predict_first
from hmm.lookahead import Expectation, expect_all_tokens, expect_classes, expect_tokens
from hmm.model import HMM
from hmm.product import MAX_BYTES, LookaheadTable, bytes_of_table
from smc.proposals import Batch, Guide, Walk, start_walk
from smc.tables import TableCache
from smc.tying import TiedGuide, weigh_rest

LOOKAHEADS = ("conditional", "in_time", "joint")
STRONGEST = 1e3
"""The highest temper: beyond it log p of the language model would be lost beside log g."""
FLOOR = 1e-3
"""The least share of GCD in a row where the HMM holds some allowed token to be impossible."""


class PGCDState(NamedTuple):
    """Where R prefixes are, and what the HMM makes of them.

    Attributes:
        walk: in their automata.
        table: completion probabilities of the automata of the batch.
        predicted: P(hidden state of the next token | prefix); zeros if the HMM holds the prefix
            to be impossible.
    """

    walk: Walk
    table: LookaheadTable
    predicted: Float[Tensor, "R H"]


class Counts(NamedTuple):
    """How often the HMM had nothing to say, over all calls of `guide`.

    Attributes:
        rows: prefixes guided.
        lost: of these, prefixes where all of g was zero and GCD's mask stood in.
        mended: prefixes where g of some allowed token was zero and the defence held it.
    """

    rows: int
    lost: int
    mended: int


class _Mixture(NamedTuple):
    """g' of items (tokens, or classes and tokens), log Z, and which rows were lost and mended."""

    log_g: Float64[Tensor, "R K"]
    log_z: Float64[Tensor, "R"]
    lost: Bool[Tensor, "R"]
    mended: Bool[Tensor, "R"]


def _is_number_of_tokens(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


class PGCD:
    """Probabilistic globally constrained decoding, with an HMM over the model's vocabulary.

    Args:
        hmm: distilled from the language model; it has seen answers only, never prompts.
        lookahead: "conditional", the twist of a model that the HMM resembles; "in_time", for models
            that read prompts; or, for comparison, "joint".
        exact_top_k: for so many of the language model's favourites g is exact, for the others it is
            that of their class; 0 for none, None for all.
        temper: power of g; below one it trusts the HMM less.
        defence: share of GCD's proposal that is mixed in, in [0, 1].
        potential: whether g is also the potential, so that weights are known, and particles
            resampled, before a token is drawn; otherwise potentials are one and weights follow.
        max_bytes: most memory that a table of completion probabilities may take, and that the
            tables kept for the next call may take together.

    Raises:
        ValueError: an argument makes no sense, or the HMM's parameters are not distributions.
    """

    def __init__(
        self,
        hmm: HMM,
        *,
        lookahead: str = "conditional",
        exact_top_k: int | None = 64,
        temper: float | int = 1.0,
        defence: float | int = 0.01,
        potential: bool = True,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if lookahead not in LOOKAHEADS:
            raise ValueError(f"lookahead is one of {', '.join(LOOKAHEADS)}, not {lookahead!r}")
        if exact_top_k is not None and not _is_number_of_tokens(exact_top_k):
            raise ValueError(f"exact_top_k is a number of tokens or None, not {exact_top_k!r}")
        if not 0 < temper <= STRONGEST:
            raise ValueError(f"temper is a positive power, at most {STRONGEST:g}, not {temper!r}")
        if not 0 <= defence <= 1:
            raise ValueError(f"defence is a share, from 0 to 1, not {defence!r}")
        if not isinstance(potential, bool):
            raise ValueError(f"potential is True or False, not {potential!r}")
        if max_bytes < 1:
            raise ValueError(f"max_bytes is a number of bytes, at least 1, not {max_bytes!r}")
        if not isinstance(hmm, HMM):
            raise ValueError(
                f"hmm is {type(hmm).__name__}, not an HMM; of a checkpoint give "
                "hmm.checkpoint.load(directory).hmm"
            )
        hmm.check()
        self.hmm = hmm
        self.lookahead = lookahead
        self.exact_top_k = None if exact_top_k is None else int(exact_top_k)
        self.temper = float(temper)
        self.defence = float(defence)
        self.potential = potential
        self.max_bytes = max_bytes
        self._tables = TableCache(max_bytes, eventual=lookahead == "in_time")
        self._tally = torch.zeros(3, dtype=torch.int64, device=hmm.device)

    def check(self, automata: Sequence[TokenAutomaton], budgets: Sequence[int]) -> None:
        """Refuse before any work what `start` would refuse.

        Raises:
            ConstraintError: the HMM has another vocabulary than the constraints, or the table would
                take more memory than is allowed.
        """
        self._tables.check(self.hmm, automata, budgets)

    def free(self) -> None:
        """Give the tables back that are kept for the next call with the same constraints."""
        self._tables.clear()

    def start(self, batch: Batch) -> PGCDState:
        """One empty prefix per example; computes the table, unless it is kept (`smc.tables`).

        Raises:
            ConstraintError: the HMM has another vocabulary or another device than the constraints,
                or the table would take more memory than is allowed.
        """
        walk = start_walk(batch)
        table = self._tables.table(self.hmm, batch.automata, batch.budgets.tolist())
        return PGCDState(walk, table, predict_first(self.hmm, len(batch.budgets)))

    def table_bytes(self, automaton: TokenAutomaton, budget: int) -> int:
        """Memory that its table of one constraint takes; several take at most the sum."""
        eventual = self.lookahead == "in_time"
        return bytes_of_table(self.hmm, automaton, budget, eventual=eventual)

    def advance(self, state: PGCDState, tokens: Int[Tensor, "R T"]) -> PGCDState:
        """Walks and filters on; -1 stands for no token."""
        predicted = state.predicted
        for token in tokens.long().unbind(dim=1):
            filtered = filter_step(self.hmm, predicted, token.clamp(min=0)).filtered
            after = self.hmm.transition.forward(filtered)
            predicted = torch.where((token >= 0).unsqueeze(1), after, predicted)
        return state._replace(walk=state.walk.advance(tokens), predicted=predicted)

    def take(self, state: PGCDState, ancestors: Int64[Tensor, "Q"]) -> PGCDState:
        """The state of these rows."""
        return state._replace(walk=state.walk.take(ancestors), predicted=state.predicted[ancestors])

    def guide(self, state: PGCDState, log_p: Float[Tensor, "R V"]) -> Guide | TiedGuide:
        """log g' and log Z; the support of g' is GCD's."""
        guide: Guide | TiedGuide
        if self.exact_top_k is None:
            exact = self._expect(expect_all_tokens, state)
            mixture = self._mix(self._log_g(exact), log_p, exact.alive)
            guide = Guide(mixture.log_g, mixture.log_z, mixture.lost)
        else:
            mixture, guide = self._tied(state, log_p, self._expect(expect_classes, state))
        rows = torch.tensor(len(log_p), device=log_p.device)
        self._tally = self._tally + torch.stack([rows, mixture.lost.sum(), mixture.mended.sum()])
        return guide

    @property
    def counts(self) -> Counts:
        """How often the HMM had nothing to say since this object was made."""
        return Counts(*self._tally.tolist())

    def _expect(
        self, expectation: Callable[..., Expectation], state: PGCDState, *tokens: Tensor
    ) -> Expectation:
        """Of classes or tokens; "in time" is on condition of completion, not of the token alone."""
        place = (state.predicted, state.walk.states, state.walk.remaining, *tokens)
        found = expectation(state.table, *place)
        if self.lookahead != "in_time":
            return found
        return found._replace(log_mass=expectation(state.table.without_budget, *place).log_joint)

    def _tied(
        self, state: PGCDState, log_p: Float[Tensor, "R V"], tied: Expectation
    ) -> tuple[_Mixture, TiedGuide]:
        """g by class, and exactly for the favourites; not spread over tokens."""
        table, walk = state.table, state.walk
        which = walk.automata.automaton_of[walk.states.clamp(min=0)]
        classes, C = walk.automata.classes, tied.alive.shape[1]
        last = len(table.class_size) - 1
        klass = table.first_class[which].unsqueeze(1) + torch.arange(C, device=log_p.device)
        log_size = table.class_size[klass.clamp(max=last)].clamp(min=1).double().log()

        K = min(self.exact_top_k or 0, log_p.shape[1])
        rest = weigh_rest(log_p, classes, which, tied.alive, K)
        exact = self._expect(expect_tokens, state, rest.tokens)
        mixture = self._mix(
            torch.cat([self._log_g(tied, log_size), self._log_g(exact)], dim=1),
            torch.cat([rest.log_mass, rest.best], dim=1),
            torch.cat([tied.alive, exact.alive], dim=1),
        )
        by_class, by_token = mixture.log_g[:, :C].contiguous(), mixture.log_g[:, C:].contiguous()
        return mixture, TiedGuide(
            by_class, rest.tokens, by_token, classes.of, which, mixture.log_z, mixture.lost
        )

    def _log_g(
        self, expected: Expectation, log_size: Float64[Tensor, "R K"] | None = None
    ) -> Float64[Tensor, "R K"]:
        """log g of some classes (of these sizes) or tokens, tempered; -inf for none."""
        if self.lookahead != "joint":
            log_g = expected.log_conditional
        else:
            log_g = expected.log_joint if log_size is None else expected.log_joint - log_size
        return log_g * self.temper

    def _mix(
        self,
        log_g: Float64[Tensor, "R K"],
        log_mass: Float[Tensor, "R K"],
        alive: Bool[Tensor, "R K"],
    ) -> _Mixture:
        """The defensive mixture, over items with these masses under p_lm."""
        log_z = torch.logsumexp(log_mass + log_g, dim=1)
        log_alive = torch.logsumexp(log_mass.masked_fill(~alive, -torch.inf), dim=1)
        empty = log_z.isneginf()
        mended = (alive & log_g.isneginf()).any(dim=1) & ~empty
        share = torch.full_like(log_z, self.defence).unsqueeze(1)
        share = share.masked_fill(mended.unsqueeze(1), max(self.defence, FLOOR))
        log_even = torch.where(empty, 0.0, log_z - log_alive).unsqueeze(1)
        mixed = torch.logaddexp(log_g + torch.log1p(-share), log_even + share.log())
        mixed = torch.where(empty.unsqueeze(1), 0.0, mixed).masked_fill(~alive, -torch.inf)
        log_z = torch.where(empty, log_alive, log_z)
        return _Mixture(mixed, log_z, empty & ~log_alive.isneginf(), mended)

    def __repr__(self) -> str:
        return (
            f"PGCD({self.hmm.num_states} hidden states, lookahead={self.lookahead!r}, "
            f"exact_top_k={self.exact_top_k}, temper={self.temper}, defence={self.defence}, "
            f"potential={self.potential})"
        )
