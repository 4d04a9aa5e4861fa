"""This module runs the static step to the end: eagerly, or as one captured CUDA graph a step.

A captured graph reads and writes the same memory at every replay, so what a step returns is copied
over what it was given (`_assign`; parts that a step does not change are the same tensor, and are
left alone). Whether anything still runs is written to memory of the host behind the step, and
looked at some steps later, when it has come: the host runs ahead of the device and never waits, and
the few steps too many find all particles masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from smc.draw import Draw
from smc.outcome import Outcome
from smc.proposals import GCD, LCD, LM, Batch, Proposal
from smc.resampling import SCHEMES, scheme
from smc.static.forward import Forward
from smc.static.passes import Pass, TorchPass
from smc.static.step import Rules, Slots, start, step
from smc.twisted import Twisted, TwistedState
from smc.weights import Weights

_AHEAD = 4
"""Steps that the host may be ahead of what it knows of the device."""


def check_static(proposal: Proposal[Any], resampling: str) -> None:
    """Refuses what the static step cannot honour.

    Raises:
        ValueError: a proposal that waits for the device, or a scheme that is not known by name.
    """
    # A class derived from `Twisted` may have a guide of its own, which would not be asked.
    twisted = isinstance(proposal, Twisted) and type(proposal).guide is Twisted.guide
    if type(proposal) not in (LM, LCD, GCD) and not twisted:
        raise ValueError(
            f"the static step knows LM, LCD, GCD and twisted proposals such as PGCD, not "
            f"{type(proposal).__name__}; take smc.sample"
        )
    if isinstance(proposal, Twisted) and proposal.exact_top_k is None:
        raise ValueError(
            "exact_top_k is None, a g for every token, which the static step does not keep; give a "
            "number of tokens"
        )
    if resampling not in SCHEMES:
        raise ValueError(
            f"the static step knows resampling by name, one of {', '.join(SCHEMES)}, not "
            f"{resampling!r}"
        )


class StaticSampler:
    """The particle filter of `smc.sampler` in static shapes, for one batch of examples.

    Args:
        forward: the language model.
        proposal: `LM`, `LCD`, `GCD`, or a twisted one such as `PGCD`.
        batch: automata and budgets of the B examples.
        examples: identity of each example, which names its random numbers.
        num_particles: N, per example.
        resampling, ess_threshold, strata: see `smc.algorithms.SMC`.
        temperature: that of p_lm.
        draw: the seam of randomness.
        whole_vocabulary: how to go over the vocabulary; tensor operations if not given.
        graph: whether to capture the step; only on a CUDA device.
        script: tokens that every particle takes whatever it draws, to measure time: at least as
            many as steps.

    Raises:
        ValueError: an argument that the static step cannot honour.
    """

    def __init__(
        self,
        forward: Forward,
        proposal: Proposal[Any],
        batch: Batch,
        *,
        examples: Int64[Tensor, "B"],
        num_particles: int,
        resampling: str = "systematic",
        ess_threshold: float | int = 0.5,
        strata: str = "state",
        temperature: float | int = 1.0,
        draw: Draw,
        whole_vocabulary: Pass | None = None,
        graph: bool = False,
        script: Int64[Tensor, "T"] | None = None,
    ) -> None:
        check_static(proposal, resampling)
        device = batch.budgets.device
        if graph and device.type != "cuda":
            raise ValueError(f"a step is captured on CUDA devices only, not on {device}")
        self.batch = batch
        self.graph = graph
        self.rules = Rules(
            proposal=proposal.in_static_shapes() if isinstance(proposal, Twisted) else proposal,
            forward=forward,
            examples=examples.repeat_interleave(num_particles),
            num_particles=num_particles,
            scheme=scheme(resampling),
            ess_threshold=float(ess_threshold),
            strata=strata,
            temperature=float(temperature),
            draw=draw,
            whole_vocabulary=whole_vocabulary or TorchPass(),
            script=script,
        )

    @torch.inference_mode()
    def run(self, prompts: Sequence[Sequence[int]]) -> Outcome:
        """Samples answers to the prompts (token ids); every particle ends finished or dead.

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
        forward, N = self.rules.forward, self.rules.num_particles
        # One more column, for the token that is read last and whose logits nobody wants.
        logits = forward.start(prompts, N, self.most + (_AHEAD if self.graph else 1))
        slots = start(self.rules, self.batch, logits, self.most)
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

    @torch.inference_mode()
    def _eager(self) -> None:
        self.slots = step(self.rules, self.slots)

    def _captured(self) -> Callable[[], None]:
        """Captures one step as a graph, after some that warm up; leaves the particles as they were.

        Not measured: no machine with a GPU was at hand.
        """
        before = _own(self.slots)

        def once() -> None:
            _assign(self.slots, step(self.rules, self.slots))

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(min(3, self.most)):
                once()
        torch.cuda.current_stream().wait_stream(side)
        _assign(self.slots, before)
        self.rules.forward.rewind()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            once()
        return captured.replay

    def outcome(self) -> Outcome:
        """The particles, example by example.

        Raises:
            FloatingPointError: log-probabilities were not numbers.
        """
        slots, N = self.slots, self.rules.num_particles
        if bool(slots.failed):
            raise FloatingPointError(
                "the language model or the proposal gave log-probabilities that are not numbers "
                "(NaN); its weights or its dtype are at fault: try float32 or bfloat16"
            )
        final = Weights.of(slots.log_weight.view(-1, N))
        B, device = len(final.ess), final.ess.device
        return Outcome(
            example=torch.arange(B, device=device).repeat_interleave(N),
            tokens=slots.tokens,
            length=slots.length,
            log_weight=slots.log_weight,
            finished=slots.state.walk.finished,
            log_evidence=final.log_mean,
            ess=final.ess,
            enumerated=torch.zeros(B, dtype=torch.bool, device=device),
            records=(),
        )


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


def _own(slots: Slots) -> Slots:
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
