"""The eager reader, which runs the language model once on each distinct prefix.

The language model has one batch row for each distinct prefix that takes another token. One forward
pass computes the chosen token, the forced tokens after it (`smc._proposals.forced`), and draft
tokens (`smc._forward.read_ahead`). If the next tokens of a prefix match its draft, the prefix
doesn't need another pass. Rows of ended prefixes are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc._forward.prefixes import (
    Extension,
    Prefixes,
    Reader,
    TokenCounts,
    check_nan,
    count_of,
    refuse_nan,
)
from smc._forward.read_ahead import Drafts, ReadAhead
from smc._models.protocol import LanguageModel, Rows
from smc._proposals import AutomatonPosition, Batch, Proposal, State
from smc._proposals.budget_effect import binds, compute_removed
from smc._proposals.forced import Followed, follow
from smc._vocabulary.passes import VocabularyPass

MOST_READ = 1 << 26
"""Maximum number of log-probabilities that one forward pass returns, unless one column has more.

The log-probabilities of drafts that are stored until the next pass have the same limit.
"""


class _Cached(NamedTuple):
    """Contents of the language model's cache for R prefixes.

    Attributes:
        row: the model's batch row of each prefix.
        length: number of answer tokens in each prefix's row, without draft tokens.
        drafts: the draft tokens, which follow the answer tokens in the row.
    """

    row: Int64[Tensor, "R"]
    length: Int64[Tensor, "R"]
    drafts: Drafts

    def take(self, rows: Int64[Tensor, "Q"]) -> _Cached:
        return _Cached(self.row[rows], self.length[rows], self.drafts.take(rows))


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
    """Reader that runs the model once on each distinct prefix; see `smc._forward.prefixes.Reader`.

    Args:
        lm: the language model.
        proposal, batch, vocabulary_pass, temperature: as for `Reader`.
        forced_runs: whether consecutive forced tokens are appended in one step.
        ahead: generator of drafts; None disables reading ahead.
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
        ahead: ReadAhead | None = None,
    ) -> None:
        super().__init__(proposal, batch, vocabulary_pass, temperature=temperature)
        self.lm = lm
        self.forced_runs = forced_runs
        self._ahead = ahead
        self._rows: Rows
        self._cached: _Cached
        self._positions: list[AutomatonPosition] = []  # before each column of forced tokens
        self._forced: Bool[Tensor, "D K"]
        self._log_removed: Float64[Tensor, "D"]
        self._bound: list[bool] = []  # whether the budget removes a token, for each forced column
        self._column = 0
        self._texts: list[bytes] = []  # prompt and answer of each prefix, only if `ahead` is given

    def indices(self, mask: Bool[Tensor, "M"]) -> Int64[Tensor, "K"]:
        """Return the indices where the mask is True."""
        return mask.nonzero().squeeze(1)

    def note_nan(self, found: Bool[Tensor, ""]) -> Bool[Tensor, ""]:
        """Raise an error if the proposal returned NaN; the model's results are checked earlier."""
        refuse_nan(found, repr(self.proposal))
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
        self._cached = _Cached(every, torch.zeros_like(every), Drafts.none(log_p))
        if self._ahead is not None:
            self._texts = [self._ahead.text(prompt) for prompt in prompts]
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

    def need_no_pass(
        self,
        prefixes: Prefixes[State],
        row: Int64[Tensor, "P"],
        token: Int64[Tensor, "P"],
        running: Bool[Tensor, "P"],
    ) -> Bool[Tensor, "B"] | None:
        """Return the examples that don't need a forward pass in this step; see `Reader`."""
        drafts, automata, B = self._cached.drafts, self.batch.automata, len(self.batch.budgets)
        if not drafts.tokens.shape[1]:
            return None
        some = self.indices(running)
        row, token, states = row[some], token[some], prefixes.state.position.states
        after = automata.next(states[row], token)
        over = (after < 0) | automata.is_final[after.clamp(min=0)]
        lands = drafts.tokens[row, 0] == token
        example = prefixes.example[row]
        waits = count_of(example, B, (~lands & ~over).long()) > 0
        runs = count_of(example, B) > 0
        return runs & ~waits if bool((runs & waits).any() & (runs & ~waits).any()) else None

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
            example: example of each prefix.
            state: the proposal's state of each prefix.
            parent: the computed prefix that each prefix extends.
            chosen: the last token of each prefix, which is not computed yet; -1 for no token. None
                at the start, where no token was chosen.
            before: log-probabilities of the next token after each computed prefix.
        """
        followed = follow(self.proposal, state, follows=self.forced_runs)
        position, tokens = followed.state.position, followed.tokens
        if chosen is not None:
            tokens = torch.cat([chosen, tokens], dim=1)
        # An automaton that ends without EOS may accept the empty answer, which is complete at the
        # start. The last token of a complete answer doesn't need to be computed.
        running = position.running
        read = ((tokens >= 0).sum(dim=1) - (~running).long()).clamp(min=0)
        due = self.indices(running | (followed.length > 0))
        self._cached = self._cached.take(parent[due])
        texts = self._extend_texts(parent[due], tokens[due])
        states = torch.where(running, position.states, -1)[due]
        read_due = tokens[due], read[due]
        self._start_removed(followed, due)
        found = self._log_probs(
            parent[due], *read_due, before, chosen is None,
            lambda unread: self._drafts(unread, texts, states, example[due], *read_due),
        )  # fmt: skip
        log_p = torch.zeros_like(followed.log_g).index_copy(0, due, found.of_tokens)
        possible = ~log_p.isneginf()
        running = running & possible
        B = len(self.batch.budgets)
        drafted = count_of(example[due], B, found.num_drafted)
        used = count_of(example[due], B, found.num_used)
        landed = torch.zeros_like(running).index_copy(0, due, found.num_used > 0)
        counts = TokenCounts(
            read=count_of(example, B, read) - used + drafted,
            forced=count_of(example, B, followed.length),
            drafted=drafted,
            used=used,
            landed=count_of(example, B, landed.long()),
        )
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
        if texts:
            self._texts = [texts[i] for i in kept.tolist()]
        state = self.proposal.take(followed.state, due[kept])
        after = found.after if len(kept) == len(due) else found.after[kept]
        return extension, Prefixes(example[due[kept]], check_nan(after), state)

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

    def _extend_texts(
        self, parent: Int64[Tensor, "D"], tokens: Int64[Tensor, "D K"]
    ) -> list[bytes]:
        """Return the texts of the new prefixes; an empty list if reading ahead is disabled."""
        if self._ahead is None:
            return []
        pairs = zip(parent.tolist(), tokens.tolist(), strict=True)
        return [self._texts[i] + self._ahead.text(run) for i, run in pairs]

    def _drafts(
        self,
        unread: Int64[Tensor, "U"],
        texts: Sequence[bytes],
        states: Int64[Tensor, "D"],
        example: Int64[Tensor, "D"],
        tokens: Int64[Tensor, "D K"],
        read: Int64[Tensor, "D"],
    ) -> Int64[Tensor, "U A"]:
        """Return draft tokens for prefixes that are about to be computed; -1 beyond each draft."""
        if self._ahead is None:
            return unread.new_zeros(len(unread), 0)
        written = self._cached.length + (tokens >= 0).sum(dim=1)
        widest = max(1, MOST_READ // (len(read) * self.lm.vocabulary.size))
        return self._ahead.draft(
            [texts[i] for i in unread.tolist()],
            states[unread],
            (self.batch.budgets[example] - written)[unread],
            read[unread],
            len(read),
        )[:, :widest]

    def _log_probs(
        self,
        parent: Int64[Tensor, "D"],
        tokens: Int64[Tensor, "D K"],
        read: Int64[Tensor, "D"],
        before: Float[Tensor, "R V"],
        is_start: bool,
        guess: Callable[[Int64[Tensor, "U"]], Int64[Tensor, "U A"]],
    ) -> _LogProbs:
        """Return the log-probabilities of D extended prefixes.

        If an earlier pass computed a prefix as a draft, the stored values are used. All other
        prefixes are computed in one forward pass.

        Args:
            parent: the earlier prefix that each of the D prefixes extends.
            tokens: the tokens appended to each parent.
            read: number of appended tokens that the model has to process.
            before: log-probabilities of the next token after each parent.
            is_start: whether no token has been chosen yet, so that the first appended token is
                forced, too.
            guess: function that returns draft tokens for the prefixes that need the pass.
        """
        drafts, every = self._cached.drafts, torch.zeros_like(read)
        self._column = (
            1 if is_start else 0
        )  # index of the forced token after the first computed one
        total = every.double()
        if is_start and tokens.shape[1]:
            first = tokens[:, 0].clamp(min=0)
            rows = torch.arange(len(parent), device=parent.device)
            self._add_removed(0, rows, total, before, parent)
            total = _plus(total, before[parent, first], tokens[:, 0] >= 0)
        lands = drafts.cover(tokens, read)
        unread, landed = self.indices((read > 0) & ~lands), self.indices(lands)
        num_used, num_drafted = torch.where(lands, read, 0), every
        whole = len(unread) == len(read) > 0
        after = None if whole else before[parent]
        if len(landed):
            assert after is not None
            total[landed] = self._sum_drafted(
                landed, tokens[landed], read[landed], drafts.take(landed)
            )
            last = drafts.after[landed, read[landed] - 1]
            after[landed] = drafts.log_p[last]
            drafts = drafts.behind(num_used)
        if len(unread):
            guesses = guess(unread)
            total, after, new = self._read(tokens, read, unread, guesses, total, after)
            num_drafted = every.index_copy(0, unread, new.length)
            drafts = drafts.join(unread, new)
        assert after is not None
        self._cached = self._cached._replace(length=self._cached.length + read, drafts=drafts)
        return _LogProbs(total, after, num_drafted, num_used)

    def _sum_drafted(
        self,
        rows: Int64[Tensor, "L"],
        tokens: Int64[Tensor, "L K"],
        read: Int64[Tensor, "L"],
        drafts: Drafts,
    ) -> Float64[Tensor, "L"]:
        """Sum the log-probabilities of appended tokens that an earlier pass computed as drafts.

        The sum excludes the first appended token of each prefix, because it was chosen, not forced.
        """
        total = torch.zeros(len(read), dtype=torch.float64, device=read.device)
        follows = torch.nn.functional.pad(tokens, (0, 1), value=-1)
        for t in range(int(read.max())):
            token, counted = follows[:, t + 1], read > t
            after = torch.where(counted, drafts.after[:, t], 0)
            known = total.masked_fill(~counted, -torch.inf)
            self._add_removed(t, rows, known, drafts.log_p, after)
            more = drafts.log_p[after, token.clamp(min=0)]
            total = _plus(total, more, counted & (token >= 0))
        return total

    def _read(
        self,
        tokens: Int64[Tensor, "D K"],
        read: Int64[Tensor, "D"],
        unread: Int64[Tensor, "U"],
        guesses: Int64[Tensor, "U A"],
        total: Float64[Tensor, "D"],
        after: Float[Tensor, "D V"] | None,
    ) -> tuple[Float64[Tensor, "D"], Float[Tensor, "D V"], Drafts]:
        """Run the model on the tokens appended to some of D prefixes, and on drafts after them.

        Args:
            tokens: the tokens appended to each of the D prefixes.
            read: number of appended tokens that the model has to process, for each prefix.
            unread: indices of the U prefixes to run the model on.
            guesses: draft tokens after these U prefixes; -1 for no token.
            total: sum of the log-probabilities of forced tokens so far, for each of the D prefixes.
            after: log-probabilities of the next token after each of the D prefixes, arbitrary for
                the U prefixes; None if U = D.

        Returns:
            `total` with the forced tokens of the U prefixes added; `after` with the values of the U
            prefixes; and the drafts with their log-probabilities.
        """
        cached, (D, K), A = self._cached, tokens.shape, guesses.shape[1]
        self._rows.reorder(cached.row)
        if bool((cached.drafts.length[unread] > 0).any()):
            kept = cached.length + cached.drafts.length
            self._rows.truncate(kept.index_copy(0, unread, cached.length[unread]))
        ahead = tokens.new_full((D, A), -1).index_copy(0, unread, guesses)
        count = torch.zeros_like(read).index_copy(0, unread, read[unread])
        count = count + (ahead >= 0).sum(dim=1)
        column = torch.arange(int(count.max()), device=read.device).expand(D, -1)
        wide = torch.cat([tokens, ahead], dim=1)
        source = torch.where(column < read.unsqueeze(1), column, K + column - read.unsqueeze(1))
        runs = wide.gather(1, source.clamp(max=K + A - 1)).clamp(min=0)
        follows = torch.nn.functional.pad(tokens, (0, 1 + A), value=-1)
        most = max(1, MOST_READ // (D * self.lm.vocabulary.size))
        draft_at, pieces, size = torch.zeros_like(ahead), [], 0
        for start in range(0, runs.shape[1], most):
            run = runs[:, start : start + most]
            out = self._rows.extend(run, (count - start).clamp(min=0, max=run.shape[1]))
            self.check(out, *run.shape)
            for t in range(start, start + run.shape[1]):
                here = self.indices(count > t)
                whole = len(here) == D
                log_p = self.temper(out[:, t - start] if whole else out[here, t - start])
                token, inside = follows[here, t + 1], read[here] > t
                known = total[here].masked_fill(~inside, -torch.inf)
                self._add_removed(t + self._column, here, known, log_p)
                more = log_p.gather(1, token.clamp(min=0).unsqueeze(1)).squeeze(1)
                total[here] = _plus(total[here], more, inside & (token >= 0))
                ends = read[here] == t + 1
                if whole and bool(ends.all()):
                    after = log_p.contiguous()  # as the compiled kernels require
                elif bool(ends.any()):
                    if after is None:
                        after = torch.zeros_like(log_p[:1]).repeat(D, 1)
                    after[here[ends]] = log_p[ends]
                if bool((~inside).any()):
                    beyond = here[~inside]
                    draft_at[beyond, t - read[beyond]] = size + torch.arange(
                        len(beyond), device=here.device
                    )
                    pieces.append(log_p[~inside])
                    size += len(beyond)
        self._cached = cached._replace(row=torch.arange(D, device=read.device))
        assert after is not None
        return total, after, Drafts(guesses, draft_at[unread], torch.cat([after[:0], *pieces]))


def _plus(
    total: Float64[Tensor, "M"], more: Float[Tensor, "M"], counts: Bool[Tensor, "M"]
) -> Float64[Tensor, "M"]:
    """Add log-probabilities to the totals where `counts` is True.

    A total of -inf stays -inf, even if the model returns NaN after an impossible token.
    """
    more = more.double().masked_fill(~counts | total.isneginf(), 0.0)
    return total + check_nan(more.unsqueeze(1)).squeeze(1)
