"""Middleware for vLLM's OpenAI server that compiles constraints without delaying other requests.

The plugin's checks (`gcd_vllm._frontend`) run on the server's event loop, which can't do anything
else meanwhile. The middleware receives a request earlier, when the server has checked its API key
and reads its body. It compiles the constraint in another process (`gcd._serving.compiler`) and
waits for the result in a thread, so only this request waits. The checks then find the result in the
cache.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gcd._serving.compiler import COMPILERS
from gcd_vllm._admission import NAME, Admission, admission_of
from gcd_vllm._frontend import adopt

_LOG = logging.getLogger("vllm.gcd")
_THREADS = 64  # maximum number of requests that are compiled or wait for a process that compiles
_WARNING = "gcd: %s; new constraints are compiled on the event loop"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class CompilingMiddleware:
    """ASGI middleware that compiles the constraint of a request before the server sees it.

    Start vLLM's server with `--middleware gcd_vllm.CompilingMiddleware`. Without it, constrained
    answers are the same, but all other requests wait while a new constraint is compiled.

    Args:
        app: the application that handles the requests.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._pool = ThreadPoolExecutor(_THREADS, "gcd-compile")
        self._adopts = os.environ.get("GCD_VLLM_RESPONSE_FORMAT") == "1"
        self._marks = [b'"gcd"', *([b"response_format", b"structured_outputs"] * self._adopts)]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a connection to the application, and compile the constraint of its request."""
        if scope["type"] == "lifespan":
            self._pool.submit(COMPILERS.start)
            admission = _admission(scope)
            if admission is not None:
                self._pool.submit(_log_errors, lambda: admission.cache)
        if scope["type"] != "http" or scope["method"] != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        body = bytearray()

        async def read() -> Message:
            """Receive a message of a request; once its body is complete, compile the constraint."""
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
                if not message.get("more_body") and any(mark in body for mark in self._marks):
                    given = bytes(body)
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(
                        self._pool, _log_errors, lambda: self._prepare(scope, given)
                    )
            return message

        await self._app(scope, read, send)

    def _prepare(self, scope: Message, body: bytes) -> None:
        try:
            request = json.loads(body)
            extra = request.get("vllm_xargs") or {}
            text = extra.get(NAME)
        except (ValueError, RecursionError, AttributeError):
            return  # vLLM reports the problem itself
        if text is None and self._adopts:
            text = adopt(_read_wanted(request))
        admission = _admission(scope)
        if admission is not None and isinstance(text, str):
            admission.prepare(text)


def _read_wanted(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the structured outputs of a request, in the form that `_frontend.adopt` reads."""
    found = request.get("structured_outputs")
    if isinstance(found, dict):
        return found
    given = request.get("response_format")
    inner = given.get("json_schema") if isinstance(given, dict) else None
    return {"json": inner.get("schema")} if isinstance(inner, dict) else {}


def _is_json(scope: Message) -> bool:
    kinds = [value for name, value in scope["headers"] if name.lower() == b"content-type"]
    return not kinds or b"json" in kinds[0]


def _admission(scope: Message) -> Admission | None:
    """Return the `Admission` object of a server; None if its configuration isn't found."""
    state = getattr(scope.get("app"), "state", None)
    config = getattr(getattr(state, "engine_client", None), "vllm_config", None)
    if config is None:
        _LOG.warning(_WARNING, "expected the server to have app.state.engine_client.vllm_config")
    return None if config is None else admission_of(config)


def _log_errors(call: Callable[[], Any]) -> None:
    """Call a function; log its errors, which the checks of the request will raise again."""
    try:
        call()
    except Exception as error:
        _LOG.warning(_WARNING, f"{type(error).__name__}: {error}")
