"""This module takes the steps of an algorithm to the end: eagerly, or in static shapes.

    run_eagerly    one step after the other, until no prefix is left; the host knows how many
    run_static     the same steps in shapes that never change; on a CUDA device as one captured
                   graph, the language model's forward pass included

A captured graph reads and writes the same memory at every replay, so what a step returns is copied
over what it was given (parts that a step does not change are the same tensor, and are left alone).
Whether anything still runs is copied to the host after each step, and looked at some steps later:
the host runs ahead of the device, and up to `AHEAD` superfluous steps do nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from smc.closing import Closing, way_out
from smc.deadlines import TimeLimit
from smc.models.static_cache import NotStaticError
from smc.outcome import Outcome, StepRecord
from smc.prefixes import Reader, refuse_nan

AHEAD = 4
"""Most steps that are enqueued on a CUDA device beyond one whose end signal is awaited."""
WARM_UP = 2
"""Most steps that are taken, and undone, before one is captured; one more finds what changes."""


@runtime_checkable
class Stepper(Protocol):
    """The steps of an algorithm, for one batch: a `ParticleFilter` or a `DiscreteFilter`."""

    @property
    def reader(self) -> Reader[Any]:
        """Language model and proposal."""
        ...

    def start(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, StepRecord]:
        """Read the prompts; return what the first step is given, and the record of a start."""
        ...

    def step(self, carry: Any) -> tuple[Any, StepRecord]:
        """Take a step; return what the next one is given, and the record of this one.

        Parts that no step changes must be the same tensors afterwards: a graph copies the others.
        """
        ...

    def outcome(self, carry: Any, history: StepRecord) -> Outcome:
        """Return the answers, example by example."""
        ...


@torch.inference_mode()
def run_eagerly(
    stepper: Stepper, prompts: Sequence[Sequence[int]], limit: TimeLimit | None = None
) -> Outcome:
    """Find answers to the prompts (token ids); the host waits for each step.

    Args:
        stepper: with an eager reader.
        prompts: token ids.
        limit: says from which step on answers take the shortest way out.

    Raises:
        AbandonedError: nobody waits for the answers any more (`smc.deadlines`).
        FloatingPointError: log-probabilities are not numbers.
    """
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
    """An algorithm under way in static shapes.

    Args:
        stepper: with a static reader.
        prompts: token ids.
        most: steps that there can be.
        graph: whether to capture the step; only on a CUDA device.
        limit: says from which step on answers take the shortest way out. These steps have another
            proposal than the captured one, and are taken one operation after the other.

    Attributes:
        carry: what the next step is given.
        advance: takes a step, as a graph if it was captured.

    Raises:
        NotStaticError: a graph was asked for, and the step cannot be captured.
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
                self.advance = self._captured()
                torch.cuda.synchronize()
            except torch.cuda.OutOfMemoryError:
                raise
            except (ValueError, RuntimeError) as error:
                reader = stepper.reader
                raise NotStaticError(
                    f"a step of the language model and {reader.proposal!r} cannot be captured as a "
                    f"CUDA graph: {error}; give execution='eager'"
                ) from error
        self._seconds = time.perf_counter() - started

    @torch.inference_mode()
    def step(self) -> None:
        """Take a step."""
        self.carry, record = self._stepper.step(self.carry)
        self._row += 1
        for field, row in zip(self._history, record, strict=True):
            field.index_copy_(0, self._row, row[None])

    @torch.inference_mode()
    def finish(self) -> int:
        """Take steps until nothing runs; return how many.

        Raises:
            AbandonedError: nobody waits for the answers any more (`smc.deadlines`).
        """
        end = _EndSignal(self._way_out())
        for taken in range(self._most):
            if end.is_known():
                return taken
            self._check_time(end.way_out)
            self.advance()
            end.ask(self._way_out())
        return self._most

    def _way_out(self) -> Tensor:
        """Return the most tokens that a running prefix needs, or, without a limit, one; or zero."""
        if self._closing is not None:
            return way_out(self.carry, self._stepper.reader.batch)
        return self.carry.particles.running.any().long()

    def _check_time(self, longest: int) -> None:
        """Have the answers closed once the time limit is reached."""
        if self._closing is not None:
            before = self.carry
            self.carry = self._closing.check(before, longest, 1.0)
            if self.carry is not before:
                self.advance = self.step

    @torch.inference_mode()
    def outcome(self) -> Outcome:
        """Return what was found.

        Raises:
            FloatingPointError: log-probabilities were not numbers.
        """
        proposal = self._stepper.reader.proposal
        refuse_nan(self.carry.failed, f"the language model or {proposal!r}")
        history = StepRecord(*(field.cpu() for field in self._history))
        found = self._stepper.outcome(self.carry, history)._replace(start_seconds=self._seconds)
        return found if self._closing is None else self._closing.mark(found)

    def _captured(self) -> Callable[[], None]:
        """Capture one step as a graph, after some that warm up; leave everything as it was."""
        first, row, history = self.carry, self._row.clone(), self._history
        # What a step changes gets memory of its own, which the graph reads and writes.
        changed, _ = self._stepper.step(first)
        own = _owned(first, changed)

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
    """Find answers to the prompts (token ids) in static shapes; see `StaticRun`.

    Raises:
        AbandonedError: nobody waits for the answers any more (`smc.deadlines`).
        FloatingPointError: log-probabilities are not numbers.
        NotStaticError: a graph was asked for, and the step cannot be captured.
    """
    run = StaticRun(stepper, prompts, most, graph=graph, limit=limit)
    run.finish()
    return run.outcome()


class _EndSignal:
    """Says how much is left to do, as of a few steps ago.

    Args:
        left: a number on the device that is zero once nothing runs.

    Attributes:
        way_out: the number, as far as it is known; one before.
    """

    def __init__(self, left: Tensor) -> None:
        self._cuda = left.is_cuda
        self.way_out = 1 if self._cuda else int(left)
        self._asked: list[tuple[Tensor, torch.cuda.Event]] = []

    def ask(self, left: Tensor) -> None:
        """Have the number sent to the host."""
        if not self._cuda:
            self.way_out = int(left)
            return
        answer = torch.empty((), dtype=torch.int64, pin_memory=True, device="cpu")
        answer.copy_(left, non_blocking=True)
        sent = torch.cuda.Event()
        sent.record()
        self._asked.append((answer, sent))

    def is_known(self) -> bool:
        """Tell whether it is known that nothing runs; wait for answers `AHEAD` steps old."""
        if len(self._asked) > AHEAD:
            self._asked[0][1].synchronize()
        while self._asked and self._asked[0][1].query():
            self.way_out = int(self._asked.pop(0)[0])
        return self.way_out == 0


def _parts(value: Any) -> Iterator[Any]:
    """Yield the fields of a named tuple or dataclass, or the items of a tuple."""
    if isinstance(value, tuple):
        yield from value
    elif is_dataclass(value):
        yield from (getattr(value, field.name) for field in fields(value))


def _assign(old: Any, new: Any) -> None:
    """Copy the tensors of one struct into those of another; skip tensors that both share."""
    if old is new:
        return
    if isinstance(old, Tensor):
        old.copy_(new)
        return
    for one, other in zip(_parts(old), _parts(new), strict=True):
        _assign(one, other)


def _owned(before: Any, after: Any) -> Any:
    """Copy a struct, giving memory of its own to each tensor that a step replaces."""
    if before is after or (isinstance(before, int | float | str) and before == after):
        return before
    if isinstance(before, Tensor):
        return before.clone()
    parts = [_owned(*pair) for pair in zip(_parts(before), _parts(after), strict=True)]
    if isinstance(before, tuple):
        return type(before)(*parts) if hasattr(before, "_fields") else tuple(parts)
    if is_dataclass(before) and not isinstance(before, type):
        names = [field.name for field in fields(before)]
        return replace(before, **dict(zip(names, parts, strict=True)))
    raise NotStaticError(
        f"a proposal's state has a {type(before).__name__}, which a captured step cannot change; "
        "make it of tensors, named tuples and dataclasses, or give execution='eager'"
    )
