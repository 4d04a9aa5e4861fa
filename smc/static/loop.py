"""This module takes static steps to the end: eagerly, or as one captured CUDA graph a step.

A captured graph reads and writes the same memory at every replay, so what a step returns is copied
over what it was given (`_assign`; parts that a step does not change are the same tensor, and are
left alone). Whether anything still runs is written to memory of the host behind the step, and
looked at some steps later, when it has come: the host runs ahead of the device and never waits, and
the few steps too many find nothing that runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from smc.outcome import Outcome
from smc.proposals import Batch
from smc.static.forward import Forward
from smc.twisted import TwistedState

_AHEAD = 4
"""Steps that the host may be ahead of what it knows of the device."""


@runtime_checkable
class Stepped(Protocol):
    """What a step makes anew, a named tuple whose tensors have the same shapes in every step."""

    @property
    def goes_on(self) -> Bool[Tensor, ""]:
        """Whether another step is due."""
        ...

    @property
    def failed(self) -> Bool[Tensor, ""]:
        """Whether the model or the proposal has given what is not a number."""
        ...


S = TypeVar("S", bound=Stepped)


class StaticLoop(ABC, Generic[S]):
    """The base of the algorithms in static shapes, which give `start`, `step` and `outcome_of`.

    Args:
        forward: the language model.
        batch: automata and budgets of the B examples.
        num_particles: N, rows of the model for each example.
        graph: whether to capture the step; only on a CUDA device.

    Raises:
        ValueError: it is to be captured on another device.
    """

    def __init__(self, forward: Forward, batch: Batch, num_particles: int, *, graph: bool) -> None:
        device = batch.budgets.device
        if graph and device.type != "cuda":
            raise ValueError(f"a step is captured on CUDA devices only, not on {device}")
        self.forward = forward
        self.batch = batch
        self.num_particles = num_particles
        self.graph = graph

    @abstractmethod
    def start(self, logits: Float[Tensor, "P V"], columns: int) -> S:
        """Returns what is kept before the first step, with room for so many tokens."""
        ...

    @abstractmethod
    def step(self, slots: S) -> S:
        """Takes a step."""
        ...

    @abstractmethod
    def outcome_of(self, slots: S) -> Outcome:
        """Returns what was found, example by example."""
        ...

    @torch.inference_mode()
    def run(self, prompts: Sequence[Sequence[int]]) -> Outcome:
        """Finds answers to the prompts (token ids).

        Raises:
            FloatingPointError: log-probabilities are not numbers.
        """
        self.prepare(prompts)
        self.finish()
        return self.outcome()

    @torch.inference_mode()
    def prepare(self, prompts: Sequence[Sequence[int]]) -> None:
        """Reads the prompts, and captures the step if it is to be."""
        self.most = int(self.batch.budgets.max())
        # One more column, for the token that is read last and whose logits nobody wants.
        columns = self.most + (_AHEAD if self.graph else 1)
        logits = self.forward.start(prompts, self.num_particles, columns)
        slots = self.start(logits, self.most)
        self.slots = _own(slots) if self.graph else slots
        self.advance: Callable[[], None] = self._captured() if self.graph else self._eager

    @torch.inference_mode()
    def finish(self) -> int:
        """Takes steps until nothing runs; returns how many."""
        over = _Over(self.slots.goes_on)
        for taken in range(self.most):
            if over.is_known():
                return taken
            self.advance()
            over.ask(self.slots.goes_on)
        return self.most

    def outcome(self) -> Outcome:
        """Returns what was found.

        Raises:
            FloatingPointError: log-probabilities were not numbers.
        """
        if bool(self.slots.failed):
            raise FloatingPointError(
                "the language model or the proposal gave log-probabilities that are not numbers "
                "(NaN); its weights or its dtype are at fault: try float32 or bfloat16"
            )
        return self.outcome_of(self.slots)

    @torch.inference_mode()
    def _eager(self) -> None:
        self.slots = self.step(self.slots)

    def _captured(self) -> Callable[[], None]:
        """Captures one step as a graph, after some that warm up; leaves everything as it was.

        Not measured: no machine with a GPU was at hand.
        """
        before = _own(self.slots)

        def once() -> None:
            _assign(self.slots, self.step(self.slots))

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(min(3, self.most)):
                once()
        torch.cuda.current_stream().wait_stream(side)
        _assign(self.slots, before)
        self.forward.rewind()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            once()
        return captured.replay


class _Over:
    """Says, without waiting for the device, that nothing runs any more."""

    def __init__(self, goes_on: Tensor) -> None:
        self._cuda = goes_on.is_cuda
        self._goes_on = self._cuda or bool(goes_on)
        self._asked: list[tuple[Tensor, torch.cuda.Event]] = []

    def ask(self, goes_on: Tensor) -> None:
        """Has the answer sent to the host."""
        if not self._cuda:
            self._goes_on = bool(goes_on)
            return
        answer = torch.empty((), dtype=torch.bool, pin_memory=True)
        answer.copy_(goes_on, non_blocking=True)
        sent = torch.cuda.Event()
        sent.record()
        self._asked.append((answer, sent))

    def is_known(self) -> bool:
        """Whether an answer that has come says so."""
        while self._asked and self._asked[0][1].query():
            self._goes_on = bool(self._asked.pop(0)[0])
        return not self._goes_on


def _parts(value: Any) -> Iterator[Any]:
    """What a struct holds."""
    if isinstance(value, tuple):
        yield from value
    elif is_dataclass(value):
        yield from (getattr(value, field.name) for field in fields(value))


def _changing(old: Any, new: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of tensors of two equal structs that are not the same tensor."""
    if old is new:
        return
    if isinstance(old, Tensor):
        yield old, new
        return
    for one, other in zip(_parts(old), _parts(new), strict=True):
        yield from _changing(one, other)


def _assign(old: Any, new: Any) -> None:
    """Writes what a struct has into the memory of another."""
    for target, source in list(_changing(old, new)):
        target.copy_(source)


def _own(slots: Any) -> Any:
    """A copy with memory of its own, apart from what no step changes."""
    fresh = {
        name: value.clone() for name, value in slots._asdict().items() if isinstance(value, Tensor)
    }
    return slots._replace(**fresh, state=_own_state(slots.state))


def _own_state(state: Any) -> Any:
    """The proposal's state, taken anew; tables that all steps share stay."""
    if isinstance(state, TwistedState):
        model = state.model
        own = {
            name: value.clone()
            for name, value in model._asdict().items()
            if isinstance(value, Tensor)
        }
        return TwistedState(_own_state(state.walk), model._replace(**own))
    return state._replace(states=state.states.clone(), remaining=state.remaining.clone())
