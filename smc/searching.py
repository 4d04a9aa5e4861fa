"""Search finds the most probable answers, where sampling draws from all of them.

An answer is a token sequence in C of at most n tokens, EOS included, and what is sought are those
of the greatest p_lm, best first. Since log p of a next token is at most 0, the log-probability of a
prefix bounds that of everything that begins with it. Two searches make use of this one bound:

    "beams"       breadth first: of the continuations of the prefixes at hand, the `beams` of the
                  highest rank are kept. The rank is p_lm of the prefix; with a lookahead, that
                  times the probability that it will be completed in time, as in
                  `smc.BudgetLogitsProcessor`. What cannot be completed within the budget is never
                  kept
    "best_first"  the prefixes of the highest p_lm are read next, wherever they are, and none is
                  given up. What is complete before all others that are left is the most probable
                  answer (Dijkstra's search; A* with the heuristic 0)

**Proof.** Neither follows what cannot beat the worst of the answers wanted, should there be as many
already. Let `log_bound` be the greatest log p of all other prefixes that were not followed. Then an
answer that is not returned is no more probable than the last one, or than `log_bound`; so answers
of at least `log_bound` are certainly in their place. Best-first search proves all of them unless it
is stopped; beams prove what the kept prefixes happen to prove, everything if none was dropped.
(Log-probabilities of real models round otherwise in other batches; ties within that are no proof.)

Cost: one pass of the language model over at most `beams` prefixes a step. Tokens that are the only
ones allowed are read along (`smc.proposals.forced`). Beams take at most as many steps as the budget
has tokens; best-first search may take exponentially many, and then reads a prefix anew from where
it parts from those that were read just before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from gcd.tokens.batch import AutomatonBatch
from gcd.tokens.token_automaton import TokenAutomaton
from smc.checks import check_example, check_lifted, check_model
from smc.deadlines import TimeLimit, time_limit
from smc.models.protocol import LanguageModel, Prompt
from smc.posterior import content
from smc.prefixes import refuse_nan
from smc.proposals import GCD, Batch, Proposal
from smc.proposals.forced import follow
from smc.proposals.lookahead import Lookahead
from smc.proposals.twisted import Twisted, looking_ahead
from smc.revisiting import PrefixReader
from smc.settings import COLDEST, whole

ALGORITHMS = ("beams", "best_first")
READS = 1000
"""Prefixes that best-first search reads unless another number is given."""


class Answer(NamedTuple):
    """A complete answer.

    Attributes:
        ids: its tokens, EOS included.
        answer: their bytes, EOS excluded.
        log_p: log p_lm of the tokens, at the temperature of the search.
    """

    ids: tuple[int, ...]
    answer: bytes
    log_p: float

    @property
    def text(self) -> str:
        """The answer as text; bytes that are not UTF-8 show as U+FFFD."""
        return self.answer.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class SearchResult:
    """The most probable answers that were found.

    Attributes:
        answers: token sequences, the most probable first; two spellings of one text are two
            answers. None where the language model gives no answer any probability.
        proved: so many of them, from the first on, are certainly the most probable answers of all.
        log_bound: an answer that is not among these, and more probable than the last of them, has
            at most this log-probability; -inf if there is none.
        read: prefixes that the language model read, the prompt aside; a run of forced tokens is
            read with the prefix before it.
        tokens: tokens that it read, the prompt aside, those included that it read again.
        stopped: "deadline" where the search ended for lack of time; None otherwise.
    """

    answers: tuple[Answer, ...]
    proved: int
    log_bound: float
    read: int
    tokens: int
    stopped: str | None = None

    @property
    def best(self) -> Answer | None:
        """The most probable answer that was found; None if there is none."""
        return self.answers[0] if self.answers else None


@torch.inference_mode()
def search(
    lm: LanguageModel,
    prompt: Prompt,
    constraint: TokenAutomaton,
    *,
    budget: int,
    beams: int = 4,
    answers: int | None = None,
    algorithm: str = "beams",
    lookahead: Twisted[Any] | Lookahead[Any] | None = None,
    temperature: float | int = 1.0,
    max_reads: int | None = None,
    deadline: float | int | None = None,
) -> SearchResult:
    """Find the answers x to a prompt of the greatest p_lm(x) with x in C and |x| <= budget.

    Args:
        lm: the language model.
        prompt: text, or token ids taken as they are.
        constraint: C, lifted to the model's vocabulary. With `literals="canonical"` most texts are
            spelled in one way only, so that answers differ in text.
        budget: most tokens of an answer, EOS included.
        beams: prefixes that are kept and read at a time.
        answers: most answers wanted; None: as many as beams.
        algorithm: "beams", or "best_first", which goes on until the answers are proved.
        lookahead: for beams, a proposal that looks ahead, such as `smc.PGCD(hmm)`, or a
            `smc.Lookahead`; None for GCD's mask alone.
        temperature: part of p_lm, as in `smc.sample`.
        max_reads: most prefixes that are read, the prompt aside; None for no limit for beams, and
            1 000 for best-first search, which remembers up to 12 n^2 bytes for n of them. What was
            found until then is returned.
        deadline: seconds from now on, after which the answers found until then are returned. If
            there are none yet, the most probable prefix takes a shortest way to its end before, so
            that there is one, in time if the model is fast enough.

    Returns:
        The answers, and how many of them are proved to be the best.

    Raises:
        InfeasibleBudgetError: the budget is shorter than the shortest answer.
        OverlongBudgetError: the budget allows longer texts than the constraint is known for.
        PromptTooLongError: the prompt leaves too little of the model's context.
        ConstraintError: the constraint was lifted to another vocabulary than the model's, or the
            lookahead refuses it.
        ValueError: any other argument that makes no sense; the message says which.
        FloatingPointError: the model's log-probabilities are not numbers.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm is {algorithm!r}; give one of {', '.join(ALGORITHMS)}")
    wanted = _positive("beams", beams) if answers is None else _positive("answers", answers)
    if isinstance(temperature, bool) or not COLDEST <= temperature < math.inf:
        raise ValueError(f"temperature is {temperature!r}; give a number from {COLDEST} on")
    best_first = algorithm == "best_first"
    if best_first and lookahead is not None:
        raise ValueError(
            "best-first search ranks by probability alone, which its proof rests on; leave "
            'lookahead out, or give algorithm="beams"'
        )
    most = READS if best_first else math.inf
    if max_reads is not None:
        most = _positive("max_reads", max_reads)
    limit = time_limit(deadline, None)
    proposal = looking_ahead(lookahead)
    check_model(lm)
    check_lifted(constraint)
    ids = lm.encode(prompt)
    check_example(lm, ids, constraint, whole("budget", budget))
    proposal.check([constraint], [budget])
    automata = AutomatonBatch([constraint], device=lm.device)
    state = proposal.start(Batch(automata, torch.tensor([int(budget)], device=lm.device)))
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
        raise ValueError(f"{what} is {value}; at least 1 is needed")
    return whole(what, value)


class _Prefixes(NamedTuple):
    """R prefixes that were read together.

    Attributes:
        ids: their tokens.
        state: the proposal's.
    """

    ids: list[tuple[int, ...]]
    state: Any


class _Ahead(NamedTuple):
    """What may come after R prefixes: every token that is allowed and completes no answer.

    Attributes:
        log_p: of the prefix with the token; -inf for all other tokens.
        rank: log p, and what the lookahead adds; -inf for all other tokens.
    """

    log_p: Float64[Tensor, "R V"]
    rank: Float64[Tensor, "R V"]


class _Chosen(NamedTuple):
    """A prefix that was read, and the token to go on with; `log_p` is that of both."""

    log_p: float
    prefixes: _Prefixes
    row: int
    token: int


class _Tree:
    """The part of the tree of prefixes that was read, and the best answers in it.

    Attributes:
        answers: the best so far, at most as many as are wanted.
        read: prefixes read beyond the prompt.
        stopped: why the search ended early; None if it didn't.
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
        """What a prefix must exceed to be of any use."""
        return self.answers[-1].log_p if len(self.answers) == self._wanted else -math.inf

    def is_late(self, prefixes: _Prefixes) -> bool:
        """Tell whether time is over, or what is left is needed for a way out of these prefixes."""
        if self._limit is None:
            return False
        way_out = 0
        if not self.answers:
            walk = prefixes.state.walk
            way_out = int(walk.automata.steps_to_accept[walk.states].max())
        self.stopped = self._limit.reason(way_out, 1.0)
        return self.stopped is not None

    def close(self, prefixes: _Prefixes, ahead: _Ahead) -> None:
        """Take a shortest way to an answer, unless there is one already."""
        while prefixes.ids and not self.answers:
            walk = prefixes.state.walk
            needed = walk.automata.steps_to_accept[walk.states].long()
            shorter = walk.mask.mask(walk.states, torch.minimum(walk.remaining, needed))
            log_p = ahead.log_p.masked_fill(~shorter, -torch.inf)
            value, place = log_p.flatten().max(dim=0)
            if value.isneginf():
                return
            row, token = divmod(int(place), log_p.shape[1])
            prefixes, ahead = self.grow([_Chosen(float(value), prefixes, row, token)])

    def root(self) -> tuple[_Prefixes, _Ahead]:
        """Go from the prompt to the first choice."""
        return self._grown(self._start, [()], [0.0])

    def grow(self, chosen: Sequence[_Chosen]) -> tuple[_Prefixes, _Ahead]:
        """Read these prefixes, each with its token and what is forced behind it."""
        self.read += len(chosen)
        parents = [each.prefixes.ids[each.row] for each in chosen]
        ids = [(*parent, each.token) for parent, each in zip(parents, chosen, strict=True)]
        first = chosen[0].prefixes
        if all(each.prefixes is first for each in chosen):
            state, rows = first.state, [each.row for each in chosen]
            run = [line[-1:] for line in ids]
        else:  # of several batches, whose states cannot be put together: from the beginning
            state, rows = self._start, [0] * len(ids)
            run = [(*line, *[-1] * (max(map(len, ids)) - len(line))) for line in ids]
        device = self._reader.device
        state = self._proposal.take(state, torch.tensor(rows, device=device))
        state = self._proposal.advance(state, torch.tensor(run, device=device))
        return self._grown(state, ids, [each.log_p for each in chosen])

    def _grown(
        self, state: Any, ids: list[tuple[int, ...]], log_p: list[float]
    ) -> tuple[_Prefixes, _Ahead]:
        """Follow what is forced, read, and take out what is complete."""
        followed = follow(self._proposal, state)
        known = [len(line) for line in ids]
        runs = followed.tokens.tolist()
        ids = [(*line, *(t for t in run if t >= 0)) for line, run in zip(ids, runs, strict=True)]
        finished = followed.state.walk.finished.tolist()
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
        """Rank what may come next; keep what completes an answer with the others at once."""
        walk = prefixes.state.walk
        log_p = total.unsqueeze(1) + next_log_p
        log_p = log_p.masked_fill(~walk.mask.mask(walk.states, walk.remaining), -torch.inf)
        rank = log_p
        if not isinstance(self._proposal, GCD):
            guide = self._proposal.guide(prefixes.state, next_log_p)
            tilted = total.unsqueeze(1) + guide.tilted(next_log_p)
            rank = tilted.masked_fill(log_p.isneginf(), -torch.inf)
            refuse_nan(rank.isnan().any(), repr(self._proposal))
        ends: Bool[Tensor, "R V"] = walk.successors().of_tokens().ends
        complete = log_p.masked_fill(~ends, -torch.inf).flatten()
        best = complete.topk(min(self._wanted, len(complete)))
        for value, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            row, token = divmod(place, log_p.shape[1])
            self._keep((*prefixes.ids[row], token), value)
        return _Ahead(log_p.masked_fill(ends, -torch.inf), rank.masked_fill(ends, -torch.inf))

    def _keep(self, ids: tuple[int, ...], log_p: float) -> None:
        """Put an answer in its place, should it be one of the best."""
        if log_p > self.threshold:
            written = self._vocabulary.decode(content(ids, set(self._vocabulary.eos_ids)))
            self.answers.append(Answer(ids, written, log_p))
            self.answers.sort(key=lambda answer: (-answer.log_p, answer.ids))
            del self.answers[self._wanted :]


def _in_beams(tree: _Tree, beams: int, most: float | int) -> float:
    """Search in beams; return the greatest log p of the prefixes that were dropped."""
    log_bound = -math.inf
    prefixes, ahead = tree.root()
    while prefixes.ids:
        if tree.is_late(prefixes):
            tree.close(prefixes, ahead)
            return max(log_bound, float(ahead.log_p.max()))
        rank = ahead.rank.masked_fill(ahead.log_p <= tree.threshold, -torch.inf).flatten()
        log_p, width = ahead.log_p.flatten(), ahead.log_p.shape[1]
        best = rank.topk(int(min(beams, most - tree.read, len(rank))))
        places = best.indices[~best.values.isneginf()]
        values = log_p[places].tolist()
        log_bound = max(log_bound, float(log_p.index_fill(0, places, -torch.inf).amax()))
        if not len(places):
            break
        prefixes, ahead = tree.grow(
            [
                _Chosen(value, prefixes, *divmod(place, width))
                for place, value in zip(places.tolist(), values, strict=True)
            ]
        )
    return log_bound


def _best_first(tree: _Tree, beams: int, most: float | int) -> float:
    """Search the most probable prefixes first; return log p of the best that is left."""
    # (minus log p, number, prefixes, row, tokens and their log p, best first, the next of these)
    heap: list[tuple[float, int, _Prefixes, int, Tensor, Tensor, int]] = []
    numbers = count()

    def put(
        at: int, number: int, prefixes: _Prefixes, row: int, tokens: Tensor, log_p: Tensor
    ) -> None:
        if at < len(log_p) and float(log_p[at]) > tree.threshold:
            heappush(heap, (-float(log_p[at]), number, prefixes, row, tokens, log_p, at))

    def put_all(prefixes: _Prefixes, ahead: _Ahead) -> None:
        # No more than are left to read are ever taken of one prefix; one more bounds the others.
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
