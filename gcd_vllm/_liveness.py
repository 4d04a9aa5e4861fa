"""Detection of a vLLM engine whose process has ended.

`vllm.LLM` runs its engine in another process by default. If that process is killed, vLLM 0.32 marks
its client as dead. But it doesn't wake a thread that already waits for the engine's outputs, or for
the result of `collective_rpc`, so this thread would wait forever. `watch` wakes it with an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import InvalidStateError
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

_INTERVAL = 0.25  # seconds between two checks


def is_dead(llm: Any) -> bool:
    """Return whether the process of this engine has ended."""
    resources = getattr(_client(llm), "resources", None)
    return bool(getattr(resources, "engine_dead", False))


@contextmanager
def watch(llm: Any) -> Iterator[None]:
    """Raise an error in calls of the engine within this context if the engine's process ends.

    An engine in the same process has no such client and isn't watched.
    """
    client, over = _client(llm), Event()
    if not hasattr(getattr(client, "resources", None), "engine_dead"):
        yield
        return

    def watch() -> None:
        while not over.wait(_INTERVAL):
            if is_dead(llm):
                _wake(client)

    thread = Thread(target=watch, name="gcd_vllm.watched", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _client(llm: Any) -> Any:
    return getattr(getattr(llm, "llm_engine", None), "engine_core", None)


def _wake(client: Any) -> None:
    """Raise an error in the thread that waits for the engine's outputs or for a result."""
    error = RuntimeError("the engine's process has ended; its log may say why")
    if client.outputs_queue.empty():
        client.outputs_queue.put_nowait(error)
    for future in list(client.utility_results.values()):
        with suppress(InvalidStateError):  # its result has arrived in the meantime
            if not future.done():
                future.set_exception(error)
