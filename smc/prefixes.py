"""Language model and proposal walk along the same prefixes, one step after the other.

What depends on tokens alone, namely the language model's log-probabilities, its cache and the
proposal's state, is kept by prefix (`Prefixes`); a particle names its prefix by row. A `Reader`
extends prefixes by a token each, and has two forms, which are the two ways to execute a step:

    EagerReader     rows are the distinct prefixes that run (`smc.eager`): equal ones are read once,
                    those that are over leave, and forced tokens and guesses of what follows are
                    read in the same pass. Sizes need a host sync
    StaticReader    one row for each particle from the first step to the last (`smc.static`):
                    there is no host sync, and a step can be captured as a graph

Both give the same tokens for the same random numbers where no tokens are forced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd.support.indices import check_shape
from smc.budgeting import Removed
from smc.competition import CandidateGuide, candidates_of
from smc.proposals import Batch, Proposal, State
from smc.vocabulary.factors import DenseGuide, Guide, TiedGuide
from smc.vocabulary.passes import VocabularyPass


@dataclass(frozen=True, eq=False)
class Prefixes(Generic[State]):
    """R prefixes of the examples of a batch; the reader knows the language model's row of each.

    An eager reader keeps distinct prefixes that are due another token; a static one keeps a row for
    each particle, of those that are over and of equal prefixes, too.

    Attributes:
        example: index in the batch of the example each belongs to, rising.
        log_p: log-probabilities of the next token, at the sampling temperature.
        state: the proposal's state.
    """

    example: Int64[Tensor, "R"]
    log_p: Float[Tensor, "R V"]
    state: State

    @property
    def num_rows(self) -> int:
        """R, the number of prefixes."""
        return self.example.shape[0]


class TokenCounts(NamedTuple):
    """Tokens of each of B examples in one step.

    Attributes:
        read: those that the language model read.
        forced: those that followed without a choice, equal prefixes counted once.
        drafted: of `read`, those of drafts (`smc.read_ahead`).
        used: those of these prefixes that an earlier pass had read in drafts.
        landed: of `used`, those that were chosen; the others were forced behind them.
    """

    read: Int64[Tensor, "B"]
    forced: Int64[Tensor, "B"]
    drafted: Int64[Tensor, "B"]
    used: Int64[Tensor, "B"]
    landed: Int64[Tensor, "B"]


class Extension(NamedTuple):
    """What became of P prefixes that were extended by a token, and by those forced behind it.

    Attributes:
        finished: the answer is complete.
        running: another token is due.
        row: the row of each among the new prefixes; undefined for one that is not running.
        tokens: what each was extended by; -1 beyond the length, and where none was chosen.
        forced: how many of these tokens were forced.
        forced_log_p: log-probability of the forced ones alone, at the sampling temperature.
        forced_log_g: log g of the last forced one; 0 where there is none.
        landed: whether the model had read all of these tokens before they were chosen, in a draft.
        counts: tokens of each example that were read, forced, drafted and used.
        failed: whether the model gave what is not a number, where that is not refused at once.
        removed: what the budget alone removed along the forced ones.
    """

    finished: Bool[Tensor, "P"]
    running: Bool[Tensor, "P"]
    row: Int64[Tensor, "P"]
    tokens: Int64[Tensor, "P K"]
    forced: Int64[Tensor, "P"]
    forced_log_p: Float64[Tensor, "P"]
    forced_log_g: Float64[Tensor, "P"]
    landed: Bool[Tensor, "P"]
    counts: TokenCounts
    failed: Bool[Tensor, ""]
    removed: Removed

    def spread(self, places: Int64[Tensor, "M"], of: Int64[Tensor, "M"], count: int) -> Extension:
        """Put entries `of` at these places of P; the others are neither running nor finished."""

        def at(field: Tensor, nothing: int | float | bool) -> Tensor:
            shape = (count, *field.shape[1:])
            return torch.full(shape, nothing, dtype=field.dtype, device=field.device).index_copy(
                0, places, field[of]
            )

        return Extension(
            at(self.finished, False), at(self.running, False), at(self.row, 0),
            at(self.tokens, -1), at(self.forced, 0), at(self.forced_log_p, 0.0),
            at(self.forced_log_g, 0.0), at(self.landed, False), self.counts, self.failed,
            self.removed.at(of).spread(places, count),
        )  # fmt: skip


class Reader(ABC, Generic[State]):
    """Language model and proposal for the B examples of a batch.

    Args:
        proposal: whose state is kept beside the model's.
        batch: automata and budgets.
        vocabulary_pass: how to go over the vocabulary.
        temperature: that of p_lm.
        top_p: next tokens outside of the smallest set of this probability under q are left out.
    """

    is_static: bool

    def __init__(
        self,
        proposal: Proposal[State],
        batch: Batch,
        vocabulary_pass: VocabularyPass,
        *,
        temperature: float,
        top_p: float = 1.0,
    ) -> None:
        self.proposal = proposal
        self.batch = batch
        self.vocabulary_pass = vocabulary_pass
        self.temperature = temperature
        self.top_p = top_p

    @abstractmethod
    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int
    ) -> tuple[Extension, Prefixes[State]]:
        """Read each prompt (token ids) once.

        Returns:
            For each of N particles of each example, what is forced before the first choice; and the
            prefixes where they are then.

        Raises:
            FloatingPointError: the language model's log-probabilities are not numbers.
        """
        ...

    @abstractmethod
    def extend(
        self,
        prefixes: Prefixes[State],
        row: Int64[Tensor, "P"],
        token: Int64[Tensor, "P"],
        running: Bool[Tensor, "P"],
    ) -> tuple[Extension, Prefixes[State]]:
        """Extend prefix `row[p]` by `token[p]`, for each p that is running.

        In an example that waits (`need_no_pass`), token -1 leaves a prefix as it is.
        """
        ...

    def need_no_pass(
        self,
        prefixes: Prefixes[State],
        row: Int64[Tensor, "P"],
        token: Int64[Tensor, "P"],
        running: Bool[Tensor, "P"],
    ) -> Bool[Tensor, "B"] | None:
        """Return a mask of the examples that can step without a forward pass, if others need one.

        The others wait, so that a pass serves as many examples as possible. None if nobody has to
        wait: no example needs a pass, or all do.
        """
        del prefixes, row, token, running
        return None

    @abstractmethod
    def indices(self, mask: Bool[Tensor, "M"]) -> Int64[Tensor, "K"]:
        """Return the indices where the mask is true; in static shapes all, and the caller masks."""
        ...

    @abstractmethod
    def note_nan(self, found: Bool[Tensor, ""]) -> Bool[Tensor, ""]:
        """Refuse NaN at once; in static shapes return the flag, to be checked after the run."""
        ...

    def rewind(self) -> None:
        """Make the language model forget all generated tokens, after steps that were a trial."""
        raise NotImplementedError(f"steps of {type(self).__name__} are taken once")

    def guide(self, prefixes: Prefixes[State]) -> Guide:
        """Ask the proposal about every next token, and cut its answer to the nucleus."""
        guide = self.proposal.guide(prefixes.state, prefixes.log_p)
        if isinstance(guide, DenseGuide):  # others are checked where compiled code reads them
            check_shape(guide.log_g, tuple(prefixes.log_p.shape), f"log g by {self.proposal!r}")
        if isinstance(guide, DenseGuide | TiedGuide):
            check_shape(guide.log_z, (prefixes.num_rows,), f"log Z by {self.proposal!r}")
        if self.top_p < 1:
            inside = nucleus(guide.tilted(prefixes.log_p), self.top_p)
            log_g = torch.where(inside, guide.log_g, -torch.inf)
            log_z = torch.logsumexp(prefixes.log_p + log_g, dim=1)
            guide = DenseGuide(log_g, log_z, guide.fallback)
        return guide

    def score(self, prefixes: Prefixes[State]) -> CandidateGuide:
        """Ask the proposal how it scores every next token, or every one in the nucleus."""
        if self.top_p < 1:
            return candidates_of(self.guide(prefixes), prefixes.state.walk.successors())
        found = self.proposal.score(prefixes.state, prefixes.log_p)
        found.factors.check(prefixes.log_p)
        return found

    def check(self, log_p: Float[Tensor, "*R V"], *rows: int) -> None:
        """Refuse log-probabilities of another vocabulary than the constraint's."""
        check_log_p(log_p, self.batch.automata.vocabulary.size, *rows)

    def tempered(self, log_p: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """Return p_lm at the sampling temperature."""
        self.check(log_p)
        return at_temperature(log_p, self.temperature)


def check_log_p(log_p: Float[Tensor, "*R V"], size: int, *rows: int) -> None:
    """Refuse what a language model returned, if it isn't of shape (*rows, `size`).

    Compiled code relies on it. Nothing waits for the device.

    Args:
        log_p: what should be log-probabilities of the next token.
        size: tokens of the vocabulary.
        rows: the axes before; any, if they are not given.

    Raises:
        ValueError: expected and actual shape, or the type.
    """
    if not (isinstance(log_p, Tensor) and log_p.is_floating_point()):
        kind = log_p.dtype if isinstance(log_p, Tensor) else type(log_p).__name__
        raise ValueError(f"expected log-probabilities as a tensor of floats, got {kind}")
    shape = tuple(log_p.shape)
    if shape[-1:] != (size,):
        raise ValueError(
            f"expected log-probabilities of the vocabulary's {size} tokens from the language "
            f"model, got {shape[-1] if shape else 0}; were its embeddings resized, or its logits "
            "padded? Make the smc.TransformersLM again, and lift the constraint to its vocabulary"
        )
    if rows and shape[:-1] != rows:
        raise ValueError(
            f"expected log-probabilities of shape {(*rows, size)} from the language model, got "
            f"{shape}"
        )


def at_temperature(log_p: Float[Tensor, "R V"], temperature: float) -> Float[Tensor, "R V"]:
    """Return log p^(1/T), normalised again unless T is one, in float32 at least."""
    log_p = log_p.to(torch.promote_types(log_p.dtype, torch.float32))
    return log_p if temperature == 1 else (log_p / temperature).log_softmax(dim=1)


def count_of(
    example: Int64[Tensor, "M"], count: int, many: Int64[Tensor, "M"] | None = None
) -> Int64[Tensor, "B"]:
    """Count how many there are of each example; `many` says how many each entry stands for."""
    many = torch.ones_like(example) if many is None else many
    return example.new_zeros(count).index_add(0, example, many)


def refusing_nan(log_p: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Return what was given, and raise FloatingPointError where it has NaN.

    A sum is NaN where any term is, and takes one pass without a copy.
    """
    refuse_nan(no_numbers(log_p).any())
    return log_p


def no_numbers(log_p: Float[Tensor, "R V"]) -> Bool[Tensor, "R"]:
    """Return the rows in which something is NaN, or infinite and positive."""
    # Sums of scores in half precision overflow, which those of log-probabilities don't.
    wide = torch.promote_types(log_p.dtype, torch.float32)
    return ~(log_p.sum(dim=1, dtype=wide) < torch.inf)


def refuse_nan(found: Bool[Tensor, ""], whose: str = "the language model") -> None:
    """Raise FloatingPointError where NaN was found, for which the host waits."""
    if bool(found):
        raise FloatingPointError(
            f"{whose} returned log-probabilities that are not numbers (NaN), or +inf; a language "
            "model's weights or dtype are at fault (try float32 or bfloat16), a proposal's "
            "arithmetic"
        )


def nucleus(log_q: Float[Tensor, "R V"], top_p: float) -> Bool[Tensor, "R V"]:
    """Find the most probable tokens that together have at least probability top_p."""
    ordered, order = log_q.log_softmax(dim=1).sort(dim=1, descending=True, stable=True)
    before = ordered.exp().cumsum(dim=1) - ordered.exp()
    return torch.zeros_like(log_q, dtype=torch.bool).scatter(1, order, before < top_p)
