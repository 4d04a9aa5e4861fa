"""Asynchronous sampling: a coroutine that runs `smc.sample` in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from threading import Event
from typing import Any

from gcd import TokenAutomaton
from smc._interface.interface import sample
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
