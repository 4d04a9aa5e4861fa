"""Sampling beside an event loop: one call to await, and one that hands out what is certain.

Both run `smc.sample` in a thread, so that the loop goes on. Cancelling the task abandons sampling:
the thread ends at its next step, and the task with it.

**What is certain.** Particles are copied and extended, never changed. So the bytes with which all
answers of positive weight begin, running and complete ones, are those with which every answer of
the posterior will begin; under one particle that is all it has written. `smc.stream` hands them out
as soon as they are certain, and the JSON values that are complete in them.
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

from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary
from smc.algorithms import AUTO
from smc.interface import sample
from smc.json_pieces import JSONReader, Value
from smc.models.protocol import LanguageModel, Prompt
from smc.observation import Observation, Population, Watch
from smc.posterior import Posterior


async def sample_async(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    constraint: TokenAutomaton | Sequence[TokenAutomaton],
    **options: Any,
) -> list[Posterior]:
    """Do what `smc.sample` does in a thread, and await it.

    If the task is cancelled, sampling is abandoned: the thread ends at its next step, for which the
    task waits before it ends with `asyncio.CancelledError`. For answers by a certain time give
    `deadline` instead, or set the event given as `cancel`.

    Args:
        lm, prompts, constraint: as for `smc.sample`.
        options: the keyword arguments of `smc.sample`, but `abandon`.

    Raises:
        ValueError: and all else that `smc.sample` raises.
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
    """Take note of an error, which asyncio reports where nobody does."""
    if not thread.cancelled():
        thread.exception()


@dataclass(frozen=True)
class Part:
    """Something that has become certain of an answer; see `stream`.

    Attributes:
        text: what follows the text of the parts before.
        values: JSON values that are complete now, with their JSON pointers, inner ones first.
        posterior: the posterior, in the last part; None before.
    """

    text: str
    values: tuple[Value, ...]
    posterior: Posterior | None = None


async def stream(
    lm: LanguageModel, prompt: Prompt, constraint: TokenAutomaton, **options: Any
) -> AsyncIterator[Part]:
    """Sample answers to one prompt, and yield what all of them agree on, as soon as it is certain.

    The texts of all parts together are the longest beginning that all answers of the posterior have
    in common; with one particle, or where all agree, that is the whole answer. A value is in
    exactly one part. The last part has the posterior, and so the rest of each answer.

    `algorithm="auto"` is SMC here: the prefixes of the discrete filter are all different, so they
    agree on little before the end.

    Args:
        lm, prompt, constraint: as for `smc.sample`, but for one prompt.
        options: the keyword arguments of `smc.sample`, but `observe`, `finished`, `abandon` and
            `certify`, which finds answers after sampling.

    Raises:
        ValueError: `certify` is given; and all else that `smc.sample` raises.
    """
    if options.get("certify") is not None:
        raise ValueError(
            f"expected no certify in smc.stream, got {options['certify']!r}: answers that are "
            "found after sampling need not begin with what was certain; use smc.sample_async"
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
    """Return what is shown every step, and sends the certain bytes where there are more of them."""
    ended: bytes | None = (
        None  # the common beginning of complete answers that take no part any more
    )
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
    """Return the bytes of all sequences of positive weight; tokens beyond the length are -1."""
    alive: Tensor = ~population.log_weight.isneginf()
    rows = population.tokens[alive].tolist()
    names = vocabulary.token_bytes
    return [b"".join(names[token] for token in row if token >= 0) for row in rows]


def _common(texts: Sequence[bytes]) -> bytes:
    """Return the longest common beginning; nothing for no texts."""
    if not texts:
        return b""
    low, high = min(texts), max(texts)
    pairs = enumerate(zip(low, high, strict=False))
    return low[: next((i for i, (one, other) in pairs if one != other), min(len(low), len(high)))]
