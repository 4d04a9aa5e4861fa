"""Fakes of the objects that vLLM 0.32 hands to processors, with its names and shapes.

Recorded from `vllm/sampling_params.py`, `vllm/v1/sample/logits_processor/interface.py` and
`vllm/v1/worker/gpu/sample/logits_processor/interface.py`; `tests_vllm` runs the same processors
inside of the real engines.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import gcd
from gcd import Vocabulary
from gcd_vllm import CompilingMiddleware, Processor
from gcd_vllm._requests import ConstraintRequest


@dataclass
class SamplingParams:
    """The fields that the plugin reads, with their defaults."""

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_k: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    bad_words: list[str] = field(default_factory=list)
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: Any = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    trace_decode_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None


class Tokenizer:
    """A tokenizer that nothing can be read from but its end."""

    def __init__(self, eos_token_id: int | None) -> None:
        self.eos_token_id = eos_token_id


class VllmConfig:
    """A configuration; `vocabulary` is what the engine would read from its tokenizer."""

    def __init__(self, vocabulary: Vocabulary, *, max_model_len: int = 64, drafts: int = 0) -> None:
        self.vocabulary = vocabulary
        self.num_speculative_tokens = drafts
        self.speculative_config: Any = None
        self.use_v2_model_runner = True
        self.scheduler_config = SimpleNamespace(async_scheduling=False)
        self.model_config = SimpleNamespace(
            max_model_len=max_model_len,
            logits_processors=None,
            get_vocab_size=lambda: vocabulary.size,
        )


class MoveDirectionality(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass(frozen=True)
class BatchUpdate:
    batch_size: int
    removed: list[int]
    added: list[tuple[int, SamplingParams, list[int] | None, list[int]]]
    moved: list[tuple[int, int, MoveDirectionality]]


def v1_processor(config: VllmConfig, *requests: tuple[SamplingParams, Any, list[int]]) -> Any:
    """Return V1's processor with requests in its batch: parameters, prompt and output of each."""
    processor = Processor(config, torch.device("cpu"), False)
    rows = [(row, *request) for row, request in enumerate(requests)]
    processor.update_state(BatchUpdate(len(rows), [], rows, []))
    return processor


class RequestStates:
    """V2's `LogitsProcRequestState`: the runner's buffers, by slot."""

    def __init__(self, slots: int, max_model_len: int, vocab_size: int) -> None:
        self.device = torch.device("cpu")
        self.max_num_reqs, self.vocab_size = slots, vocab_size
        gpu = torch.zeros((slots, max_model_len), dtype=torch.int32)
        self.all_token_ids = SimpleNamespace(gpu=gpu)
        self.prompt_len, self.prefill_len, self.total_len = (_numbers(slots) for _ in range(3))

    def enter(
        self,
        slot: int,
        prompt: list[int],
        output: list[int],
        told: Callable[[], object] = lambda: None,
    ) -> None:
        """Write what the runner does when a request enters, or returns with its output so far.

        Processors are told of it before the tokens are on the device.
        """
        tokens = prompt + output
        self.prompt_len.np[slot] = len(prompt)
        self.prefill_len.np[slot] = self.total_len.np[slot] = len(tokens)
        told()
        self.all_token_ids.gpu[slot] = -1
        self.all_token_ids.gpu[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)

    def commit(self, slot: int, tokens: list[int]) -> None:
        """Write what the runner does after a step."""
        end = int(self.total_len.np[slot])
        self.all_token_ids.gpu[slot, end : end + len(tokens)] = torch.tensor(tokens).int()
        self.total_len.np[slot] += len(tokens)


def _numbers(slots: int) -> SimpleNamespace:
    array = np.zeros(slots, np.int32)
    return SimpleNamespace(np=array, gpu=torch.from_numpy(array))


@dataclass(frozen=True)
class LogitsContext:
    expanded_idx_mapping: torch.Tensor
    idx_mapping: torch.Tensor
    idx_mapping_np: np.ndarray
    expanded_local_pos: torch.Tensor
    input_ids: torch.Tensor
    pos: torch.Tensor
    seq_lens_upper_bound_np: np.ndarray


def v2_context(order: list[int], rows: list[tuple[int, int, int]] | None = None) -> LogitsContext:
    """Return a step of V2.

    Args:
        order: slots of the step.
        rows: slot, number of drafts before it, and token read, of each row; None for one row
            without drafts for each slot.
    """
    rows = rows or [(slot, 0, 0) for slot in order]
    slots, places, read = (torch.tensor(each).int() for each in zip(*rows, strict=True))
    host = np.array(order, np.int32)
    place = torch.zeros(len(rows), dtype=torch.int64)
    return LogitsContext(
        slots, torch.tensor(order).int(), host, places, read, place, np.zeros_like(host)
    )


_LIFTED: dict[str, gcd.TokenAutomaton] = {}


def lifted(text: str, vocabulary: Vocabulary) -> gcd.TokenAutomaton:
    """The automaton of a request's constraint; a text is asked with one vocabulary only."""
    if text not in _LIFTED:
        _LIFTED[text] = gcd.lift(ConstraintRequest.parse(text).language(), vocabulary)
    return _LIFTED[text]


def allowed_after(matcher: gcd.Matcher, draft: list[int], size: int) -> set[int]:
    """The tokens that a matcher allows after a draft; an end where the draft is not allowed.

    A runner's drafts may also contain -1, which is not a token.
    """
    matcher = matcher.copy()
    if not all(token >= 0 and matcher.advance(token) for token in draft):
        return set(matcher.automaton.vocabulary.eos_ids)  # the row's sample is not used
    mask = matcher.mask().view(np.uint32)
    found = {v for v in range(size) if mask[v // 32] >> np.uint32(v % 32) & np.uint32(1)}
    return found or set(matcher.automaton.vocabulary.eos_ids)


def finite(row: torch.Tensor) -> set[int]:
    """The tokens of a row that no mask has taken away."""
    return set(torch.isfinite(row).nonzero().flatten().tolist())


def batches(processor: Any, rng: random.Random, answers: list[Any]) -> Iterator[dict[int, Any]]:
    """Tell V1's processor of its batches; yield the answers in it, by row, at each step.

    Answers come, are preempted, come back and change rows at random, until all are `finished`.
    """
    left, preempted = list(answers), []
    batch: dict[int, Any] = {}
    while left or batch or preempted:
        removed, added, moved = [], [], []
        for row, answer in list(batch.items()):
            if answer.finished or rng.random() < 0.05:
                preempted += [] if answer.finished else [answer]
                removed.append(row)
                del batch[row]
        for row in range(4):
            waiting = preempted or left
            if row not in batch and waiting and rng.random() < 0.7:
                answer = batch[row] = waiting.pop()
                answer.output = list(answer.output)  # the engine makes a new list
                added.append((row, answer.params, answer.prompt, answer.output))
                removed = [each for each in removed if each != row]
        for row in sorted(batch):  # close the gaps, as the engine does
            free = [each for each in range(row) if each not in batch]
            if free:
                batch[free[0]] = batch.pop(row)
                moved.append((row, free[0], MoveDirectionality.UNIDIRECTIONAL))
        if len(batch) > 1 and rng.random() < 0.3:
            here, there = rng.sample(sorted(batch), 2)
            batch[here], batch[there] = batch[there], batch[here]
            moved.append((here, there, MoveDirectionality.SWAP))
        changed = bool(removed or added or moved)
        update = BatchUpdate(len(batch), removed, added, moved) if changed else None
        processor.update_state(update)
        if batch:
            yield batch


class Server:
    """An ASGI application with the middleware, which hands each body to a function.

    Attributes:
        receive: function of the parsed body, whose result is sent; None if there was no body.
    """

    def __init__(
        self, config: VllmConfig, receive: Callable[[Any], list[Any]], **arguments: Any
    ) -> None:
        client = SimpleNamespace(vllm_config=config)
        self.state = SimpleNamespace(engine_client=client, args=SimpleNamespace(**arguments))
        self.handle, self.receive = CompilingMiddleware(self.application), receive

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        for reply in self.receive(json.loads(body) if body else None):
            await send(reply)

    async def post(self, body: Any) -> list[Any]:
        """Send a body in two pieces; return the replies."""
        text, replies = json.dumps(body).encode(), list[Any]()
        pieces = [text[:9], text[9:]]

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(reply: Any) -> None:
            replies.append(reply)

        scope = {"type": "http", "method": "POST", "headers": [], "app": self}
        await self.handle(scope, receive, send)
        return replies
