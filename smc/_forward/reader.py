"""Prefixes, and the `Reader` that extends them with the language model and the proposal.

Data that depends only on tokens is stored per prefix (`Prefixes`): the language model's
log-probabilities, its cache, and the proposal's state. Each particle stores the index of its
prefix. A `Reader` extends each prefix by one token. Its two implementations are the two execution
modes, which give the same tokens for the same random numbers if no tokens are forced:

    EagerReader     has a row per distinct running prefix. Equal prefixes are computed once, and
                    ended prefixes are removed. Forced tokens and drafts
                    (`smc._forward.read_ahead`) are computed in the same pass. The sizes of tensors
                    depend on data, so every step synchronizes with the host
    StaticReader    has one row per particle from the first step to the last. It never synchronizes
                    with the host, and a step can be captured (`smc._inference.captured`)

**Forced runs** are consecutive forced tokens, each the only token that g allows. Most of a tool
call is text that the constraint prescribes. If only one token is allowed, q gives it probability
one. The token can therefore be appended without a draw, and without a forward pass before it. A
single forward pass then computes the preceding token and the whole run, and returns the
log-probability of each token for the weight. Let f_1 ... f_k be the run after a drawn token d. The
update

    weight  *=  product of p_lm(f_i)  ·  g(f_k) / g(d)

is the product of the factors Z / psi of k single steps, because the intermediate values of g
cancel. The target and the weight of every sequence are the same as with single steps. Only the
times of resampling differ, because particles are never resampled inside a run of forced tokens. So
a run of the sampler may end with other answers than with single steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc._forward.read_ahead import Draft, decode, make_draft
from smc._models.protocol import LanguageModel, Rows
from smc._proposals import AutomatonPosition, Batch, Proposal, State, start_position
from smc._proposals.masks import Progress, binds, compute_removed
from smc._vocabulary.factors import Factors
from smc._vocabulary.passes import VocabularyPass


@dataclass(frozen=True, eq=False)
class Prefixes(Generic[State]):
    """R prefixes of the examples of a batch.

    An eager reader has the distinct prefixes that take another token. A static reader has a row for
    each particle, including ended particles and duplicates. The reader knows which row of the
    language model belongs to each prefix.

    Attributes:
        example: index of each prefix's example in the batch, in ascending order.
        log_p: log-probabilities of the next token, at the sampling temperature.
        state: the proposal's state.
    """

    example: Int64[Tensor, "R"]
    log_p: Float[Tensor, "R V"]
    state: State

    @property
    def num_rows(self) -> int:
        """The number of prefixes, R."""
        return self.example.shape[0]


class TokenCounts(NamedTuple):
    """Numbers of tokens in one step, for each of B examples.

    Attributes:
        read: number of tokens that the language model computed.
        forced: number of forced tokens; equal prefixes count once.
        drafted: number of draft tokens in `read` (`smc._forward.read_ahead`).
        used: number of appended tokens that an earlier pass had computed as draft tokens.
        landed: number of tokens in `used` that the sampler chose; the others were forced.
    """

    read: Int64[Tensor, "B"]
    forced: Int64[Tensor, "B"]
    drafted: Int64[Tensor, "B"]
    used: Int64[Tensor, "B"]
    landed: Int64[Tensor, "B"]


class Extension(NamedTuple):
    """Result of extending P prefixes by a token and the forced tokens after it.

    Attributes:
        finished: whether the answer is complete.
        running: whether the prefix takes another token.
        row: index of the extended prefix among the new prefixes; undefined if it isn't running.
        tokens: the appended tokens; -1 beyond the last one, and in the first column if no token was
            chosen.
        forced: number of forced tokens.
        forced_log_p: log-probability of the forced tokens, at the sampling temperature.
        forced_log_g: log g of the last forced token; 0 if there is none.
        landed: whether the model had already computed all of these tokens as a draft.
        counts: numbers of tokens of each example that were computed, forced, drafted and used.
        failed: whether the model returned NaN or +inf, in static shapes.
        log_removed: log-probability of the next tokens that only the budget forbids, along the
            forced tokens (`smc._proposals.masks`).
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
    log_removed: Float64[Tensor, "P"]

    def spread(self, slots: Int64[Tensor, "M"], of: Int64[Tensor, "M"], count: int) -> Extension:
        """Copy results to `count` particle slots: prefix `of[i]` to slot `slots[i]`.

        Slots without a prefix are neither running nor finished.
        """

        def at(field: Tensor, nothing: int | float | bool) -> Tensor:
            shape = (count, *field.shape[1:])
            return torch.full(shape, nothing, dtype=field.dtype, device=field.device).index_copy(
                0, slots, field[of]
            )

        return Extension(
            at(self.finished, False), at(self.running, False), at(self.row, 0),
            at(self.tokens, -1), at(self.forced, 0), at(self.forced_log_p, 0.0),
            at(self.forced_log_g, 0.0), at(self.landed, False), self.counts, self.failed,
            at(self.log_removed, -torch.inf),
        )  # fmt: skip


class Reader(ABC, Generic[State]):
    """Base class of objects that extend the prefixes of a batch of B examples.

    A reader runs the language model on the prefixes, and updates the proposal's state.

    Args:
        proposal: the proposal.
        batch: automata and budgets.
        vocabulary_pass: implementation of the passes over the vocabulary.
        temperature: temperature of p_lm.
    """

    is_static: bool

    def __init__(
        self,
        proposal: Proposal[State],
        batch: Batch,
        vocabulary_pass: VocabularyPass,
        *,
        temperature: float,
    ) -> None:
        self.proposal = proposal
        self.batch = batch
        self.vocabulary_pass = vocabulary_pass
        self.temperature = temperature

    @abstractmethod
    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int
    ) -> tuple[Extension, Prefixes[State]]:
        """Run the model on each prompt (token ids) once.

        Returns:
            The tokens that are forced before the first choice, for each of N particles of each
            example; and the prefixes after these tokens.
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
        """Extend prefix number `row[p]` by the token `token[p]`, for each running particle p."""
        ...

    @abstractmethod
    def indices(self, mask: Bool[Tensor, "M"]) -> Int64[Tensor, "K"]:
        """Return the indices where the mask is True; in static shapes, all indices."""
        ...

    @abstractmethod
    def note_nan(self, found: Bool[Tensor, ""]) -> Bool[Tensor, ""]:
        """Report whether NaN was found: raise an error, or keep the flag for a later check.

        An eager reader raises the error. A static reader returns the flag, because it doesn't
        synchronize with the host.
        """
        ...

    def rewind(self) -> None:
        """Remove all generated tokens from the language model's cache, after warm-up steps."""
        raise NotImplementedError(
            f"expected a StaticReader, because only static shapes have warm-up steps, got "
            f"{type(self).__name__}"
        )

    def guide(self, prefixes: Prefixes[State]) -> Factors:
        """Return the proposal's log g."""
        found = self.proposal.guide(prefixes.state, prefixes.log_p)
        if not isinstance(found, Factors):
            raise ValueError(
                f"expected a smc.Factors from `guide` of {self.proposal!r}, got "
                f"{type(found).__name__}; for a tensor with log g of every token return "
                "smc.Factors.dense(log_g)"
            )
        found.check(prefixes.log_p)
        return found

    def check(self, log_p: Float[Tensor, "*R V"], *rows: int) -> None:
        """Raise an error unless each row has one log-probability per token of the vocabulary."""
        check_log_p(log_p, self.batch.automata.vocabulary.size, *rows)

    def temper(self, log_p: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """Return log-probabilities at the sampling temperature; their shape must be checked."""
        return at_temperature(log_p, self.temperature)


def check_log_p(log_p: Float[Tensor, "*R V"], size: int, *rows: int) -> None:
    """Raise an error unless a language model's result has the shape (*rows, `size`).

    Compiled code relies on the shape. The check doesn't synchronize with the host.
    """
    if not (isinstance(log_p, Tensor) and log_p.is_floating_point()):
        kind = log_p.dtype if isinstance(log_p, Tensor) else type(log_p).__name__
        raise ValueError(
            f"expected log-probabilities from the language model as a tensor of floats, got {kind}"
        )
    shape = tuple(log_p.shape)
    if shape[-1:] != (size,):
        raise ValueError(
            f"expected log-probabilities of {size} tokens, as in the vocabulary, from the language "
            f"model, got {shape[-1] if shape else 0}; if its embeddings were resized, create a new "
            "smc.TransformersLM and lift the constraint to its vocabulary"
        )
    if rows and shape[:-1] != rows:
        raise ValueError(
            f"expected log-probabilities of shape {(*rows, size)} from the language model, got "
            f"{shape}"
        )


def at_temperature(log_p: Float[Tensor, "R V"], temperature: float) -> Float[Tensor, "R V"]:
    """Return log-probabilities of the distribution proportional to p^(1/T), in at least float32.

    If T is one, the given log-probabilities must already be normalized.
    """
    log_p = log_p.to(torch.promote_types(log_p.dtype, torch.float32))
    return log_p if temperature == 1 else (log_p / temperature).log_softmax(dim=1)


def count_of(
    example: Int64[Tensor, "M"], count: int, many: Int64[Tensor, "M"] | None = None
) -> Int64[Tensor, "B"]:
    """Count the items of each of `count` examples, or sum the numbers `many` of these items.

    Args:
        many: a number for each item; None to count every item once.
    """
    many = torch.ones_like(example) if many is None else many
    return example.new_zeros(count).index_add(0, example, many)


def check_nan(log_p: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Return the argument; raise FloatingPointError if it contains NaN or +inf.

    The check sums each row. A sum is NaN if one of its terms is, so a single pass without a copy is
    enough.
    """
    refuse_nan(has_nan(log_p).any())
    return log_p


def has_nan(log_p: Float[Tensor, "R V"]) -> Bool[Tensor, "R"]:
    """Return True for rows that contain NaN or +inf."""
    # A sum over the vocabulary overflows in half precision, so it is computed in float32.
    wide = torch.promote_types(log_p.dtype, torch.float32)
    return ~(log_p.sum(dim=1, dtype=wide) < torch.inf)


def refuse_nan(found: Bool[Tensor, ""], whose: object = "the language model") -> None:
    """Raise FloatingPointError if `found` is True, with a host synchronization."""
    if bool(found):
        raise FloatingPointError(
            f"expected log-probabilities from {whose}, got NaN or +inf; check the weights and the "
            "dtype of a language model (try float32 or bfloat16), or the arithmetic of a proposal"
        )


@dataclass(frozen=True, eq=False)
class Followed(Generic[State]):
    """Result of appending forced runs to M prefixes.

    Attributes:
        tokens: the forced tokens of each prefix; -1 beyond the last one.
        log_g: log g of the last forced token; 0 if there are no forced tokens.
        state, position: the proposal's state and its position after the forced tokens.
        positions: positions in the automata before each column of `tokens`; empty if the proposal's
            state has no positions.
    """

    tokens: Int64[Tensor, "M K"]
    log_g: Float64[Tensor, "M"]
    state: State
    position: Progress
    positions: tuple[AutomatonPosition, ...] = ()

    @property
    def length(self) -> Int64[Tensor, "M"]:
        """Number of tokens in each run."""
        return (self.tokens >= 0).sum(dim=1)


def follow(proposal: Proposal[State], state: State, *, follows: bool = True) -> Followed[State]:
    """Append forced tokens to each prefix until several tokens are allowed, or the prefix ends."""
    position = state.position
    log_g = torch.zeros_like(position.states, dtype=torch.float64)
    columns, positions = [position.states.new_empty(len(log_g), 0)], []
    while follows:
        token = proposal.forced(state).masked_fill(~position.running, -1)
        rows = (token >= 0).nonzero().squeeze(1)
        if not len(rows):
            break
        log_g[rows] = proposal.log_g_of_forced(proposal.take(state, rows), token[rows])
        if isinstance(position, AutomatonPosition):
            positions.append(position)
        state = proposal.advance(state, token.unsqueeze(1))
        position = state.position
        columns.append(token.unsqueeze(1))
    return Followed(torch.cat(columns, dim=1), log_g, state, position, tuple(positions))


MOST_READ = 1 << 26
"""Maximum number of log-probabilities that one forward pass returns, unless one column has more.

The log-probabilities of a draft that are stored until the next pass have the same limit.
"""


class _Cached(NamedTuple):
    """Contents of the language model's cache for R prefixes.

    Attributes:
        row: the model's batch row of each prefix.
        length: number of answer tokens in each prefix's row, without draft tokens.
    """

    row: Int64[Tensor, "R"]
    length: Int64[Tensor, "R"]

    def take(self, rows: Int64[Tensor, "Q"]) -> _Cached:
        return _Cached(self.row[rows], self.length[rows])


class _LogProbs(NamedTuple):
    """The language model's log-probabilities for D prefixes, at the sampling temperature.

    Attributes:
        of_tokens: sum of log p of the forced tokens. These are all appended tokens except the
            first, which was chosen. Before the first step no token was chosen, so all of them are
            forced.
        after: log p of the next token after each prefix.
        num_drafted: number of draft tokens that this pass computed.
        num_used: number of appended tokens that an earlier pass had computed as drafts.
    """

    of_tokens: Float64[Tensor, "D"]
    after: Float[Tensor, "D V"]
    num_drafted: Int64[Tensor, "D"]
    num_used: Int64[Tensor, "D"]


class EagerReader(Reader[State]):
    """Reader that runs the model once on each distinct prefix; see `Reader`.

    Args:
        lm: the language model.
        proposal, batch, vocabulary_pass, temperature: as for `Reader`.
        forced_runs: whether consecutive forced tokens are appended in one step.
        ahead: number of draft tokens in a pass over a single row; 0 disables reading ahead.
    """

    is_static = False

    def __init__(
        self,
        lm: LanguageModel,
        proposal: Proposal[State],
        batch: Batch,
        vocabulary_pass: VocabularyPass,
        *,
        temperature: float,
        forced_runs: bool = True,
        ahead: int = 0,
    ) -> None:
        super().__init__(proposal, batch, vocabulary_pass, temperature=temperature)
        self.lm = lm
        self.forced_runs = forced_runs
        self._ahead = ahead
        self._rows: Rows
        self._cached: _Cached
        self._draft: Draft | None = None  # follows the answer tokens of the model's only row
        self._positions: list[AutomatonPosition] = []  # before each column of forced tokens
        self._forced: Bool[Tensor, "D K"]
        self._log_removed: Float64[Tensor, "D"]
        self._bound: list[bool] = []  # whether the budget removes a token, for each forced column
        self._column = 0
        self._texts: list[bytes] = []  # prompt and answer of each prefix, for drafts

    def indices(self, mask: Bool[Tensor, "M"]) -> Int64[Tensor, "K"]:
        """Return the indices where the mask is True."""
        return mask.nonzero().squeeze(1)

    def note_nan(self, found: Bool[Tensor, ""]) -> Bool[Tensor, ""]:
        """Raise an error if the proposal returned NaN; the model's results are checked earlier."""
        refuse_nan(found, self.proposal)
        return found

    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int
    ) -> tuple[Extension, Prefixes[State]]:
        """Run the model on each prompt once; see `Reader`."""
        state = self.proposal.start(self.batch)  # may raise an error, so it precedes the pass
        self._rows, log_p = self.lm.prefill(prompts)
        self.check(log_p, len(prompts))
        log_p = check_nan(self.temper(log_p))
        every = torch.arange(len(prompts), device=log_p.device)
        self._cached = _Cached(every, torch.zeros_like(every))
        if self._ahead:
            self._texts = [decode(prompt, self.lm.vocabulary) for prompt in prompts]
        found, after = self._follow(every, state, every, None, log_p)
        each = every.repeat_interleave(num_particles)
        return found.spread(torch.arange(len(each), device=each.device), each, len(each)), after

    def extend(
        self,
        prefixes: Prefixes[State],
        row: Int64[Tensor, "P"],
        token: Int64[Tensor, "P"],
        running: Bool[Tensor, "P"],
    ) -> tuple[Extension, Prefixes[State]]:
        """Extend prefixes by tokens, and compute equal results only once; see `Reader`."""
        some, width = self.indices(running), prefixes.log_p.shape[1] + 1
        # Encode row and token in one number. One is added, because the token may be -1 (no token).
        child, child_of = torch.unique(row[some] * width + token[some] + 1, return_inverse=True)
        parent, chosen = child // width, (child % width - 1).unsqueeze(1)
        state = self.proposal.advance(self.proposal.take(prefixes.state, parent), chosen)
        found, after = self._follow(prefixes.example[parent], state, parent, chosen, prefixes.log_p)
        return found.spread(some, child_of, len(running)), after

    def _follow(
        self,
        example: Int64[Tensor, "M"],
        state: State,
        parent: Int64[Tensor, "M"],
        chosen: Int64[Tensor, "M 1"] | None,
        before: Float[Tensor, "R V"],
    ) -> tuple[Extension, Prefixes[State]]:
        """Append forced tokens to each prefix, and compute all tokens that aren't computed yet.

        Args:
            chosen: the last token of each prefix, which is not computed yet; -1 for no token. None
                at the start, where no token was chosen.
        """
        followed = follow(self.proposal, state, follows=self.forced_runs)
        position, tokens = followed.position, followed.tokens
        if chosen is not None:
            tokens = torch.cat([chosen, tokens], dim=1)
        # An automaton that ends without EOS may accept the empty answer, which is complete at the
        # start. The last token of a complete answer doesn't need to be computed.
        running = position.running
        read = ((tokens >= 0).sum(dim=1) - (~running).long()).clamp(min=0)
        due = self.indices(running | (followed.length > 0))
        self._cached = self._cached.take(parent[due])
        if self._texts:
            runs = zip(parent[due].tolist(), tokens[due].tolist(), strict=True)
            self._texts = [self._texts[i] + decode(run, self.lm.vocabulary) for i, run in runs]
        self._start_removed(followed, due)
        taken = self._cached.length + (tokens[due] >= 0).sum(dim=1)
        states = torch.where(running, position.states, -1)[due]
        found = self._log_probs(
            parent[due], tokens[due], read[due], before, chosen is None,
            (states, self.batch.budgets[example[due]] - taken),
        )  # fmt: skip
        log_p = torch.zeros_like(followed.log_g).index_copy(0, due, found.of_tokens)
        possible = ~log_p.isneginf()
        running = running & possible
        landed = torch.zeros_like(running).index_copy(0, due, found.num_used > 0)
        B, of_due = len(self.batch.budgets), example[due]
        drafted, used = (count_of(of_due, B, n) for n in (found.num_drafted, found.num_used))
        counts = TokenCounts(
            count_of(example, B, read) - used + drafted, count_of(example, B, followed.length),
            drafted, used, count_of(example, B, landed.long()),
        )  # fmt: skip
        extension = Extension(
            finished=position.finished & possible,
            running=running,
            row=torch.where(running, running.cumsum(dim=0) - 1, 0),
            tokens=tokens,
            forced=followed.length,
            forced_log_p=log_p,
            forced_log_g=followed.log_g,
            landed=landed,
            counts=counts,
            failed=torch.zeros((), dtype=torch.bool, device=running.device),
            log_removed=torch.full_like(log_p, -torch.inf).index_copy(0, due, self._log_removed),
        )
        kept = self.indices(running[due])
        self._cached = self._cached.take(kept)
        if self._texts:
            self._texts = [self._texts[i] for i in kept.tolist()]
        state = self.proposal.take(followed.state, due[kept])
        log_p = found.after if len(kept) == len(due) else found.after[kept]
        return extension, Prefixes(example[due[kept]], check_nan(log_p), state)

    def _start_removed(self, followed: Followed[State], due: Int64[Tensor, "D"]) -> None:
        """Find the columns of forced tokens before which the budget removes another token."""
        positions = self._positions = [each.take(due) for each in followed.positions]
        self._forced = followed.tokens[due] >= 0
        self._log_removed = torch.full_like(due, -torch.inf, dtype=torch.float64)
        self._bound = []
        if positions:
            flat = positions[0]._replace(
                states=torch.cat([each.states for each in positions]),
                remaining=torch.cat([each.remaining for each in positions]),
            )
            self._bound = (binds(flat).view(len(positions), -1).T & self._forced).any(0).tolist()

    def _add_removed(
        self,
        column: int,
        rows: Int64[Tensor, "K"],
        log_before: Float64[Tensor, "K"],
        log_p: Float[Tensor, "Q V"],
        at: Int64[Tensor, "K"] | None = None,
    ) -> None:
        """Add what the budget removes before one column of forced tokens, for K prefixes."""
        if column >= len(self._bound) or not self._bound[column]:
            return
        some = self.indices(self._forced[rows, column] & ~log_before.isneginf())
        rows, at = rows[some], some if at is None else at[some]
        position = self._positions[column].take(rows)
        mass = log_before[some] + compute_removed(position, log_p, self.indices, at)
        self._log_removed[rows] = torch.logaddexp(self._log_removed[rows], mass)

    def _log_probs(
        self,
        parent: Int64[Tensor, "D"],
        tokens: Int64[Tensor, "D K"],
        read: Int64[Tensor, "D"],
        before: Float[Tensor, "R V"],
        is_start: bool,
        position: tuple[Int64[Tensor, "D"], Int64[Tensor, "D"]],
    ) -> _LogProbs:
        """Return the log-probabilities of D extended prefixes, in at most one forward pass."""
        none = torch.zeros_like(read)
        self._column = 1 if is_start else 0  # the forced token after the first computed one
        total = none.double()
        if is_start and tokens.shape[1]:
            first = tokens[:, 0].clamp(min=0)
            rows = torch.arange(len(parent), device=parent.device)
            self._add_removed(0, rows, total, before, parent)
            total = _plus(total, before[parent, first], tokens[:, 0] >= 0)
        if not bool((read > 0).any()):
            return _LogProbs(total, before[parent], none, none)
        if len(read) == 1 and self._draft is not None:
            count, drafted = int(read), self._draft.tokens
            if torch.equal(drafted[:count], tokens[0, :count]):
                return self._use_draft(tokens, count, total)
        guesses = tokens.new_zeros(0)
        if self._ahead and len(read) == 1:
            states, remaining = position
            here = start_position(self.batch)._replace(states=states, remaining=remaining)
            guesses = make_draft(self._texts[0], here, self._ahead, self.lm.vocabulary)
            guesses = guesses[: max(1, MOST_READ // self.lm.vocabulary.size)]
        after = None if bool((read > 0).all()) else before[parent]
        total, after = self._read(tokens, read, guesses, total, after)
        self._cached = self._cached._replace(length=self._cached.length + read)
        return _LogProbs(total, after, none + len(guesses), none)

    def _use_draft(
        self, tokens: Int64[Tensor, "1 K"], count: int, total: Float64[Tensor, "1"]
    ) -> _LogProbs:
        """Return the log-probabilities of the only prefix, whose tokens match the draft."""
        assert self._draft is not None
        drafted, log_p = self._draft
        every = torch.zeros_like(tokens[:, 0])
        follows = torch.nn.functional.pad(tokens, (0, 1), value=-1)
        for t in range(count):
            self._add_removed(t, every, total, log_p[t : t + 1])
            token = follows[:, t + 1]
            total = _plus(total, log_p[t, token.clamp(min=0)], token >= 0)
        self._draft = Draft(drafted[count:], log_p[count:]) if count < len(drafted) else None
        self._cached = self._cached._replace(length=self._cached.length + count)
        return _LogProbs(total, log_p[count - 1 : count].clone(), every, every + count)

    def _read(
        self,
        tokens: Int64[Tensor, "D K"],
        read: Int64[Tensor, "D"],
        guesses: Int64[Tensor, "A"],
        total: Float64[Tensor, "D"],
        after: Float[Tensor, "D V"] | None,
    ) -> tuple[Float64[Tensor, "D"], Float[Tensor, "D V"]]:
        """Run the model on the tokens appended to D prefixes, and on a draft after a single prefix.

        Args:
            after: log-probabilities of the next token after each prefix without tokens to process;
                None if there is no such prefix.

        Returns:
            `total` with the forced tokens added; and the log-probabilities of the next token.
        """
        cached, D, A = self._cached, len(read), len(guesses)
        self._rows.reorder(cached.row)
        if self._draft is not None:
            self._rows.truncate(cached.length)
        runs = torch.cat([tokens[:, : int(read)], guesses.unsqueeze(0)], dim=1) if A else tokens
        runs, count = runs[:, : int(read.max()) + A].clamp(min=0), read + A
        follows = torch.nn.functional.pad(tokens, (0, 1 + A), value=-1)
        most = max(1, MOST_READ // (D * self.lm.vocabulary.size))
        pieces = []
        for start in range(0, runs.shape[1], most):
            run = runs[:, start : start + most]
            out = self._rows.extend(run, (count - start).clamp(min=0, max=run.shape[1]))
            self.check(out, *run.shape)
            for t in range(start, start + run.shape[1]):
                here = self.indices(count > t)
                whole = len(here) == D
                log_p = self.temper(out[:, t - start] if whole else out[here, t - start])
                if A and t >= int(read):
                    pieces.append(log_p)
                    continue
                token = follows[here, t + 1]
                self._add_removed(t + self._column, here, total[here], log_p)
                more = log_p.gather(1, token.clamp(min=0).unsqueeze(1)).squeeze(1)
                total[here] = _plus(total[here], more, token >= 0)
                ends = read[here] == t + 1
                if whole and bool(ends.all()):
                    after = log_p.contiguous()  # as the compiled kernels require
                elif bool(ends.any()):
                    if after is None:
                        after = torch.zeros_like(log_p[:1]).repeat(D, 1)
                    after[here[ends]] = log_p[ends]
        self._draft = Draft(guesses, torch.cat(pieces)) if A else None
        self._cached = cached._replace(row=torch.arange(D, device=read.device))
        assert after is not None
        return total, after


def _plus(
    total: Float64[Tensor, "M"], more: Float[Tensor, "M"], counts: Bool[Tensor, "M"]
) -> Float64[Tensor, "M"]:
    """Add log-probabilities to the totals where `counts` is True.

    A total of -inf stays -inf, even if the model returns NaN after an impossible token.
    """
    more = more.double().masked_fill(~counts | total.isneginf(), 0.0)
    return total + check_nan(more.unsqueeze(1)).squeeze(1)
