"""Delay of a server's event loop by requests with new schemas, with and without the middleware.

    OMP_NUM_THREADS=1 python -m benchmarks.event_loop FILE.tiktoken --schemas FOLDER --every 6

An ASGI application makes the checks of vLLM's server (`gcd_vllm`'s `validate_params` on the event
loop), and receives one request for each schema. Meanwhile a task sleeps for a millisecond again and
again. *Held* is the processor time of the loop's thread between two ends of its sleep. *Late* is
the time by which a sleep takes longer than a millisecond, which includes delays by other work of
the machine. For both, the table has the largest value during each request. *Request* is the time
until the checks were made.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from benchmarks.common import head, line, read_ranks, with_ranks
from benchmarks.first_mask import percentiles
from gcd import Vocabulary
from gcd_vllm import CompilingMiddleware, Processor
from gcd_vllm._admission import Admission
from gcd_vllm._compiler import COMPILERS

BUDGET = 4096  # tokens
SLEEP = 0.001  # seconds


class Delay(NamedTuple):
    """Milliseconds of one request."""

    held: float
    late: float
    request: float


class Config:
    """The fields of vLLM's configuration that the checks read."""

    speculative_config = None
    scheduler_config = SimpleNamespace(async_scheduling=False)

    use_v2_model_runner = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.model_config = SimpleNamespace(
            max_model_len=BUDGET, get_vocab_size=lambda: vocabulary.size
        )


class Params(SimpleNamespace):
    """The fields of vLLM's `SamplingParams` that the checks read, without values."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Server:
    """ASGI application that makes the checks of vLLM's server."""

    def __init__(self, config: Config, *, beside: bool) -> None:
        self.vllm_config = config
        self.state = SimpleNamespace(engine_client=SimpleNamespace(vllm_config=config))
        self._handle: Any = CompilingMiddleware(self._check) if beside else self._check

    async def _check(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        given = json.loads(message["body"])
        params = Params(max_tokens=BUDGET, extra_args=given["vllm_xargs"], logit_bias=None)
        try:
            self._validate({"prompt_token_ids": [1]}, params)
            await send(True)
        except ValueError:
            await send(False)

    def _validate(self, prompt: Any, params: Params) -> None:
        Processor.validate_params(params)

    async def post(self, schema: Any) -> bool:
        """Send one request; return whether it is admitted."""
        constraint = json.dumps({"json_schema": schema})
        body = json.dumps({"vllm_xargs": {"gcd": constraint}}).encode()
        replies: list[bool] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(reply: bool) -> None:
            replies.append(reply)

        scope = {"type": "http", "method": "POST", "headers": [], "app": self}
        await self._handle(scope, receive, send)
        return replies[0]


async def measure(server: Server, schemas: list[Any]) -> list[Delay]:
    """Send all requests, one after the other; return the delays of those that were admitted."""
    await server.post({"type": "string"})  # reads the vocabulary
    found = []
    for schema in schemas:
        begin = time.perf_counter()
        task = asyncio.create_task(server.post(schema))
        held = late = 0.0
        while not task.done():
            asked, busy = time.perf_counter(), time.thread_time()
            await asyncio.sleep(SLEEP)
            held = max(held, time.thread_time() - busy)
            late = max(late, time.perf_counter() - asked - SLEEP)
        if task.result():
            found.append(Delay(*(1e3 * each for each in (held, late, time.perf_counter() - begin))))
    return found


def table(results: dict[str, list[Delay]]) -> Iterator[str]:
    """Print rows of percentiles."""
    for index, name in enumerate(Delay._fields):
        yield head(f"{name}, ms", "admitted", "median", "90%", "95%", "99%", "worst")
        for label, delays in results.items():
            yield line(label, len(delays), *percentiles([each[index] for each in delays]))
        yield ""


def main() -> None:
    """Parse the command line and run."""
    parser = with_ranks(__doc__)
    parser.add_argument("--schemas", type=Path, required=True, help="folder of schemas")
    parser.add_argument("--every", type=int, default=6, help="use every n-th schema")
    arguments: argparse.Namespace = parser.parse_args()
    warnings.simplefilter("ignore")
    vocabulary = read_ranks(arguments.ranks)
    Admission._vocabulary = lambda self: vocabulary  # type: ignore[method-assign]
    paths = sorted(arguments.schemas.glob("*.json"))[:: arguments.every]
    schemas = [json.loads(path.read_text("utf-8-sig"))["schema"] for path in paths]
    results = {}
    for label, beside in (("without the middleware", False), ("with it", True)):
        config = Config(vocabulary)  # and so other caches
        results[label] = asyncio.run(measure(Server(config, beside=beside), schemas))
    COMPILERS.close()
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
