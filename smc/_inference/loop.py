"""Execution of an algorithm's steps until the end, eagerly or in static shapes.

    run_eagerly    runs step by step until no prefix is left; the host knows the number of prefixes
    run_static     runs the same steps in constant shapes; on a CUDA device, a step and the language
                   model's forward pass are captured as one graph

A captured graph reads and writes the same memory at every replay. Therefore the output of a step is
copied to the memory of its input. Parts that a step doesn't change are the same tensor, and aren't
copied.

After each step, a flag that tells whether any prefix is still running is copied to the host, and
checked some steps later. So the host doesn't wait for the device. Up to `AHEAD` superfluous steps
at the end have no effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from smc._forward.reader import Reader, refuse_nan
from smc._inference.closing import Closing, tokens_to_finish
from smc._inference.deadlines import TimeLimit
from smc._inference.particles import Outcome, StepRecord
from smc._models.static_cache import NotStaticError

AHEAD = 4
"""Maximum number of steps on a CUDA device whose flag hasn't arrived on the host yet."""
WARM_UP = 2
"""Maximum number of warm-up steps before capture, which are undone.

An additional step determines which tensors a step changes.
"""


@runtime_checkable
class Stepper(Protocol):
    """The steps of an algorithm for one batch: a `ParticleFilter` or a `DiscreteFilter`."""

    @property
    def reader(self) -> Reader[Any]:
        """The reader, which runs the language model and updates the proposal's state."""
        ...

    def start(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, StepRecord]:
        """Run the model on the prompts; return the first state, and the record of forced tokens."""
        ...

    def step(self, carry: Any) -> tuple[Any, StepRecord]:
        """Take a step; return the next state, and the record of this step.

        Parts of the state that no step changes must be the same tensors afterward, because a graph
        copies all other tensors.
        """
        ...

    def outcome(self, carry: Any, history: StepRecord) -> Outcome:
        """Return the answers of all examples, ordered by example.

        Args:
            carry: the state after the last step.
            history: the records of all steps.
        """
        ...


@torch.inference_mode()
def run_eagerly(
    stepper: Stepper, prompts: Sequence[Sequence[int]], limit: TimeLimit | None = None
) -> Outcome:
    """Sample answers to the prompts, with host synchronizations in each step."""
    started = time.perf_counter()
    carry, record = stepper.start(prompts)
    records, seconds = [record], time.perf_counter() - started
    closing = None if limit is None else Closing(stepper.reader, limit)
    while carry.prefixes.num_rows:
        if closing is not None:
            carry = closing.check_eagerly(carry, record)
        carry, record = stepper.step(carry)
        records.append(record)
    history = StepRecord(*(torch.stack(field).cpu() for field in zip(*records, strict=True)))
    outcome = stepper.outcome(carry, history)._replace(start_seconds=seconds)
    return outcome if closing is None else closing.mark(outcome)


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
                    f"captured as a CUDA graph, got an error: {error}; set execution='eager'"
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
        f"{type(before).__name__} that changes in a step; change its type, or set execution='eager'"
    )
