"""Requests of the continuous batching of `transformers` obey constraints, each within its budget.

    manager = model.init_continuous_batching(
        config, ContinuousBatchingConfig(use_async_batching=False, use_cuda_graph=False)
    )
    processor = smc.BudgetBatchProcessor(manager)
    manager.start()
    processor.add_request(prompt_ids, constraint, budget=40)

The manager asks each processor at every step what it has to know of the requests whose next token
is due, on the host, and hands it their scores, on the device. A request's constraint travels with
the request, as the manager's own keyword for processors; its state is a function of the tokens that
the manager says it has. So requests may be offloaded, start again, and be cancelled.

A request that is wrong is refused when it enters (`smc.decoding.admission`), with a constraint or
without; what goes wrong later (NaN in its scores) ends that request, with EOS and the reason as its
`error`. The others go on.

As with `smc.BudgetLogitsProcessor`, this corrects no bias: each step's mask renormalises the
model's belief (`smc.generate` weighs).
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

from gcd.errors import ConstraintError
from gcd.serving.pool import DEAD, MAX_BYTES, AutomatonPool, Place, on_device
from gcd.serving.reading import TokenReader
from gcd.tokens.budget import check_budget
from gcd.tokens.token_automaton import TokenAutomaton
from smc.decoding.admission import Admission
from smc.settings import whole
from smc.transformers_internals import (
    batch_logits_processor,
    holds_alone,
    per_request_processor,
    unfinished_requests,
)

_NAME = "budget_constraint"
_KEEP_ONE = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
"""Processors that never mask the last finite token."""


class _Request:
    """A request, handed from the caller's thread to the manager's; never copied.

    Attributes:
        name: the name that the caller chose, if any.
        tokens: how many the cache has to hold for it.
        error: the reason why it isn't admitted.
    """

    def __init__(self, name: str | None, tokens: int, error: Exception | None = None) -> None:
        self.name, self.tokens, self.error = name, tokens, error

    def __deepcopy__(self, memo: dict[int, Any]) -> _Request:
        return self


class _Constrained(_Request):
    """A request that has to obey a constraint."""

    def __init__(
        self, name: str | None, tokens: int, automaton: TokenAutomaton, budget: int, place: Place
    ) -> None:
        super().__init__(name, tokens)
        self.automaton, self.budget, self.place = automaton, budget, place


class BudgetBatchProcessor(batch_logits_processor()):  # type: ignore[misc]
    """Lets the continuous batching of `transformers` finish constrained answers within a budget.

    Requests without a constraint may run beside those with one; add them by the manager itself.
    One that would stop the manager fails alone: its token ids, name, length and sampling options
    are checked as well.

    Args:
        manager: what `model.init_continuous_batching` returned, not started yet. It must run
            steps one after the other (`use_async_batching=False`), as a mask follows from the
            last token, and without graphs.
        max_bytes: most bytes of the tables of all constraints in use, on the model's device.

    Raises:
        ValueError: the manager has been started or warmed up, runs ahead of the host, or has a
            processor that may forbid all that a constraint allows.
    """

    def __init__(self, manager: Any, max_bytes: int = MAX_BYTES) -> None:
        self.supported_kwargs, self.ignored_kwargs = {_NAME: _Request}, ()
        config, processors = manager.continuous_batching_config, manager.logit_processor
        if manager.is_running() or manager.batch_processor is not None:
            raise ValueError("the manager has been started; make the processor before start()")
        ahead = {
            "use_async_batching": config.use_async_batching,
            "use_cuda_graph": any(config.cuda_graph_booleans),
        }
        for name, value in ahead.items():
            if value:
                raise ValueError(
                    f"the manager runs with {name}={value}, and a mask has to wait for the last "
                    f"token; give ContinuousBatchingConfig({name}=False)"
                )
        safe = (*_KEEP_ONE, *map(per_request_processor, _KEEP_ONE))
        for other in processors.logits_processor:
            if not isinstance(other, safe):
                raise ValueError(
                    f"{type(other).__name__} may forbid all tokens that a constraint allows; leave "
                    "out of the GenerationConfig what asks for it"
                )
        self._manager, self._max_bytes = manager, max_bytes
        self._device = manager.model.device
        self._admission = Admission(manager.model)
        self._pool: AutomatonPool | None = None
        self._lock = Lock()  # requests enter on other threads than the manager's
        # A constraint is given up on whatever thread, at whatever time, the lock held or not.
        self._left: deque[TokenAutomaton] = deque()
        self._readers: dict[tuple[str, _Constrained], TokenReader] = {}
        self._rows = torch.empty((0, 7), dtype=torch.int64, device=self._device)
        self._states: list[Any] = []  # of the manager, one for each of these rows
        # Masks come first: what is left of a nucleus, say, is then a part of what is allowed.
        processors.logits_processor.insert(0, self)
        processors.tensors_required += 1
        processors.do_processing = True
        processors.supported_keys.update(self.supported_kwargs)
        # The manager calls this for each request that enters, and fails it if this raises.
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
        """Queue a request; `manager.get_result()` has its answer, once there is one.

        Args:
            prompt: token ids.
            constraint: lifted to the model's vocabulary.
            budget: most tokens of the answer, EOS included; the manager's `max_new_tokens`.
            request_id: a name, if it is not to be the manager's choice. The request fails if
                another one that hasn't finished has it.
            options: of the manager's `add_request`: `streaming`, `temperature`, …

        Returns:
            The request's name.

        Raises:
            InfeasibleBudgetError: the budget is shorter than the shortest answer.
            OverlongBudgetError: the budget allows longer texts than the constraint is known for.
            ConstraintError: the constraint is not over the model's tokens, has no token that ends a
                text, or there is no room for it beside those of other requests.
            PromptTooLongError: prompt and budget together exceed the model's context.
            ValueError: the prompt is empty or has an id that the model doesn't know, an option
                makes no sense or is the processor's to say, or the manager takes no requests.
        """
        if not isinstance(constraint, TokenAutomaton):
            raise ConstraintError(
                f"the constraint is {type(constraint).__name__}, not over tokens; lift it with "
                "gcd.lift(automaton, vocabulary)"
            )
        for name in ("max_new_tokens", "eos_token_id"):
            if name in options:
                raise ValueError(f"{name} follows from budget and constraint; leave it out")
        eos_ids = constraint.vocabulary.eos_ids
        if not eos_ids:
            raise ConstraintError(
                "the constraint's vocabulary has no token that ends a text, at which the manager "
                "would stop; give it eos_ids"
            )
        check_budget(constraint, whole("budget", budget))
        ids, options = self._admission.prompt(prompt), self._admission.options(options)
        self._admission.room(ids, int(budget))
        place = self._enter(constraint)
        given = _Constrained(request_id, len(ids) + int(budget) - 1, constraint, int(budget), place)
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
            raise ValueError("the manager takes no requests any more; make another one")
        return name

    def _add_unconstrained(
        self,
        input_ids: Sequence[int],
        request_id: str | None = None,
        max_new_tokens: int | None = None,
        *others: Any,
        **options: Any,
    ) -> str | None:
        """Queue a request of the manager's own `add_request`; it fails if it isn't admitted."""
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
        """Refuse a request that would stop the manager; called on its thread.

        Raises:
            ValueError: the reason.
        """
        given: _Request | None = options.get(_NAME)  # None if queued before this processor was made
        if given is not None:
            if given.error is not None:
                raise given.error
            if given.name in unfinished_requests(self._manager):
                raise ValueError(
                    f"a request with the name {given.name!r} hasn't finished yet; give another "
                    "request_id"
                )
            if not holds_alone(self._manager, given.tokens):
                raise ValueError(
                    f"the request may need memory for {given.tokens} tokens, more than the cache "
                    "of the manager holds for one request; shorten it, or raise num_blocks of "
                    "ContinuousBatchingConfig"
                )
        self._check_options(options)

    def _enter(self, automaton: TokenAutomaton) -> Place:
        """Put a constraint into the pool, until nobody has the request any more."""
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
        """Nothing is masked by default."""
        int32_tensor.fill_(0)

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Int32[Tensor, "R"]:
        """Find the states of the requests whose next token is due.

        The manager's tensor has one number a request, and a mask takes seven; they are kept here,
        as the scores of these requests come before the next ones are asked for.
        """
        rows, readers, self._states = [], {}, []
        for at, request in enumerate(requests_with_new_token):
            given = request.state.logit_processor_kwargs.get(_NAME)
            if not isinstance(given, _Constrained):
                continue
            output = request.state.to_generation_output()  # with the tokens before a restart
            key = output.request_id, given  # a name may be used again
            readers[key] = self._readers.get(key) or TokenReader(given.automaton)
            tokens = output.generated_tokens
            state = readers[key].state(tokens)
            if state == DEAD:  # where the mask allows nothing but EOS
                request.state.error = (
                    f"the constraint doesn't allow token {tokens[-1]} after the first "
                    f"{len(tokens) - 1}, but a processor after the constraint's allowed it"
                )
            rows.append((at, state, given.budget - len(tokens), *given.place))
            self._states.append(request.state)
        self._readers = readers
        numbers = torch.tensor(rows, dtype=torch.int64, device="cpu").view(len(rows), 7)
        self._rows = on_device(numbers, self._device)
        return torch.zeros(len(requests_with_new_token), dtype=torch.int32, device="cpu")

    def __call__(
        self, scores: Float[Tensor, "R V"], tensor_arg: Int32[Tensor, "M"]
    ) -> Float[Tensor, "R V"]:
        """Set the scores of tokens after which no answer can be finished in time to -inf."""
        rows: Int64[Tensor, "C 7"] = self._rows
        if len(rows) and self._pool is not None:
            at, states, left = rows[:, :3].unbind(1)
            with self._lock:
                self._pool.mask_(scores, rows[:, 3:], states, left, at)
            best = scores[at].amax(dim=1)  # NaN if there is any
            self._end(scores, at, best, (~best.isfinite()).nonzero().squeeze(1).tolist())
        return scores

    def _end(
        self, scores: Float[Tensor, "R V"], at: Int64[Tensor, "C"], best: Tensor, bad: list[int]
    ) -> None:
        """End requests for which no allowed token has a finite score."""
        for number in bad:
            state, row = self._states[number], at[number]
            given: _Constrained = state.logit_processor_kwargs[_NAME]
            state.error = (
                "the model gives probability zero to every token that the constraint allows next"
                if bool(best[number].isneginf())
                else "the model's scores of the next token have NaN or +inf"
            )
            scores[row] = -torch.inf
            scores[row, list(given.automaton.vocabulary.eos_ids)] = 0.0
