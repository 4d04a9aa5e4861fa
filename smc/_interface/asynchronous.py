"""Asynchronous sampling: a coroutine, and a stream of the text that all answers have in common.

Both run `smc.sample` in a thread, so that the event loop continues. If the task is canceled,
sampling stops at its next step, and the task ends after that.

**Certain text.** A step copies and extends particles, but never changes their existing tokens.
Therefore all answers of the posterior begin with the longest common beginning of all current
answers that have positive weight, complete or not. With a single particle, this is all of its text.
`smc.stream` yields these bytes as soon as they are certain, together with the JSON values that are
complete within them.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

from torch import Tensor

from gcd import TokenAutomaton, Vocabulary
from smc._inference.algorithms import AUTO
from smc._inference.observation import Observation, Population, Watch
from smc._interface.interface import sample
from smc._interface.json_pieces import JSONReader, Value
from smc._models.protocol import LanguageModel, Prompt
from smc._results.posterior import Posterior


async def sample_async(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    constraint: TokenAutomaton | Sequence[TokenAutomaton],
    **options: Any,
) -> list[Posterior]:
    """Run `smc.sample` in a thread, and await its result.

    If the task is canceled, sampling stops at its next step without a result. The task waits for
    this step, and then ends with `asyncio.CancelledError`. To get answers by a certain time, pass
    `deadline` instead, or pass an event as `cancel` and set it.

    Args:
        lm, prompts, constraint: as for `smc.sample`.
        options: keyword arguments of `smc.sample` except `abandon`.

    Raises:
        ValueError: an argument is invalid. Other errors of `smc.sample` are raised, too.
    """
    abandon = Event()
    call = partial(sample, lm, prompts, constraint, abandon=abandon, **options)
    thread = asyncio.get_running_loop().run_in_executor(None, call)
    thread.add_done_callback(_look_at)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        abandon.set()
        await asyncio.wait([thread])
        raise


def _look_at(thread: asyncio.Future[Any]) -> None:
    """Retrieve the thread's error, so that asyncio doesn't report the error as unhandled."""
    if not thread.cancelled():
        thread.exception()


@dataclass(frozen=True)
class Part:
    """The next part of an answer that `smc.stream` yields.

    Attributes:
        text: the text that follows the text of the previous parts.
        values: pairs of a JSON pointer and a value, for each JSON value that this part completes.
            Nested values come before the value that contains them.
        posterior: the posterior in the last part; None in earlier parts.
    """

    text: str
    values: tuple[Value, ...]
    posterior: Posterior | None = None


async def stream(
    lm: LanguageModel, prompt: Prompt, constraint: TokenAutomaton, **options: Any
) -> AsyncIterator[Part]:
    """Sample answers to one prompt, and yield their common beginning as soon as it is certain.

    The texts of all parts together are the longest common beginning of all answers of the
    posterior. With one particle, or if all answers agree, this is the whole answer. Each JSON value
    is in exactly one part. The last part has the posterior, which contains the complete answers.

    `algorithm="auto"` means SMC here. The prefixes of the discrete filter are all different, so
    their common beginning is short until the end.

    Args:
        lm, prompt, constraint: as for `smc.sample`, with a single prompt.
        options: keyword arguments of `smc.sample` except `observe`, `finished`, `abandon`, and
            `certify`, which finds answers after sampling.

    Raises:
        ValueError: `certify` was passed, or another argument is invalid. Other errors of
            `smc.sample` are raised, too.
    """
    if options.get("certify") is not None:
        raise ValueError(
            f"expected smc.stream without certify, got certify={options['certify']!r}, which could "
            "find answers that don't begin with the streamed text; use smc.sample_async instead"
        )
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()

    def send(certain: bytes | None) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, certain)

    if options.get("algorithm", AUTO) == AUTO:
        options["algorithm"] = "smc"
    watch = _watch(lm.vocabulary, send)
    call = sample_async(lm, [prompt], constraint, observe=lambda _: watch, **options)
    task = asyncio.ensure_future(call)
    task.add_done_callback(lambda _: queue.put_nowait(None))
    reader, decoder = JSONReader(), codecs.getincrementaldecoder("utf-8")("replace")
    known = b""
    try:
        while (certain := await queue.get()) is not None:
            text, known = decoder.decode(certain[len(known) :]), certain
            values = tuple(reader.feed(text))
            if text or values:
                yield Part(text, values)
        (posterior,) = await task
        certain = _common(posterior.answers) if posterior.answers else known
        is_whole = len(posterior.answers) == 1
        text = decoder.decode(certain[len(known) :], final=is_whole)
        yield Part(text, tuple(reader.feed(text, is_end=is_whole)), posterior)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


def _watch(vocabulary: Vocabulary, send: Callable[[bytes], None]) -> Watch:
    """Return an observer of steps that sends the certain text whenever it becomes longer."""
    # The common beginning of the complete answers that are no longer in the population.
    ended: bytes | None = None
    sent = b""

    def watch(step: Observation) -> None:
        nonlocal ended, sent
        complete = [] if step.ended is None else _texts(step.ended, vocabulary)
        if complete:
            ended = _common(complete if ended is None else [ended, *complete])
        texts = _texts(step.after, vocabulary)
        certain = _common([*texts, *([] if ended is None else [ended])])
        if len(certain) > len(sent):
            sent = certain
            send(certain)

    return watch


def _texts(population: Population, vocabulary: Vocabulary) -> list[bytes]:
    """Return the bytes of every sequence with positive weight.

    Tokens after the end of a sequence are -1.
    """
    alive: Tensor = ~population.log_weight.isneginf()
    rows = population.tokens[alive].tolist()
    names = vocabulary.token_bytes
    return [b"".join(names[token] for token in row if token >= 0) for row in rows]


def _common(texts: Sequence[bytes]) -> bytes:
    """Return the longest common beginning of some texts; empty if there are no texts."""
    if not texts:
        return b""
    low, high = min(texts), max(texts)
    pairs = enumerate(zip(low, high, strict=False))
    return low[: next((i for i, (one, other) in pairs if one != other), min(len(low), len(high)))]
