"""Steps in static shapes, which a CUDA graph can capture.

Shapes never depend on data, and there is no host synchronization. Therefore a step and the model's
forward pass can be captured as one graph on a CUDA device (`StaticRun`). There is one row per
particle, from the first step to the last. Ended particles keep a row, which is masked. A prefix is
computed once for each particle that has it. A forced token takes a step like any other token. Both
algorithms are the same as in eager execution; only the reader (`StaticReader`), the loop and the
store of complete answers (`AnswerTables`) differ.

**Few rows are copied.** If several particles continue from the same row, the first particle keeps
it. Each of the others gets a row of its example that no running particle continues from. So a row
that a particle continues from is never overwritten. Therefore rows can be copied in place, and
unchanged rows aren't copied.

**Graphs.** A captured graph reads and writes the same memory at every replay. Therefore the output
of a step is copied to the memory of its input. Parts that a step doesn't change are the same
tensor, and aren't copied. After each step, a flag that tells whether any prefix is still running is
copied to the host, and checked some steps later. So the host doesn't wait for the device. Up to
`AHEAD` superfluous steps at the end have no effect.

**Answers.** Each of the N prefixes that the discrete filter keeps has a slot. For each step and
slot, tables have the weight of every token that may end a text, and the slot of the prefix that was
extended. Texts are read backward from the tables after the last step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gcd import AutomatonBatch
from smc._forward.reader import Extension, Prefixes, Reader, TokenCounts, has_nan, refuse_nan
from smc._inference.algorithms import Discrete
from smc._inference.answers import MOST_ANSWERS, Ending, outcome_of
from smc._inference.closing import Closing, tokens_to_finish
from smc._inference.deadlines import TimeLimit
from smc._inference.execution import Job, Stepper, steps_of
from smc._inference.particles import NOT_CHOSEN, Outcome, Particles, Population, StepRecord
from smc._inference.selection import FinishedScores, Selection
from smc._models.static_cache import Forward, NotStaticError
from smc._proposals import Batch, Proposal, State
from smc._vocabulary.draw import Draw
from smc._vocabulary.passes import VocabularyPass, pass_of

AHEAD = 4
"""Maximum number of steps on a CUDA device whose flag hasn't arrived on the host yet."""
WARM_UP = 2
"""Maximum number of warm-up steps before capture, which are undone.

An additional step determines which tensors a step changes.
"""


@dataclass(frozen=True, eq=False)
class StaticPrefixes(Prefixes[State]):
    """The prefixes of P particles, with one row each; see `Prefixes`.

    Attributes:
        held: the model's row of each prefix; all are different.
        appended: number of tokens appended to every row of the model.
    """

    held: Int64[Tensor, "P"]
    appended: Int64[Tensor, ""]


class StaticReader(Reader[State]):
    """A reader with a row for each of P = B·N particles; see `Reader`.

    Args:
        forward: the language model in static shapes.
        proposal, batch, vocabulary_pass, temperature: as for `Reader`.
        num_particles: N, per example.
        spare: number of cache columns in addition to the budget, for the warm-up steps before graph
            capture.

    Raises:
        NotStaticError: the proposal synchronizes with the host.
    """

    is_static = True

    def __init__(
        self,
        forward: Forward,
        proposal: Proposal[State],
        batch: Batch,
        vocabulary_pass: VocabularyPass,
        *,
        num_particles: int,
        temperature: float,
        spare: int = 1,
    ) -> None:
        proposal = proposal.without_host_sync()
        super().__init__(proposal, batch, vocabulary_pass, temperature=temperature)
        refuse_waits(proposal, batch)
        self.forward = forward
        self.num_particles = num_particles
        self.spare = spare

    def indices(self, mask: Bool[Tensor, "M"]) -> Int64[Tensor, "M"]:
        """Return all indices, because the host doesn't know where the mask is True."""
        return torch.arange(len(mask), device=mask.device)

    def note_nan(self, found: Bool[Tensor, ""]) -> Bool[Tensor, ""]:
        """Return the flag `found`, which is checked after the run."""
        return found

    def rewind(self) -> None:
        """Remove all generated tokens from the language model's cache."""
        self.forward.rewind()

    def start(
        self, prompts: Sequence[Sequence[int]], num_particles: int
    ) -> tuple[Extension, Prefixes[State]]:
        """Run the model on each prompt once, and create a row for each particle; see `Reader`."""
        state = self.proposal.start(self.batch)
        budget = int(self.batch.budgets.max())
        log_p = self.forward.start(prompts, num_particles, budget + self.spare)
        rows = len(prompts) * num_particles
        self.check(log_p, rows)
        each = torch.arange(len(log_p), device=log_p.device)
        state = self.proposal.take(state, each // num_particles)
        runs = torch.ones_like(each, dtype=torch.bool)
        found = self._extension(state, runs, each.new_zeros(len(each), 0), is_start=True)
        zero = torch.zeros((), dtype=torch.int64, device=each.device)
        return self._read(log_p, found, state, each, zero)

    def extend(
        self,
        prefixes: Prefixes[State],
        row: Int64[Tensor, "P"],
        token: Int64[Tensor, "P"],
        running: Bool[Tensor, "P"],
    ) -> tuple[Extension, Prefixes[State]]:
        """Extend the row of each running particle p by `token[p]`; see `Reader`."""
        assert isinstance(prefixes, StaticPrefixes)
        token = torch.where(running, token, -1).unsqueeze(1)
        state = self.proposal.advance(self.proposal.take(prefixes.state, row), token)
        moved = move(prefixes.held[row], running, self.num_particles)
        read = torch.empty_like(row).scatter(0, moved.row, token.squeeze(1).clamp(min=0))
        log_p = self.forward.step(read, moved.source, prefixes.appended)
        found = self._extension(state, running, token, is_start=False)
        return self._read(log_p, found, state, moved.row, prefixes.appended + 1)

    def _extension(
        self, state: State, ran: Bool[Tensor, "P"], tokens: Int64[Tensor, "P K"], *, is_start: bool
    ) -> Extension:
        """Return the result of extending each particle; particle p has row p."""
        running = ran & state.position.running
        none = torch.zeros_like(running, dtype=torch.int64)
        count = running.view(-1, self.num_particles).sum(dim=1)
        zero = torch.zeros_like(count)
        return Extension(
            finished=ran & state.position.finished,
            running=running,
            row=torch.arange(len(running), device=running.device),
            tokens=tokens,
            forced=none,
            forced_log_p=none.double(),
            forced_log_g=none.double(),
            landed=none.bool(),
            counts=TokenCounts(zero if is_start else count, *[zero] * 4),
            failed=torch.zeros((), dtype=torch.bool, device=running.device),
            log_removed=torch.full_like(none, -torch.inf, dtype=torch.float64),
        )

    def _read(
        self,
        log_p: Float[Tensor, "P V"],
        found: Extension,
        state: State,
        held: Int64[Tensor, "P"],
        appended: Int64[Tensor, ""],
    ) -> tuple[Extension, StaticPrefixes[State]]:
        """Return the new prefixes, with zeros as the log-probabilities of ended prefixes."""
        self.check(log_p, len(held))
        log_p = self.temper(log_p)[held]  # a copy
        wrong = has_nan(log_p)
        failed = (wrong & found.running).any()
        # The model may return NaN after an ended prefix. A failed run continues with finite
        # numbers until the flag is checked.
        log_p.masked_fill_((wrong | ~found.running).unsqueeze(1), 0.0)
        example = found.row // self.num_particles
        prefixes = StaticPrefixes(example, log_p, state, held, appended)
        return found._replace(failed=failed), prefixes


class Moved(NamedTuple):
    """Assignment of the particles to rows of the language model, and the copies that it requires.

    Attributes:
        row: the new row of each particle; no row belongs to two particles.
        source: for each row, the row that is copied into it; the row itself if it doesn't change.
    """

    row: Int64[Tensor, "P"]
    source: Int64[Tensor, "P"]


def move(row: Int64[Tensor, "P"], running: Bool[Tensor, "P"], N: int) -> Moved:
    """Assign a row of the language model to each particle, with O(P N) bits of memory."""
    P = len(row)
    groups, runs = row.view(-1, N), running.view(-1, N)
    number = torch.arange(N, device=row.device)
    earlier = (groups.unsqueeze(2) == groups.unsqueeze(1)) & (number < number.unsqueeze(1))
    again = (earlier & runs.unsqueeze(1)).any(dim=2)
    stays = runs & ~again
    # The k-th particle of an example that needs a row takes the k-th free row.
    index = (~stays).cumsum(dim=1) - 1
    used = torch.zeros(P, dtype=torch.int64, device=row.device).index_add(0, row, running.long())
    free = torch.where(used.view(-1, N) > 0, N, number).sort(dim=1).values.clamp(max=N - 1)
    first = N * torch.arange(P // N, device=row.device).unsqueeze(1)
    new = torch.where(stays, groups, first + free.gather(1, index.clamp(min=0))).flatten()
    return Moved(new, torch.empty_like(row).scatter(0, new, torch.where(running, row, new)))


WAITING = frozenset(
    {
        "_local_scalar_dense",
        "_unique",
        "_unique2",
        "bincount",
        "equal",
        "is_nonzero",
        "item",
        "lift_fresh",  # copies host numbers into a tensor
        "masked_select",
        "nonzero",
        "repeat_interleave",
        "unique_consecutive",
        "unique_dim",
    }
)


class Waits(TorchDispatchMode):
    """A dispatch mode that records operations with a host synchronization.

    The host needs the result of such an operation, or the shape of its result. On a CUDA device the
    operation waits for all pending work, and can't be captured in a graph.

    Attributes:
        found: names of these operations.
        count: number of all operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation; record it if its name or a boolean index implies a synchronization."""
        name = func._schema.name.removeprefix("aten::")
        self.count += 1
        by_mask = name.startswith(("index", "_index_put")) and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for part in args
            if isinstance(part, list | tuple)
            for index in part
        )
        if name in WAITING or by_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def refuse_waits(proposal: Proposal[Any], batch: Batch) -> None:
    """Raise an error if a method of a proposal synchronizes with the host.

    The methods are called for the empty prefixes of a batch.
    """
    state = proposal.start(batch)
    B, V = len(batch.budgets), batch.automata.vocabulary.size
    log_p = torch.zeros(B, V, dtype=torch.float32, device=batch.budgets.device).log_softmax(dim=1)
    each = torch.arange(B, device=log_p.device)
    token = torch.zeros_like(each).unsqueeze(1)
    calls = {
        "guide": lambda: proposal.guide(state, log_p),
        "take": lambda: proposal.take(state, each),
        "advance": lambda: proposal.advance(state, token),
    }
    for name, call in calls.items():
        call()  # tables that are made at the first call don't count
        with Waits() as waits:
            call()
        if waits.found:
            raise NotStaticError(
                f"expected a proposal without host synchronizations, as static shapes require, but "
                f"`{name}` of {proposal!r} calls {', '.join(sorted(set(waits.found)))}; compute "
                "with masks instead, or call smc.sample"
            )


class AnswerTables(NamedTuple):
    """Complete answers of the discrete filter, as tables of fixed shape.

    A slot is an index among the P = B·N prefixes that the filter keeps in a step, N per example.

    Attributes:
        weights, log_p: log weight and log p_lm of the answers that ended in each step, for each
            slot and last token; -inf for no answer.
        parents: for each step and slot, the slot in the previous step whose prefix was extended.
        tokens: for each step and slot, the token by which the prefix was extended.
        log_pi: log of the probability with which the filter kept this extension.
        top: the N largest log weights of each example's answers; -inf if there are fewer answers.
        rest: log of the sum of the other weights.
        last: tokens that can end a text of each slot's automaton; -1 for no token.
        empty: whether the only answer of each example is the empty text.
    """

    weights: Float64[Tensor, "T P E"]
    log_p: Float64[Tensor, "T P E"]
    parents: Int64[Tensor, "T P"]
    tokens: Int64[Tensor, "T P"]
    log_pi: Float64[Tensor, "T P"]
    top: Float64[Tensor, "B N"]
    rest: Float64[Tensor, "B"]
    last: Int64[Tensor, "P E"]
    empty: Bool[Tensor, "B"]

    @classmethod
    def start(
        cls, automata: AutomatonBatch, N: int, most: int, draw: Draw, examples: Int64[Tensor, "B"]
    ) -> AnswerTables:
        """Create empty tables for answers of at most `most` tokens."""
        del draw
        check_room(automata, N, most)
        last = ending_tokens(automata).repeat_interleave(N, dim=0)
        P, E = last.shape
        # An automaton that ends without EOS may accept the empty answer, which needs no step.
        empty = automata.is_final[automata.initial]
        nothing = torch.full((most, P, E), -torch.inf, dtype=torch.float64, device=last.device)
        steps = torch.zeros(most, P, dtype=torch.int64, device=last.device)
        top = torch.full((len(examples), N), -torch.inf, dtype=torch.float64, device=last.device)
        top[:, 0] = torch.where(empty, 0.0, -torch.inf)
        rest = torch.full_like(top[:, 0], -torch.inf)
        log_pi = steps.double()
        return cls(nothing, nothing.clone(), steps, steps.clone(), log_pi, top, rest, last, empty)

    def add_ended(self, ending: Ending) -> tuple[AnswerTables, Callable[[], Population]]:
        """Store the weights of the answers that end with the next token, by prefix and token."""
        factors, particles = ending.factors, ending.particles
        row, token = particles.row.unsqueeze(1), self.last.clamp(min=0)
        klass = factors.classes.of[factors.automaton_of_row[row], token].long()
        ends = ending.ends[row, klass] & (self.last >= 0)
        log_p = ending.log_p[row, token].double()
        running = particles.running.unsqueeze(1)
        weight = torch.where(ends & running, particles.log_weight.unsqueeze(1) + log_p, -torch.inf)
        each = torch.cat([self.top, weight.view(len(self.top), -1)], dim=1)
        top, index = each.topk(self.top.shape[1], dim=1)
        left = each.scatter(1, index, -torch.inf).logsumexp(dim=1)
        now, log_p = ending.step[:1], particles.log_p.unsqueeze(1) + log_p

        def show() -> Population:
            at, number = (~weight.isneginf()).nonzero(as_tuple=True)
            column, chosen = particles.length[at].unsqueeze(1), self.last[at, number].unsqueeze(1)
            tokens = particles.tokens[at, :-1].scatter_(1, column, chosen)
            done, N = torch.ones_like(at, dtype=torch.bool), self.top.shape[1]
            return Population(
                at // N, at, tokens, column.squeeze(1) + 1, weight[at, number], done, ~done, ~done
            )

        return self._replace(
            weights=self.weights.index_copy(0, now, weight.unsqueeze(0)),
            log_p=self.log_p.index_copy(0, now, log_p.unsqueeze(0)),
            top=top,
            rest=torch.logaddexp(self.rest, left),
        ), show

    def add_forced(self, particles: Particles, step: Int64[Tensor, "B"]) -> AnswerTables:
        """Return the tables unchanged, because static shapes have no forced runs."""
        return self

    def note_parents(
        self, parent: Int64[Tensor, "P"], kept: Selection, step: Int64[Tensor, "B"]
    ) -> AnswerTables:
        """Store, for each kept prefix, the slot of the prefix it extends, and its new token."""
        now = step[:1]
        return self._replace(
            parents=self.parents.index_copy(0, now, parent.unsqueeze(0)),
            tokens=self.tokens.index_copy(0, now, kept.token.unsqueeze(0)),
            log_pi=self.log_pi.index_copy(0, now, kept.log_pi.unsqueeze(0)),
        )

    def greatest(self, most: int) -> FinishedScores:
        """Return the N largest weights of each example's answers, and the sum of all others."""
        return FinishedScores(self.top, self.rest)

    def most_probable(self) -> Float64[Tensor, "B"]:
        """Return the largest log p_lm of each example's answers; -inf without answers."""
        # Tokens that don't end a text have weight zero, but the log p of their prefix.
        log_p = self.log_p.masked_fill(self.weights.isneginf(), -torch.inf)
        return log_p.amax(dim=(0, 2)).view(len(self.empty), -1).amax(dim=1)

    def outcome(self, whole: Bool[Tensor, "B"], history: StepRecord) -> Outcome:
        """Reconstruct the answers from their last tokens backward, on the host."""
        weights, log_p, device = self.weights.cpu(), self.log_p.cpu(), self.weights.device
        parents, tokens, last = self.parents.cpu(), self.tokens.cpu(), self.last.cpu()
        log_pi = self.log_pi.cpu()
        time, slot, number = (~weights.isneginf()).nonzero(as_tuple=True)
        texts = torch.full((len(time), len(weights)), -1, device="cpu")
        texts[torch.arange(len(time), device="cpu"), time] = last[slot, number]
        kept = weights.new_full(texts.shape, NOT_CHOSEN)
        weight, log_p = weights[time, slot, number], log_p[time, slot, number]
        example = slot // self.top.shape[1]
        for column in reversed(range(len(weights) - 1)):
            before = time > column
            texts[before, column] = tokens[column, slot[before]]
            kept[before, column] = log_pi[column, slot[before]]
            slot[before] = parents[column, slot[before]]
        none = self.empty.cpu().nonzero().squeeze(1)
        zero = weight.new_zeros(len(none))
        return outcome_of(
            torch.cat([none, example]).to(device),
            torch.cat([texts.new_full((len(none), texts.shape[1]), -1), texts]).to(device),
            torch.cat([kept.new_full((len(none), texts.shape[1]), NOT_CHOSEN), kept]).to(device),
            torch.cat([zero, weight]).to(device),
            torch.cat([zero, log_p]).to(device),
            whole,
            history,
        )


def check_room(automata: AutomatonBatch, N: int, most: int) -> None:
    """Raise an error if an example could have more than `MOST_ANSWERS` answers in static shapes."""
    width = ending_tokens(automata).shape[1]
    if N * width * most > MOST_ANSWERS:
        raise NotStaticError(
            f"expected at most {MOST_ANSWERS} answers per example, as static shapes require, but "
            f"there may be {N * width * most}, from {N} prefixes, {width} possible last tokens and "
            f"{most} steps; lower particles, set algorithm='smc', or call smc.sample"
        )


def ending_tokens(automata: AutomatonBatch) -> Int64[Tensor, "B E"]:
    """Return the tokens that can end a text of each automaton; -1 for no token."""
    lists = []
    for number, automaton in enumerate(automata.automata):
        classes = (automaton.delta == automaton.num_states - 1).any(axis=0)
        tokens = automata.classes.tokens[number].cpu().numpy()
        lists.append(tokens[classes[automaton.class_of[tokens]]])
    padded = np.full((len(lists), max(1, *map(len, lists))), -1, np.int64)
    for row, tokens in zip(padded, lists, strict=True):
        row[: len(tokens)] = tokens
    return torch.from_numpy(padded).to(automata.class_of.device)


class StaticRun:
    """A run of an algorithm in static shapes.

    Args:
        stepper: steps with a static reader.
        prompts: token ids.
        most: maximum number of steps.
        graph: whether to capture the step as a graph; CUDA devices only.
        limit: the time limit, after which answers switch to a shortest completion. The steps after
            it have another proposal than the captured step, and run without a graph.

    Attributes:
        carry: the state before the next step.
        advance: function that takes a step, by a graph if it was captured.

    Raises:
        NotStaticError: `graph` is True, and the step can't be captured.
    """

    @torch.inference_mode()
    def __init__(
        self,
        stepper: Stepper,
        prompts: Sequence[Sequence[int]],
        most: int,
        *,
        graph: bool,
        limit: TimeLimit | None = None,
    ) -> None:
        started = time.perf_counter()
        self._stepper = stepper
        self._most = most
        self._closing = None if limit is None else Closing(stepper.reader, limit)
        self.carry, start = stepper.start(prompts)
        self._history = StepRecord(
            *(torch.cat([field[None], field.new_zeros(most, *field.shape)]) for field in start)
        )
        self._row = torch.zeros(1, dtype=torch.int64, device=start.running.device)
        self.advance: Callable[[], object] = self.step
        if graph:
            try:
                self.advance = self._capture()
                torch.cuda.synchronize()
            except torch.cuda.OutOfMemoryError:
                raise
            except (ValueError, RuntimeError) as error:
                reader = stepper.reader
                raise NotStaticError(
                    f"expected a step of the language model and {reader.proposal!r} that can be "
                    f"captured as a CUDA graph, got an error: {error}; call smc.sample"
                ) from error
        self._seconds = time.perf_counter() - started

    @torch.inference_mode()
    def step(self) -> None:
        """Take a step without a captured CUDA graph."""
        self.carry, record = self._stepper.step(self.carry)
        self._row += 1
        for field, row in zip(self._history, record, strict=True):
            field.index_copy_(0, self._row, row[None])

    @torch.inference_mode()
    def finish(self) -> int:
        """Take steps until no prefix is running; return the number of steps."""
        end = _EndSignal(self._tokens_to_finish())
        for taken in range(self._most):
            if end.is_known():
                return taken
            self._check_time(end.tokens_to_finish)
            self.advance()
            end.ask(self._tokens_to_finish())
        return self._most

    def _tokens_to_finish(self) -> Tensor:
        """Return the largest distance of a running prefix to the end; 0 if no prefix is running.

        Without a time limit the distance isn't needed, and any running prefix counts as 1.
        """
        if self._closing is not None:
            return tokens_to_finish(self.carry, self._stepper.reader.batch)
        return self.carry.particles.running.any().long()

    def _check_time(self, longest: int) -> None:
        """Switch to the proposal of the closing phase once the time limit is reached."""
        if self._closing is not None:
            before = self.carry
            self.carry = self._closing.check(before, longest, 1.0)
            if self.carry is not before:
                self.advance = self.step

    @torch.inference_mode()
    def outcome(self) -> Outcome:
        """Return the answers of the run."""
        proposal = self._stepper.reader.proposal
        refuse_nan(self.carry.failed, f"the language model or {proposal!r}")
        history = StepRecord(*(field.cpu() for field in self._history))
        found = self._stepper.outcome(self.carry, history)._replace(start_seconds=self._seconds)
        return found if self._closing is None else self._closing.mark(found)

    def _capture(self) -> Callable[[], None]:
        """Capture one step as a graph after warm-up steps; restore the state afterward."""
        first, row, history = self.carry, self._row.clone(), self._history
        # The tensors that a step changes are copied to memory that the graph reads and writes.
        changed, _ = self._stepper.step(first)
        own = _copy(first, changed)

        def once() -> None:
            self.carry = own
            self.step()
            _assign(own, self.carry)
            self.carry = own

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(min(WARM_UP, self._most)):
                once()
        torch.cuda.current_stream().wait_stream(side)
        _assign(own, first)
        self._row.copy_(row)
        for field in history:
            field[1:].zero_()
        self._stepper.reader.rewind()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            once()
        return captured.replay


def run_captured(job: Job, forward: Forward) -> Outcome:
    """Sample a batch in static shapes; on a CUDA device, a step is captured as a graph."""
    settings, most = job.settings, int(job.batch.budgets.max())
    if isinstance(settings.algorithm, Discrete):
        check_room(job.batch.automata, settings.particles, most)
    device = job.lm.device
    reader: StaticReader[Any] = StaticReader(
        forward,
        settings.proposal,
        job.batch,
        pass_of("auto", device),
        num_particles=settings.particles,
        temperature=settings.temperature,
        spare=WARM_UP,
    )
    # An observer runs on the host in every step, so the step can't be captured.
    graph = device.type == "cuda" and job.watch is None
    stepper = steps_of(job, reader, AnswerTables)
    return run_static(stepper, job.prompts, most, job.limit, graph=graph)


def run_static(
    stepper: Stepper,
    prompts: Sequence[Sequence[int]],
    most: int,
    limit: TimeLimit | None = None,
    *,
    graph: bool,
) -> Outcome:
    """Sample answers to the prompts (token ids) in static shapes; see `StaticRun`."""
    run = StaticRun(stepper, prompts, most, graph=graph, limit=limit)
    run.finish()
    return run.outcome()


class _EndSignal:
    """Largest number of tokens that a running prefix still needs, as known to the host.

    The number is computed on the device and copied to the host a few steps later, so that the host
    doesn't wait for the device.

    Args:
        left: the number on the device; zero once no prefix is running.

    Attributes:
        tokens_to_finish: the latest number that has arrived on the host; 1 before the first one.
    """

    def __init__(self, left: Tensor) -> None:
        self._cuda = left.is_cuda
        self.tokens_to_finish = 1 if self._cuda else int(left)
        self._asked: list[tuple[Tensor, torch.cuda.Event]] = []

    def ask(self, left: Tensor) -> None:
        """Start to copy the current number to the host."""
        if not self._cuda:
            self.tokens_to_finish = int(left)
            return
        answer = torch.empty((), dtype=torch.int64, pin_memory=True, device="cpu")
        answer.copy_(left, non_blocking=True)
        sent = torch.cuda.Event()
        sent.record()
        self._asked.append((answer, sent))

    def is_known(self) -> bool:
        """Return whether the host knows that the run has ended.

        The call waits for a copy that was started `AHEAD` steps ago, but not for later copies.
        """
        if len(self._asked) > AHEAD:
            self._asked[0][1].synchronize()
        while self._asked and self._asked[0][1].query():
            self.tokens_to_finish = int(self._asked.pop(0)[0])
        return self.tokens_to_finish == 0


def _parts(value: Any) -> Iterator[Any]:
    """Yield the fields of a named tuple or dataclass, or the items of a tuple."""
    if isinstance(value, tuple):
        yield from value
    elif is_dataclass(value):
        yield from (getattr(value, field.name) for field in fields(value))


def _assign(old: Any, new: Any) -> None:
    """Copy the tensors of one structure into those of another; skip tensors that both share."""
    if old is new:
        return
    if isinstance(old, Tensor):
        old.copy_(new)
        return
    for one, other in zip(_parts(old), _parts(new), strict=True):
        _assign(one, other)


def _copy(before: Any, after: Any) -> Any:
    """Copy a structure, with new memory for each tensor that a step replaces."""
    if before is after or (isinstance(before, int | float | str) and before == after):
        return before
    if isinstance(before, Tensor):
        return before.clone()
    parts = [_copy(*pair) for pair in zip(_parts(before), _parts(after), strict=True)]
    if isinstance(before, tuple):
        return type(before)(*parts) if hasattr(before, "_fields") else tuple(parts)
    if is_dataclass(before) and not isinstance(before, type):
        names = [field.name for field in fields(before)]
        return replace(before, **dict(zip(names, parts, strict=True)))
    raise NotStaticError(
        "expected a proposal's state to consist of tensors, named tuples and dataclasses, got a "
        f"{type(before).__name__} that changes in a step; change its type, or call smc.sample"
    )
