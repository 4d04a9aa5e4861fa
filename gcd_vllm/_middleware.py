"""Middleware for vLLM's OpenAI server that compiles constraints without delaying other requests.

Requests with tools are converted to one constraint (`gcd_vllm._tool_requests`).

The plugin's checks (`gcd_vllm._frontend`) run on the server's event loop, which can't do anything
else meanwhile. The middleware receives a request earlier, when the server has checked its API key
and reads its body. It compiles the constraint in another process (`gcd_vllm._compiler`) and
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
from dataclasses import dataclass
from typing import Any, NamedTuple

from gcd import ConstraintError
from gcd_vllm._admission import NAME, Admission, admission_of
from gcd_vllm._compiler import COMPILERS
from gcd_vllm._frontend import adopt
from gcd_vllm._requests import ConstraintRequest
from gcd_vllm._tool_requests import Format, convert

_LOG = logging.getLogger("vllm.gcd")
_THREADS = 64  # maximum number of requests that are compiled or wait for a process that compiles
_HEADER = b"x-gcd"
_LONGEST = 2000  # characters of the header
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
        self._marks = [
            b'"gcd"',
            b'"tools"',
            *([b"response_format", b"structured_outputs"] * self._adopts),
        ]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a connection to the application, and compile the constraint of its request."""
        if scope["type"] == "lifespan":
            self._pool.submit(COMPILERS.start)
            admission = _admission(scope)
            if admission is not None:
                admission.warm_up()
        if scope["type"] != "http" or scope["method"] != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(receive, send, lambda body: self._prepare_beside(scope, body))
        await self._app(scope, exchange.receive, exchange.send)

    async def _prepare_beside(self, scope: Message, body: bytes) -> _Prepared:
        """Convert a request and compile its constraint, in a thread."""
        if not any(mark in body for mark in self._marks):
            return _Prepared(body)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, lambda: self._prepare(scope, body))
        except ConstraintError as error:  # the server refuses a body without content
            return _Prepared(b"", refusal=str(error))
        except Exception as error:  # vLLM reports what is wrong with such a request
            _LOG.warning(_WARNING, f"{type(error).__name__}: {error}")
            return _Prepared(body)

    def _prepare(self, scope: Message, body: bytes) -> _Prepared:
        try:
            request = json.loads(body)
            text = (request.get("vllm_xargs") or {}).get(NAME)
        except (ValueError, RecursionError, AttributeError):
            return _Prepared(body)  # vLLM reports the problem itself
        admission, form, converted = _admission(scope), Format.of(_state(scope, "args")), None
        if admission is not None and form is not None and isinstance(request.get("tools"), list):
            converted = convert(request, form, admission.cache.vocabulary.special_ids)
        if converted is not None:
            text = converted[0]["vllm_xargs"][NAME]
        elif text is None and self._adopts:
            text = adopt(_read_wanted(request))
        if admission is None or not isinstance(text, str):
            return _Prepared(body)
        try:
            admission.cache.prepare(ConstraintRequest.parse(text))
        except ConstraintError:
            pass  # raised below, or by the checks of the request
        except Exception as error:
            _LOG.warning(_WARNING, f"{type(error).__name__}: {error}")
        if converted is None:
            return _Prepared(body)
        request, report = converted
        known = admission.cache.get(ConstraintRequest.parse(text))
        unchecked = [f"; unchecked={caveat}" for caveat in known.caveats]
        return _Prepared(json.dumps(request).encode(), "".join([report, *unchecked]))


class _Prepared(NamedTuple):
    """Body of a request for the server, a report of what is enforced, or why it is refused."""

    body: bytes
    report: str = ""
    refusal: str = ""


@dataclass
class _Exchange:
    """Request and response of a connection; `_prepare` compiles, and converts a body with tools."""

    _receive: Receive
    _send: Send
    _prepare: Callable[[bytes], Awaitable[_Prepared]]
    _prepared: _Prepared | None = None

    async def receive(self) -> Message:
        """Receive the whole body of a request, convert it, and compile its constraint."""
        body, message = bytearray(), await self._receive()
        if self._prepared is not None:
            return message
        while message["type"] == "http.request" and message.get("more_body"):
            body.extend(message.get("body", b""))
            message = await self._receive()
        if message["type"] != "http.request":
            return message
        self._prepared = await self._prepare(bytes(body) + message.get("body", b""))
        return {**message, "body": self._prepared.body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Send a part of the response, with a header that reports what is enforced."""
        _, report, refusal = self._prepared or _Prepared(b"")
        if report and message["type"] == "http.response.start":
            value = report[:_LONGEST].encode("ascii", "replace")
            message = {**message, "headers": [*message.get("headers", ()), (_HEADER, value)]}
        if not refusal:
            await self._send(message)
        elif message["type"] == "http.response.start":  # replaces the server's response
            error = {"message": refusal, "type": "BadRequestError", "param": None, "code": 400}
            body = json.dumps({"error": error}).encode()
            length = (b"content-length", b"%d" % len(body))
            headers = [(b"content-type", b"application/json"), length]
            await self._send({**message, "status": 400, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})


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
    config = getattr(_state(scope, "engine_client"), "vllm_config", None)
    if config is None:
        _LOG.warning(_WARNING, "expected the server to have app.state.engine_client.vllm_config")
    return None if config is None else admission_of(config)


def _state(scope: Message, name: str) -> Any:
    """Return an attribute of the server's state; None if there is none."""
    return getattr(getattr(scope.get("app"), "state", None), name, None)
