"""Constrained requests with budgets in the continuous batching of `transformers`.

    manager = model.init_continuous_batching(
        config, ContinuousBatchingConfig(use_async_batching=False, use_cuda_graph=False)
    )
    processor = smc.BudgetBatchProcessor(manager)
    manager.start()
    processor.add_request(prompt_ids, constraint, budget=40)

In every step, the manager first calls each processor on the host with the requests that get a next
token, and then passes the scores of these tokens on the device. The constraint of a request is one
of the request's options, which the manager passes to the processor. The automaton state is computed
from the tokens that the manager reports for the request. So requests may be offloaded, restarted
and canceled.

An invalid request is rejected when it is added (`smc._transformers.admission`), with or without a
constraint. A later error, such as NaN in the scores, ends the request with EOS and sets its
`error`. The other requests continue.

Like `smc.BudgetLogitsProcessor`, this processor doesn't correct the bias of renormalizing in each
step. `smc.generate` corrects it by weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import finalize

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from gcd import ConstraintError, TokenAutomaton, check_budget
from gcd._serving.pool import DEAD, MAX_BYTES, AutomatonPool, Location, on_device
from gcd._serving.token_lists import TokenReader
from smc._inference.settings import whole
from smc._models.transformers_internals import (
    batch_logits_processor,
    holds_alone,
    list_unfinished,
    per_request_processor,
)
from smc._transformers.admission import Admission

_NAME = "budget_constraint"
_KEEP_ONE = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
"""Processors that never set the scores of all tokens to -inf."""


class _Request:
    """Data of a request that the caller's thread passes to the manager's thread.

    The manager copies the options of a request, but `copy.deepcopy` returns this object itself.

    Attributes:
        name: the name that the caller chose; None if the manager chooses one.
        tokens: number of tokens of the request for which the cache must have space.
        error: the reason for rejecting the request; None if it is valid.
    """

    def __init__(self, name: str | None, tokens: int, error: Exception | None = None) -> None:
        self.name, self.tokens, self.error = name, tokens, error

    def __deepcopy__(self, memo: dict[int, Any]) -> _Request:
        return self


class _Constrained(_Request):
    """Data of a request with a constraint."""

    def __init__(
        self,
        name: str | None,
        tokens: int,
        automaton: TokenAutomaton,
        budget: int,
        location: Location,
    ) -> None:
        super().__init__(name, tokens)
        self.automaton, self.budget, self.location = automaton, budget, location


class BudgetBatchProcessor(batch_logits_processor()):  # type: ignore[misc]
    """Processor for constrained requests in the continuous batching of `transformers`.

    Requests with and without a constraint may run together. Add requests without a constraint by
    the manager's `add_request`. Both kinds are checked when they are added (token ids, name, length
    and sampling options). An invalid request then fails alone, and doesn't stop the manager.

    Args:
        manager: the manager from `model.init_continuous_batching`, not started yet. It must run
            without asynchronous batching (`use_async_batching=False`), because a mask depends on
            the last token, and without CUDA graphs.
        max_bytes: memory limit for the tables of all active constraints on the model's device, in
            bytes.

    Raises:
        ValueError: the manager has been started or warmed up, uses asynchronous batching or CUDA
            graphs, or has a processor that may forbid every token that a constraint allows.
    """

    def __init__(self, manager: Any, max_bytes: int = MAX_BYTES) -> None:
        self.supported_kwargs, self.ignored_kwargs = {_NAME: _Request}, ()
        config, processors = manager.continuous_batching_config, manager.logit_processor
        if manager.is_running() or manager.batch_processor is not None:
            raise ValueError(
                "expected a manager that has not been started, got a running one; create the "
                "processor before start()"
            )
        unsuited = {
            "use_async_batching": (
                config.use_async_batching,
                "a step would be prepared before the last token, on which its mask depends",
            ),
            "use_cuda_graph": (
                any(config.cuda_graph_booleans),
                "a captured step would repeat the mask of its capture",
            ),
        }
        for name, (value, reason) in unsuited.items():
            if value:
                raise ValueError(
                    f"expected a manager with {name}=False, because {reason}, got {name}={value}; "
                    f"pass ContinuousBatchingConfig({name}=False)"
                )
        safe = (*_KEEP_ONE, *map(per_request_processor, _KEEP_ONE))
        for other in processors.logits_processor:
            if not isinstance(other, safe):
                raise ValueError(
                    "expected logits processors that always leave an allowed token, got "
                    f"{type(other).__name__}, which may forbid all of them; unset its option in "
                    "GenerationConfig"
                )
        self._manager, self._max_bytes = manager, max_bytes
        self._device = manager.model.device
        self._admission = Admission(manager.model)
        self._pool: AutomatonPool | None = None
        self._lock = Lock()  # requests are added on other threads than the manager's
        # Finalizers append constraints on any thread at any time, even while the lock is held.
        self._left: deque[TokenAutomaton] = deque()
        self._readers: dict[tuple[str, _Constrained], TokenReader] = {}
        self._rows = torch.empty((0, 7), dtype=torch.int64, device=self._device)
        self._states: list[Any] = []  # the manager's state of the request in each row
        # This processor runs first, so that top-k and top-p choose among allowed tokens.
        processors.logits_processor.insert(0, self)
        processors.tensors_required += 1
        processors.do_processing = True
        processors.supported_keys.update(self.supported_kwargs)
        # The manager calls this function for each new request. If it raises an error, only this
        # request fails.
        self._check_options, processors.check_kwargs = processors.check_kwargs, self._admit
        self._queue, manager.add_request = manager.add_request, self._add_unconstrained

    def add_request(
        self,
        prompt: Sequence[int],
        constraint: TokenAutomaton,
        budget: int,
        request_id: str | None = None,
        **options: Any,
    ) -> str:
        """Queue a request with a constraint; get its answer from `manager.get_result()`.

        Args:
            prompt: token ids.
            constraint: the constraint, lifted to the model's vocabulary.
            budget: maximum number of tokens of the answer, including EOS. It sets the manager's
                `max_new_tokens`.
            request_id: the request's name; chosen by the manager if None. The request fails if an
                unfinished request has the same name.
            options: options of the manager's `add_request`, such as `streaming` or `temperature`.

        Returns:
            The request's name.

        Raises:
            InfeasibleBudgetError: the budget is shorter than the shortest answer.
            OverlongBudgetError: the budget exceeds the lengths that the constraint covers.
            ConstraintError: the constraint is not over the model's tokens, has no EOS token, or
                exceeds the memory that the constraints of other requests leave.
            PromptTooLongError: prompt and budget together exceed the model's context.
            ValueError: the prompt is empty or has an unknown token id; an option is invalid or set
                by the processor; or the manager no longer accepts requests.
        """
        if not isinstance(constraint, TokenAutomaton):
            raise ConstraintError(
                f"expected constraint to be a TokenAutomaton, got {type(constraint).__name__}; use "
                "gcd.lift(automaton, vocabulary)"
            )
        for name in ("max_new_tokens", "eos_token_id"):
            if name in options:
                raise ValueError(
                    f"expected no {name}, which budget and constraint determine, got "
                    f"{options[name]!r}; omit it"
                )
        eos_ids = constraint.vocabulary.eos_ids
        if not eos_ids:
            raise ConstraintError(
                "expected a constraint with an EOS token, at which the manager ends an answer, got "
                "one without; set eos_ids of its vocabulary"
            )
        check_budget(constraint, whole("budget", budget))
        ids, options = self._admission.prompt(prompt), self._admission.options(options)
        self._admission.room(ids, int(budget))
        location = self._enter(constraint)
        given = _Constrained(
            request_id, len(ids) + int(budget) - 1, constraint, int(budget), location
        )
        finalize(given, self._left.append, constraint).atexit = False
        name = self._queue(
            ids,
            request_id=request_id,
            max_new_tokens=int(budget),
            eos_token_id=list(eos_ids),
            **{_NAME: given},
            **options,
        )
        if name is None:
            raise ValueError(
                "expected a manager that accepts requests, got one that no longer does; create a "
                "new manager"
            )
        return name

    def _add_unconstrained(
        self,
        input_ids: Sequence[int],
        request_id: str | None = None,
        max_new_tokens: int | None = None,
        *others: Any,
        **options: Any,
    ) -> str | None:
        """Queue a request without a constraint.

        An invalid request fails later, when the manager takes it from the queue.
        """
        error, tokens = None, 0
        try:
            options = self._admission.options(options)
            tokens = len(self._admission.prompt(input_ids)) + (max_new_tokens or 1) - 1
        except ValueError as refused:
            error = refused
        given = _Request(request_id, tokens, error)
        queued: str | None = self._queue(
            input_ids, request_id, max_new_tokens, *others, **options, **{_NAME: given}
        )
        return queued

    def _admit(self, options: dict[str, Any]) -> None:
        """Reject a request that would stop the manager; called on the manager's thread.

        Raises:
            ValueError: the request is invalid.
        """
        # Requests that were queued before the processor was created have no data.
        given: _Request | None = options.get(_NAME)
        if given is not None:
            if given.error is not None:
                raise given.error
            if given.name in list_unfinished(self._manager):
                raise ValueError(
                    f"expected a request_id that no unfinished request has, got {given.name!r}; "
                    "use another request_id"
                )
            if not holds_alone(self._manager, given.tokens):
                raise ValueError(
                    "expected a request that fits into the manager's cache, got one of up to "
                    f"{given.tokens} tokens; shorten the request, or raise num_blocks of "
                    "ContinuousBatchingConfig"
                )
        self._check_options(options)

    def _enter(self, automaton: TokenAutomaton) -> Location:
        """Copy a constraint to the device, and remove constraints that no request needs anymore."""
        with self._lock:
            if self._pool is None:
                self._pool = AutomatonPool(
                    self._admission.width,
                    automaton.vocabulary.eos_ids,
                    self._device,
                    self._max_bytes,
                )
            while self._left:
                self._pool.leave(self._left.popleft())
            return self._pool.enter(automaton)

    def fill_defaults(self, int32_tensor: Int32[Tensor, "M"]) -> None:
        """Fill the tensor of this processor with zeros, which mean no mask."""
        int32_tensor.fill_(0)

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Int32[Tensor, "R"]:
        """Compute the automaton states of the requests that get a next token.

        The manager's tensor has one number per request, but a mask needs seven numbers. So this
        object stores the numbers. Before the manager calls this method again, it calls this object
        with the scores of these requests.
        """
        rows, readers, self._states = [], {}, []
        for at, request in enumerate(requests_with_new_token):
            given = request.state.logit_processor_kwargs.get(_NAME)
            if not isinstance(given, _Constrained):
                continue
            output = request.state.to_generation_output()  # includes the tokens before a restart
            key = output.request_id, given  # a name may be used by several requests in turn
            readers[key] = self._readers.get(key) or TokenReader(given.automaton)
            tokens = output.generated_tokens
            state = readers[key].state(tokens)
            if state == DEAD:  # the mask of a dead state allows EOS only
                request.state.error = (
                    f"expected tokens that the constraint allows, got token {tokens[-1]} after the "
                    f"first {len(tokens) - 1} tokens; remove the logits processor after "
                    "BudgetBatchProcessor that allows it"
                )
            rows.append((at, state, given.budget - len(tokens), *given.location))
            self._states.append(request.state)
        self._readers = readers
        numbers = torch.tensor(rows, dtype=torch.int64, device="cpu").view(len(rows), 7)
        self._rows = on_device(numbers, self._device)
        return torch.zeros(len(requests_with_new_token), dtype=torch.int32, device="cpu")

    def __call__(
        self, scores: Float[Tensor, "R V"], tensor_arg: Int32[Tensor, "M"]
    ) -> Float[Tensor, "R V"]:
        """Set the scores of tokens after which the answer can't be finished in time to -inf."""
        rows: Int64[Tensor, "C 7"] = self._rows
        if len(rows) and self._pool is not None:
            at, states, left = rows[:, :3].unbind(1)
            with self._lock:
                self._pool.mask_(scores, rows[:, 3:], states, left, at)
            best = scores[at].amax(dim=1)  # NaN if a score is NaN
            self._end(scores, at, best, (~best.isfinite()).nonzero().squeeze(1).tolist())
        return scores

    def _end(
        self, scores: Float[Tensor, "R V"], at: Int64[Tensor, "C"], best: Tensor, bad: list[int]
    ) -> None:
        """End the requests for which no allowed token has a finite score."""
        for number in bad:
            state, row = self._states[number], at[number]
            given: _Constrained = state.logit_processor_kwargs[_NAME]
            state.error = (
                "expected a next token with positive probability, but the model gives every token "
                "that the constraint allows probability zero"
                if bool(best[number].isneginf())
                else "expected finite scores of the next token, got NaN or +inf"
            )
            scores[row] = -torch.inf
            scores[row, list(given.automaton.vocabulary.eos_ids)] = 0.0
