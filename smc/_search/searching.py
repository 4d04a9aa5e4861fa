"""Search for the most probable answers, whereas sampling draws from all of them.

An answer is a token sequence in C of at most n tokens, including EOS. The search returns the
answers with the highest p_lm, the best first. A next token's log p is at most 0, so the
log-probability of a prefix is an upper bound for all its continuations. Two searches use this
bound:

    "beams"       breadth first: in each step, the `beams` continuations with the highest rank are
                  kept. The rank is p_lm of the prefix. With a lookahead, it is multiplied by the
                  probability of completion in time, as in `smc.BudgetLogitsProcessor`. Prefixes
                  that can't be completed within the budget are never kept
    "best_first"  the prefixes with the highest p_lm are computed next, at any depth of the tree,
                  and none is dropped. The first answer in this order is the most probable answer
                  (Dijkstra's search; A* with the heuristic 0)

**Proof.** Once there are as many answers as requested, both searches ignore prefixes that can't
improve on the worst of them. Let `log_bound` be the highest log p of all other prefixes that
weren't continued. Every answer that isn't returned has at most the probability of the last returned
answer, or a log p of at most `log_bound`. Therefore the rank of a returned answer is certain if its
log p is at least `log_bound`. Best-first search proves all answers unless it is stopped. Beam
search proves the answers above all dropped prefixes, and all answers if no prefix was dropped.
(Log-probabilities of real models are rounded differently in other batches. Ties within rounding
aren't proved.)

Cost: one forward pass over at most `beams` prefixes per step. Forced tokens are computed in the
same pass (`smc._proposals.forced`). Beam search takes at most as many steps as the budget has
tokens. Best-first search may take exponentially many, and computes a prefix from the point where it
diverges from the prefixes computed last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from gcd import AutomatonBatch, TokenAutomaton
from smc._forward.prefixes import refuse_nan
from smc._forward.revisiting import PrefixReader
from smc._inference.deadlines import TimeLimit, time_limit
from smc._inference.settings import COLDEST, whole
from smc._models.checks import check_example, check_lifted, check_model
from smc._models.protocol import LanguageModel, Messages, Prompt, encode_prompt
from smc._proposals import GCD, Batch, Proposal
from smc._proposals.forced import follow
from smc._proposals.lookahead import Lookahead
from smc._proposals.twisted import Twisted, looking_ahead
from smc._removed import accept_budget
from smc._results.posterior import content
from smc._vocabulary.mixture import defend

ALGORITHMS = ("beams", "best_first")
READS = 1000
"""Default limit on the number of prefixes that best-first search computes."""


class Answer(NamedTuple):
    """A complete answer.

    Attributes:
        ids: the tokens, including EOS.
        answer: the bytes of the tokens, without EOS.
        log_p: log p_lm of the tokens, at the temperature of the search.
    """

    ids: tuple[int, ...]
    answer: bytes
    log_p: float

    @property
    def text(self) -> str:
        """The answer as text; bytes that aren't valid UTF-8 are replaced by U+FFFD."""
        return self.answer.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class SearchResult:
    """The most probable answers that were found.

    Attributes:
        answers: token sequences, the most probable first. Two tokenizations of one text are two
            answers. Empty if the language model gives every answer probability zero.
        proved: number of answers at the beginning of `answers` that are proved to be the most
            probable.
        log_bound: upper bound on the log-probability of any answer that wasn't found but is more
            probable than the last one found; -inf if there is no such answer.
        read: number of prefixes that the language model computed after the prompt. A prefix and the
            forced tokens after it count once.
        tokens: number of tokens computed after the prompt, including repeated ones.
        stopped: "deadline" if the search ended early because of the deadline; None otherwise.
    """

    answers: tuple[Answer, ...]
    proved: int
    log_bound: float
    read: int
    tokens: int
    stopped: str | None = None

    @property
    def best(self) -> Answer | None:
        """The most probable answer that was found; None if none was found."""
        return self.answers[0] if self.answers else None


@accept_budget
@torch.inference_mode()
def search(
    lm: LanguageModel,
    prompt: Prompt | Messages,
    constraint: TokenAutomaton,
    *,
    max_tokens: int,
    beams: int = 4,
    answers: int | None = None,
    algorithm: str = "beams",
    lookahead: Twisted[Any] | Lookahead[Any] | None = None,
    temperature: float | int = 1.0,
    max_reads: int | None = None,
    deadline: float | int | None = None,
) -> SearchResult:
    """Find the answers x with the highest p_lm(x), among those in C with |x| <= max_tokens.

    Args:
        lm: the language model.
        prompt: text, token ids (used as given), or messages for the chat template.
        constraint: the constraint C, lifted to the model's vocabulary. With `literals="canonical"`
            most texts have a single tokenization, so that the answers are different texts.
        max_tokens: maximum number of tokens of an answer, including EOS.
        beams: number of prefixes that are kept and computed at a time.
        answers: maximum number of answers; by default the number of beams.
        algorithm: "beams", or "best_first", which continues until the answers are proved.
        lookahead: for "beams", a proposal with a lookahead, such as `smc.PGCD(hmm)`, or a
            `smc.Lookahead`. None uses only GCD's mask.
        temperature: sampling temperature, which is part of p_lm, as in `smc.sample`.
        max_reads: maximum number of prefixes computed after the prompt. When it is reached, the
            answers found so far are returned. By default there is no limit for beams, and 1,000 for
            best-first search, whose memory is up to 12 n^2 bytes for n prefixes.
        deadline: seconds from now after which the answers found so far are returned. If there are
            none, the most probable prefix switches to a shortest completion before the deadline. So
            there is an answer in time if the model is fast enough.

    Returns:
        The answers, and the number of answers that are proved to be the best.

    Raises:
        InfeasibleBudgetError: the budget is shorter than the shortest answer.
        OverlongBudgetError: the budget exceeds the lengths that the constraint covers.
        PromptTooLongError: the prompt and the budget together exceed the model's context.
        ConstraintError: the constraint was lifted to another vocabulary than the model's, or the
            lookahead doesn't support it.
        ValueError: another argument is invalid; the message names it.
        FloatingPointError: the model's log-probabilities are NaN or +inf.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"expected algorithm to be one of {', '.join(ALGORITHMS)}, got {algorithm!r}"
        )
    wanted = _positive("beams", beams) if answers is None else _positive("answers", answers)
    if isinstance(temperature, bool) or not COLDEST <= temperature < math.inf:
        raise ValueError(f"expected temperature to be at least {COLDEST}, got {temperature!r}")
    best_first = algorithm == "best_first"
    if best_first and lookahead is not None:
        raise ValueError(
            'expected no lookahead with algorithm="best_first", which ranks prefixes by '
            'probability, got one; omit lookahead, or set algorithm="beams"'
        )
    most = READS if best_first else math.inf
    if max_reads is not None:
        most = _positive("max_reads", max_reads)
    limit = time_limit(deadline, None)
    proposal = looking_ahead(lookahead)
    check_model(lm)
    check_lifted(constraint)
    ids = encode_prompt(lm, prompt)
    check_example(lm, ids, constraint, whole("max_tokens", max_tokens))
    proposal.check([constraint], [max_tokens])
    automata = AutomatonBatch([constraint], device=lm.device)
    state = proposal.start(Batch(automata, torch.tensor([int(max_tokens)], device=lm.device)))
    reader = PrefixReader(lm, ids, float(temperature))
    tree = _Tree(proposal, constraint, state, reader, wanted, limit)
    run = _best_first if best_first else _in_beams
    log_bound = run(tree, _positive("beams", beams), most)
    return SearchResult(
        answers=tuple(tree.answers),
        proved=sum(answer.log_p >= log_bound for answer in tree.answers),
        log_bound=log_bound,
        read=tree.read,
        tokens=reader.tokens,
        stopped=tree.stopped,
    )


def _positive(what: str, value: object) -> int:
    if whole(what, value) < 1:
        raise ValueError(f"expected {what} to be at least 1, got {value}")
    return whole(what, value)


class _Prefixes(NamedTuple):
    """R prefixes that were computed together.

    Attributes:
        ids: tokens of each prefix.
        state: the proposal's state.
    """

    ids: list[tuple[int, ...]]
    state: Any


class _Ahead(NamedTuple):
    """The continuations of R prefixes by an allowed token that doesn't complete an answer.

    Attributes:
        log_p: log p of the prefix with the token; -inf for all other tokens.
        rank: log p plus the lookahead's contribution; -inf for all other tokens.
    """

    log_p: Float64[Tensor, "R V"]
    rank: Float64[Tensor, "R V"]


class _Chosen(NamedTuple):
    """A computed prefix and its next token.

    Attributes:
        log_p: log-probability of the prefix and the token together.
        prefixes, row: the prefixes computed together, and the index of this prefix among them.
        token: the token.
    """

    log_p: float
    prefixes: _Prefixes
    row: int
    token: int


class _Tree:
    """The computed part of the tree of prefixes, and the best answers in it.

    Attributes:
        answers: the best answers so far, at most as many as requested.
        read: number of prefixes computed after the prompt.
        stopped: the reason for ending early; None if the search didn't end early.
    """

    def __init__(
        self,
        proposal: Proposal[Any],
        constraint: TokenAutomaton,
        start: Any,
        reader: PrefixReader,
        wanted: int,
        limit: TimeLimit | None,
    ) -> None:
        self.answers: list[Answer] = []
        self.read = 0
        self.stopped: str | None = None
        self._limit = limit
        self._proposal = proposal
        self._vocabulary = constraint.vocabulary
        self._start = start
        self._reader = reader
        self._wanted = wanted

    @property
    def threshold(self) -> float:
        """Log p that a prefix or an answer must exceed to change the result."""
        return self.answers[-1].log_p if len(self.answers) == self._wanted else -math.inf

    def is_late(self, prefixes: _Prefixes) -> bool:
        """Return whether the search must stop, to meet the deadline with at least one answer."""
        if self._limit is None:
            return False
        tokens_to_finish = 0
        if not self.answers:
            position = prefixes.state.position
            tokens_to_finish = int(position.automata.steps_to_accept[position.states].max())
        self.stopped = self._limit.reason(tokens_to_finish, 1.0)
        return self.stopped is not None

    def close(self, prefixes: _Prefixes, ahead: _Ahead) -> None:
        """Complete a prefix by a shortest completion, unless there already is an answer."""
        while prefixes.ids and not self.answers:
            position = prefixes.state.position
            needed = position.automata.steps_to_accept[position.states].long()
            shorter = position.mask.mask(position.states, torch.minimum(position.remaining, needed))
            log_p = ahead.log_p.masked_fill(~shorter, -torch.inf)
            value, index = log_p.flatten().max(dim=0)
            if value.isneginf():
                return
            row, token = divmod(int(index), log_p.shape[1])
            prefixes, ahead = self.grow([_Chosen(float(value), prefixes, row, token)])

    def root(self) -> tuple[_Prefixes, _Ahead]:
        """Extend the empty prefix by the forced tokens that precede the first choice."""
        return self._follow(self._start, [()], [0.0])

    def grow(self, chosen: Sequence[_Chosen]) -> tuple[_Prefixes, _Ahead]:
        """Extend each chosen prefix by its token and the forced tokens after it, in one pass."""
        self.read += len(chosen)
        parents = [each.prefixes.ids[each.row] for each in chosen]
        ids = [(*parent, each.token) for parent, each in zip(parents, chosen, strict=True)]
        first = chosen[0].prefixes
        if all(each.prefixes is first for each in chosen):
            state, rows = first.state, [each.row for each in chosen]
            run = [line[-1:] for line in ids]
        else:  # states of several batches can't be combined, so start from the empty prefix
            state, rows = self._start, [0] * len(ids)
            run = [(*line, *[-1] * (max(map(len, ids)) - len(line))) for line in ids]
        device = self._reader.device
        state = self._proposal.take(state, torch.tensor(rows, device=device))
        state = self._proposal.advance(state, torch.tensor(run, device=device))
        return self._follow(state, ids, [each.log_p for each in chosen])

    def _follow(
        self, state: Any, ids: list[tuple[int, ...]], log_p: list[float]
    ) -> tuple[_Prefixes, _Ahead]:
        """Append forced tokens, compute the prefixes, and store complete answers."""
        followed = follow(self._proposal, state)
        known = [len(line) for line in ids]
        runs = followed.tokens.tolist()
        ids = [(*line, *(t for t in run if t >= 0)) for line, run in zip(ids, runs, strict=True)]
        finished = followed.state.position.finished.tolist()
        gained, next_log_p = self._reader.read(ids, known, finished)
        total = next_log_p.new_tensor(log_p, dtype=torch.float64) + gained
        for line, value, over in zip(ids, total.tolist(), finished, strict=True):
            if over:
                self._keep(line, value)
        useful = [
            row
            for row, value in enumerate(total.tolist())
            if not finished[row] and value > self.threshold
        ]
        rows = torch.tensor(useful, dtype=torch.int64, device=total.device)
        prefixes = _Prefixes(
            [ids[row] for row in useful], self._proposal.take(followed.state, rows)
        )
        none = total.new_zeros(0, next_log_p.shape[1])
        ahead = (
            self._ahead(prefixes, total[rows], next_log_p[rows]) if useful else _Ahead(none, none)
        )
        return prefixes, ahead

    def _ahead(
        self, prefixes: _Prefixes, total: Float64[Tensor, "R"], next_log_p: Float[Tensor, "R V"]
    ) -> _Ahead:
        """Rank the continuations; store those that complete an answer."""
        position = prefixes.state.position
        log_p = total.unsqueeze(1) + next_log_p
        log_p = log_p.masked_fill(
            ~position.mask.mask(position.states, position.remaining), -torch.inf
        )
        rank = log_p
        if not isinstance(self._proposal, GCD):
            factors = defend(self._proposal.guide(prefixes.state, next_log_p), next_log_p)
            tilted = total.unsqueeze(1) + factors.apply(next_log_p)
            rank = tilted.masked_fill(log_p.isneginf(), -torch.inf)
            refuse_nan(rank.isnan().any(), repr(self._proposal))
        ends = position.ends(by_token=True)
        complete = log_p.masked_fill(~ends, -torch.inf).flatten()
        best = complete.topk(min(self._wanted, len(complete)))
        for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            row, token = divmod(index, log_p.shape[1])
            self._keep((*prefixes.ids[row], token), value)
        return _Ahead(log_p.masked_fill(ends, -torch.inf), rank.masked_fill(ends, -torch.inf))

    def _keep(self, ids: tuple[int, ...], log_p: float) -> None:
        """Store an answer if it is one of the best."""
        if log_p > self.threshold:
            written = self._vocabulary.decode(content(ids, set(self._vocabulary.eos_ids)))
            self.answers.append(Answer(ids, written, log_p))
            self.answers.sort(key=lambda answer: (-answer.log_p, answer.ids))
            del self.answers[self._wanted :]


def _in_beams(tree: _Tree, beams: int, most: float | int) -> float:
    """Run beam search; return the highest log p of the dropped prefixes."""
    log_bound = -math.inf
    prefixes, ahead = tree.root()
    while prefixes.ids:
        if tree.is_late(prefixes):
            tree.close(prefixes, ahead)
            return max(log_bound, float(ahead.log_p.max()))
        rank = ahead.rank.masked_fill(ahead.log_p <= tree.threshold, -torch.inf).flatten()
        log_p, width = ahead.log_p.flatten(), ahead.log_p.shape[1]
        best = rank.topk(int(min(beams, most - tree.read, len(rank))))
        kept = best.indices[~best.values.isneginf()]
        values = log_p[kept].tolist()
        log_bound = max(log_bound, float(log_p.index_fill(0, kept, -torch.inf).amax()))
        if not len(kept):
            break
        prefixes, ahead = tree.grow(
            [
                _Chosen(value, prefixes, *divmod(index, width))
                for index, value in zip(kept.tolist(), values, strict=True)
            ]
        )
    return log_bound


def _best_first(tree: _Tree, beams: int, most: float | int) -> float:
    """Run best-first search; return log p of the best remaining prefix."""
    # (-log p, number, prefixes, row, tokens and their log p in descending order, next index)
    heap: list[tuple[float, int, _Prefixes, int, Tensor, Tensor, int]] = []
    numbers = count()

    def put(
        at: int, number: int, prefixes: _Prefixes, row: int, tokens: Tensor, log_p: Tensor
    ) -> None:
        if at < len(log_p) and float(log_p[at]) > tree.threshold:
            heappush(heap, (-float(log_p[at]), number, prefixes, row, tokens, log_p, at))

    def put_all(prefixes: _Prefixes, ahead: _Ahead) -> None:
        # No more tokens of a prefix can be chosen than the limit allows. One more token is stored,
        # whose log p is an upper bound for all others.
        best = ahead.log_p.topk(int(min(ahead.log_p.shape[1], most - tree.read + 1)), dim=1)
        tokens, log_p = best.indices.int().cpu(), best.values.cpu()
        for row in range(len(prefixes.ids)):
            put(0, next(numbers), prefixes, row, tokens[row], log_p[row])

    put_all(*tree.root())
    while heap and -heap[0][0] > tree.threshold and tree.read < most:
        best, _, prefixes, row, tokens, log_p, at = heap[0]
        if tree.is_late(prefixes):
            if not tree.answers:
                tree.close(*tree.grow([_Chosen(-best, prefixes, row, int(tokens[at]))]))
            return -best
        chosen: list[_Chosen] = []
        while heap and -heap[0][0] > tree.threshold and len(chosen) < min(beams, most - tree.read):
            _, number, prefixes, row, tokens, log_p, at = heappop(heap)
            chosen.append(_Chosen(float(log_p[at]), prefixes, row, int(tokens[at])))
            put(at + 1, number, prefixes, row, tokens, log_p)
        put_all(*tree.grow(chosen))
    return -heap[0][0] if heap else -math.inf
