"""Language model and proposal walk along the same prefixes, one step after the other.

What depends on tokens alone, namely the language model's log-probabilities, its cache and the
proposal's state, is kept by prefix (`Prefixes`); particles name theirs by row. A `Reader` extends
prefixes by a token each, and has two forms, which are the two ways to execute a step:

    EagerReader     rows are the distinct prefixes that run: equal ones are read once, those that
                    are over leave, and tokens that leave no choice are read along in the same pass
                    (`smc.proposals.forced`). The host waits for sizes
    StaticReader    one row for each particle from the first step to the last (`smc.static`):
                    nothing moves that need not, nothing waits, and a step can be captured

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

from smc.competition import Scores, scores_of
from smc.models.protocol import LanguageModel, Rows
from smc.proposals import Batch, Proposal, State
from smc.proposals.forced import follow
from smc.vocabulary.factors import DenseGuide, Guide
from smc.vocabulary.passes import Pass

MOST_READ = 1 << 26
"""Numbers of log-probabilities that come out of one forward pass, at most, if it can be helped."""


@dataclass(frozen=True, eq=False)
class Prefixes(Generic[State]):
    """R prefixes due another token; the reader knows the language model's row of each.

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


class Extension(NamedTuple):
    """What became of P prefixes that were extended by a token, and by those forced behind it.

    Attributes:
        finished: the answer is complete.
        running: another token is due.
        row: the row of each among the new prefixes; any where none is due.
        tokens: what each was extended by; -1 beyond the length, and where none was chosen.
        forced: how many of these tokens were forced.
        forced_log_p: log-probability of the forced ones alone, at the sampling temperature.
        forced_log_g: log g of the last forced one; 0 where there is none.
        num_read: tokens that the language model read for each of B examples.
        num_forced: tokens that followed without a choice, of each of B examples, equal prefixes
            counted once.
        failed: whether the model gave what is not a number, where that is not refused at once.
    """

    finished: Bool[Tensor, "P"]
    running: Bool[Tensor, "P"]
    row: Int64[Tensor, "P"]
    tokens: Int64[Tensor, "P K"]
    forced: Int64[Tensor, "P"]
    forced_log_p: Float64[Tensor, "P"]
    forced_log_g: Float64[Tensor, "P"]
    num_read: Int64[Tensor, "B"]
    num_forced: Int64[Tensor, "B"]
    failed: Bool[Tensor, ""]

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
            at(self.forced_log_g, 0.0),
            self.num_read, self.num_forced, self.failed,
        )  # fmt: skip


class Reader(ABC, Generic[State]):
    """Language model and proposal for the B examples of a batch.

    Args:
        proposal: whose state is kept beside the model's.
        batch: automata and budgets.
        vocabulary: how to go over the vocabulary.
        temperature: that of p_lm.
        top_p: next tokens outside of the smallest set of this probability under q are left out.
    """

    is_static: bool

    def __init__(
        self,
        proposal: Proposal[State],
        batch: Batch,
        vocabulary: Pass,
        *,
        temperature: float,
        top_p: float = 1.0,
    ) -> None:
        self.proposal = proposal
        self.batch = batch
        self.vocabulary = vocabulary
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
        """Extend prefix `row[p]` by `token[p]`, for each p that is running."""
        ...

    @abstractmethod
    def some(self, mask: Bool[Tensor, "M"]) -> Int64[Tensor, "K"]:
        """Return the indices where the mask is true; in static shapes all, and the caller masks."""
        ...

    @abstractmethod
    def note_nan(self, found: Bool[Tensor, ""]) -> Bool[Tensor, ""]:
        """Refuse NaN at once, or hand it on where nobody may wait."""
        ...

    def rewind(self) -> None:
        """Make the language model forget all generated tokens, after steps that were a trial."""
        raise NotImplementedError(f"steps of {type(self).__name__} are taken once")

    def guide(self, prefixes: Prefixes[State]) -> Guide:
        """Ask the proposal about every next token, and cut its answer to the nucleus."""
        guide = self.proposal.guide(prefixes.state, prefixes.log_p)
        if self.top_p < 1:
            inside = nucleus(guide.tilted(prefixes.log_p), self.top_p)
            log_g = torch.where(inside, guide.log_g, -torch.inf)
            log_z = torch.logsumexp(prefixes.log_p + log_g, dim=1)
            guide = DenseGuide(log_g, log_z, guide.fallback)
        return guide

    def score(self, prefixes: Prefixes[State]) -> Scores:
        """Ask the proposal how it scores every next token, or every one in the nucleus."""
        if self.top_p < 1:
            return scores_of(self.guide(prefixes), prefixes.state.walk.successors())
        return self.proposal.score(prefixes.state, prefixes.log_p)

    def tempered(self, log_p: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """p_lm at the sampling temperature, in the model's precision, float32 at least."""
        log_p = log_p.to(torch.promote_types(log_p.dtype, torch.float32))
        if self.temperature != 1:
            log_p = (log_p / self.temperature).log_softmax(dim=1)
        return log_p


class EagerReader(Reader[State]):
    """A reader whose rows are distinct prefixes; see `Reader`.

    Args:
        lm: the language model.
        proposal, batch, vocabulary, temperature, top_p: as for `Reader`.
        forced_runs: whether tokens that are forced are taken together, in one step.
    """

    is_static = False

    def __init__(
        self,
        lm: LanguageModel,
        proposal: Proposal[State],
        batch: Batch,
        vocabulary: Pass,
        *,
        temperature: float,
        top_p: float = 1.0,
        forced_runs: bool = True,
    ) -> None:
        super().__init__(proposal, batch, vocabulary, temperature=temperature, top_p=top_p)
        self.lm = lm
        self.forced_runs = forced_runs
        self._rows: Rows
        self._held: Int64[Tensor, "R"]  # the model's row of each prefix

    def some(self, mask: Bool[Tensor, "M"]) -> Int64[Tensor, "K"]:
        """Return the places in the mask."""
        return mask.nonzero().squeeze(1)

    def note_nan(self, found: Bool[Tensor, ""]) -> Bool[Tensor, ""]:
        """Refuse NaN; the model's own has been refused when it was read."""
        refuse_nan(found, repr(self.proposal))
        return found

    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int
    ) -> tuple[Extension, Prefixes[State]]:
        """Read each prompt once; see `Reader`."""
        state = self.proposal.start(self.batch)  # it may refuse, so the model comes after it
        self._rows, log_p = self.lm.prefill(prompts)
        every = torch.arange(len(prompts), device=log_p.device)
        self._held = every
        found, after = self._follow(every, state, every, first=_numbers(self.tempered(log_p)))
        each = every.repeat_interleave(num_particles)
        return found.spread(torch.arange(len(each), device=each.device), each, len(each)), after

    def extend(
        self,
        prefixes: Prefixes[State],
        row: Int64[Tensor, "P"],
        token: Int64[Tensor, "P"],
        running: Bool[Tensor, "P"],
    ) -> tuple[Extension, Prefixes[State]]:
        """Extend distinct prefixes, each once; see `Reader`."""
        some, V = self.some(running), prefixes.log_p.shape[1]
        child, child_of = torch.unique(row[some] * V + token[some], return_inverse=True)
        parent, chosen = child // V, child % V
        state = self.proposal.take(prefixes.state, parent)
        state = self.proposal.advance(state, chosen.unsqueeze(1))
        found, after = self._follow(prefixes.example[parent], state, parent, token=chosen)
        return found.spread(some, child_of, len(running)), after

    def _follow(
        self,
        example: Int64[Tensor, "M"],
        state: State,
        parent: Int64[Tensor, "M"],
        *,
        token: Int64[Tensor, "M"] | None = None,
        first: Float[Tensor, "M V"] | None = None,
    ) -> tuple[Extension, Prefixes[State]]:
        """Go through what is forced after each prefix, and read what is not read yet.

        Args:
            example: of each prefix.
            state: the proposal's, of each.
            parent: the row that was read, of which each prefix is a continuation.
            token: the last token of each prefix, which is not read yet; None where all is read.
            first: log-probabilities of the token after each prefix, where all is read.
        """
        followed = follow(self.proposal, state, follows=self.forced_runs)
        walk, tokens = followed.state.walk, followed.tokens
        if token is not None:
            tokens = torch.cat([token.unsqueeze(1), tokens], dim=1)
        # An automaton that ends by itself may accept the empty answer: nothing is left to draw.
        # What ends a text needs no reading, only what comes before it.
        running = walk.running
        read = ((tokens >= 0).sum(dim=1) - (~running).long()).clamp(min=0)
        due = self.some(running | (followed.length > 0))
        said, after = self._read(
            parent[due], tokens[due], read[due], None if first is None else first[due]
        )
        log_p = torch.zeros_like(followed.log_g).index_copy(0, due, said)
        possible = ~log_p.isneginf()
        running = running & possible
        B = len(self.batch.budgets)
        found = Extension(
            finished=walk.finished & possible,
            running=running,
            row=torch.where(running, running.cumsum(dim=0) - 1, 0),
            tokens=tokens,
            forced=followed.length,
            forced_log_p=log_p,
            forced_log_g=followed.log_g,
            num_read=count_of(example, B, read),
            num_forced=count_of(example, B, followed.length),
            failed=torch.zeros((), dtype=torch.bool, device=running.device),
        )
        kept = self.some(running[due])
        self._held = self._held[kept]
        state = self.proposal.take(followed.state, due[kept])
        return found, Prefixes(example[due[kept]], _numbers(after[kept]), state)

    def _read(
        self,
        parent: Int64[Tensor, "D"],
        tokens: Int64[Tensor, "D K"],
        read: Int64[Tensor, "D"],
        first: Float[Tensor, "D V"] | None,
    ) -> tuple[Float64[Tensor, "D"], Float[Tensor, "D V"]]:
        """Have the language model read the first `read` tokens after each of these prefixes.

        Returns:
            The log-probability of all tokens but the first (of that, too, where `first` is what the
            model says of it), and what the model says of the token after those that are read.
        """
        total = torch.zeros(len(parent), dtype=torch.float64, device=parent.device)
        self._held = self._held[parent]
        after = total.new_zeros(len(parent), 0) if first is None else first
        if first is not None and tokens.shape[1]:
            total = _plus(total, first, tokens[:, 0])
        longest = int(read.max()) if len(read) else 0
        if not longest:
            return total, after
        ahead = torch.nn.functional.pad(tokens, (0, 1), value=-1)
        most = max(1, MOST_READ // (len(parent) * self.lm.vocabulary.size))
        for start in range(0, longest, most):
            run = tokens[:, start : min(longest, start + most)].clamp(min=0)
            lengths = (read - start).clamp(min=0, max=run.shape[1])
            self._rows.reorder(self._held)
            said = self._rows.extend(run, lengths)
            self._held = torch.arange(len(parent), device=parent.device)
            for t in range(said.shape[1]):
                here = self.some(lengths > t)
                whole = len(here) == len(parent)
                log_p = self.tempered(said[:, t] if whole else said[here, t])
                total[here] = _plus(total[here], log_p, ahead[here, start + t + 1])
                ends = read[here] == start + t + 1
                if whole and bool(ends.all()):
                    return total, log_p
                if not after.shape[1]:
                    after = torch.zeros_like(log_p[:1]).repeat(len(parent), 1)
                after[here[ends]] = log_p[ends]
        return total, after


def count_of(
    example: Int64[Tensor, "M"], count: int, many: Int64[Tensor, "M"] | None = None
) -> Int64[Tensor, "B"]:
    """Count how many there are of each example; `many` says how many each entry stands for."""
    many = torch.ones_like(example) if many is None else many
    return example.new_zeros(count).index_add(0, example, many)


def _plus(
    total: Float64[Tensor, "M"], log_p: Float[Tensor, "M V"], token: Int64[Tensor, "M"]
) -> Float64[Tensor, "M"]:
    """Add the log-probability of a token to each total; -1 stands for no token.

    Nothing comes after what is impossible, whatever the model says there.
    """
    more = log_p.gather(1, token.clamp(min=0).unsqueeze(1)).squeeze(1).double()
    more = more.masked_fill((token < 0) | total.isneginf(), 0.0)
    return total + _numbers(more.unsqueeze(1)).squeeze(1)


def _numbers(log_p: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Refuse NaN. A sum has one where any of its terms is, and is one pass without a copy."""
    refuse_nan(log_p.sum(dim=1).isnan().any())
    return log_p


def refuse_nan(found: Bool[Tensor, ""], whose: str = "the language model") -> None:
    """Raise FloatingPointError where NaN was found, for which the host waits."""
    if bool(found):
        raise FloatingPointError(
            f"{whose} returned log-probabilities that are not numbers (NaN); a language model's "
            "weights or dtype are at fault (try float32 or bfloat16), a proposal's arithmetic"
        )


def nucleus(log_q: Float[Tensor, "R V"], top_p: float) -> Bool[Tensor, "R V"]:
    """Find the most probable tokens that together have at least probability top_p."""
    ordered, order = log_q.log_softmax(dim=1).sort(dim=1, descending=True, stable=True)
    before = ordered.exp().cumsum(dim=1) - ordered.exp()
    return torch.zeros_like(log_q, dtype=torch.bool).scatter(1, order, before < top_p)
