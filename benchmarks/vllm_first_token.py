"""Time to the first token of requests with new schemas, and pauses of another stream meanwhile.

    P=.venv-vllm/bin/python; S=../shared/data/public_schemas
    VLLM_CPU_KVCACHE_SPACE=1 $P -m benchmarks.vllm_first_token xgrammar --model DIR --schemas $S
    VLLM_CPU_KVCACHE_SPACE=1 $P -m benchmarks.vllm_first_token guidance --model DIR --schemas $S

Starts vLLM's OpenAI server with one of vLLM's backends of structured outputs and with the plugin of
this project and its middleware, so both sides run in one server. Every schema is new to the server,
and nothing is kept on disk. For each schema, the sides ask in turns for one streamed answer, and
stop after the first token. Requests without a constraint show what the server itself takes.

With `--tools`, the sides are chat requests with the schema as a response format, and with a tool of
this schema beside a small response format. Both are masked by the plugin. Afterwards, the tokens
per second of 8 such requests at once are compared, in turns.

Meanwhile another client streams text without a constraint. The longest pause between two tokens of
this stream, while a request waits for its first token, shows whether the compile delays others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import head, line, public_schemas

PROMPT = "Write a JSON document: "
BUDGET = 512  # tokens, enough for a shortest answer of most schemas
WARM_UP = 3  # schemas before the first one that counts
AT_ONCE = 8  # requests, for tokens per second
TOOLS = ["schema", "tools"]  # sides with `--tools`
DIGITS = {
    "type": "object", "properties": {"digits": {"type": "string", "pattern": "^[0-9]{48}$"}},
    "required": ["digits"], "additionalProperties": False,
}  # fmt: skip
ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


class Taken(NamedTuple):
    """One request: seconds to its first token, and the longest pause of the other stream."""

    first: float
    pause: float


@contextlib.contextmanager
def server(model: str, backend: str) -> Iterator[str]:
    """Start a server; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = json.dumps({"backend": backend, "disable_any_whitespace": True})
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--served-model-name", "model", "--dtype", "float32", "--max-model-len", "4096",
        "--max-num-seqs", "8", "--port", str(port), "--enforce-eager",
        "--structured-outputs-config", config,
        "--middleware", "gcd_vllm.CompilingMiddleware",
        "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    ]  # fmt: skip
    with tempfile.NamedTemporaryFile("w", suffix=".log", delete=False) as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health").close()
                break
            if process.poll() is not None:
                raise SystemExit(f"the server ended; see {log.name}")
            time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


class Stream:
    """Another client's stream of text without a constraint, which never ends."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.times: list[float] = []

    async def run(self) -> None:
        """Note the time of every token until cancelled."""
        while True:
            stream = await self._api.completions.create(
                model="model", prompt="Once upon a time", max_tokens=3000, temperature=1.0,
                stream=True, extra_body={"ignore_eos": True},
            )  # fmt: skip
            async for _ in stream:
                self.times.append(time.perf_counter())

    def longest_pause(self, begin: float, end: float) -> float:
        """Return the longest time between two tokens, one of which is in this interval."""
        pauses = [
            after - before
            for before, after in zip(self.times, self.times[1:], strict=False)
            if after >= begin and before <= end
        ]
        return max(pauses, default=end - begin)


def constraints(side: str, schema: Any) -> dict[str, Any]:
    """Return the fields that ask a side for a schema."""
    if side == "no constraint":
        return {}
    if side == "ours":
        return {"vllm_xargs": {"gcd": json.dumps({"json_schema": schema})}}
    return {"structured_outputs": {"json": schema}}


async def ask(api: Any, side: str, schema: Any, other: Stream) -> Taken:
    """Ask for an answer up to its first token."""
    from openai import APIError

    begin = time.perf_counter()
    try:
        if side in TOOLS:
            stream = await chat(api, side, schema, max_tokens=BUDGET, stream=True)
        else:
            stream = await api.completions.create(
                model="model", prompt=PROMPT, max_tokens=BUDGET, temperature=1.0, stream=True,
                extra_body=constraints(side, schema),
            )  # fmt: skip
        async for _ in stream:
            break
    except APIError:  # the side doesn't take the schema
        return Taken(math.nan, math.nan)
    end = time.perf_counter()
    await stream.close()
    count = len(other.times)
    while len(other.times) < count + 3:  # the pause may end after the first token
        await asyncio.sleep(0.01)
    return Taken(end - begin, other.longest_pause(begin, end))


async def chat(api: Any, side: str, schema: Any, **options: Any) -> Any:
    """Ask for an answer with a schema, or for a call of a tool with it or a small answer."""
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    if side == "tools":
        function = {"name": "f", "description": "", "parameters": schema}
        wanted["json_schema"] = {"name": "a", "schema": ANSWER}
        options["tools"] = [{"type": "function", "function": function}]
    return await api.chat.completions.create(
        model="model", messages=[{"role": "user", "content": PROMPT}], temperature=1.0,
        response_format=wanted, **options,
    )  # fmt: skip


async def compare_throughput(url: str, turns: int = 8) -> None:
    """Print the tokens per second of calls, relative to answers, of the same number of digits."""
    ratios, rates = [], dict[str, float]()
    async with clients(url) as (api, _):
        for turn in range(turns + 1):  # the first turn compiles
            for side in TOOLS if turn % 2 else TOOLS[::-1]:
                one = {"tool_choice": "required", "parallel_tool_calls": False}
                more = one if side == "tools" else {}
                begin = time.perf_counter()
                found = await asyncio.gather(
                    *(chat(api, side, DIGITS, max_tokens=BUDGET, **more) for _ in range(AT_ONCE))
                )
                tokens = sum(each.usage.completion_tokens for each in found)
                rates[side] = tokens / (time.perf_counter() - begin)
            if turn:
                ratios.append(rates["tools"] / rates["schema"])
    middle = statistics.median(ratios)
    print(f"RESULT tokens per second, tools / schema: median {middle:.2f} of {len(ratios)} turns, "
          f"{min(ratios):.2f} to {max(ratios):.2f}")  # fmt: skip


async def measure(url: str, schemas: list[Any], sides: list[str]) -> dict[str, list[Taken]]:
    """Ask all sides for all schemas, in turns."""
    found: dict[str, list[Taken]] = {side: [] for side in sides}
    async with clients(url) as (api, other_api):
        other = Stream(other_api)
        background = asyncio.create_task(other.run())
        while len(other.times) < 10:
            await asyncio.sleep(0.1)
            if background.done():
                background.result()
        for number, schema in enumerate(schemas):
            for side in sides if number % 2 else sides[::-1]:
                taken = await ask(api, side, schema, other)
                if number >= WARM_UP:
                    found[side].append(taken)
                    shown = [f"{1000 * each:.0f}" for each in taken]
                    print(f"RESULT {number} {side}: first token, pause: {shown} ms", flush=True)
        background.cancel()
    return found


@contextlib.asynccontextmanager
async def clients(url: str) -> AsyncIterator[tuple[Any, Any]]:
    """Make two clients."""
    from openai import AsyncOpenAI

    given: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "timeout": 1800}
    async with AsyncOpenAI(**given, max_retries=0) as a, AsyncOpenAI(**given, max_retries=0) as b:
        yield a, b


def main() -> None:
    """Start the server, measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("backend", choices=["xgrammar", "guidance"])
    parser.add_argument("--model", required=True, help="directory of a model")
    parser.add_argument("--schemas", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100, help="schemas")
    parser.add_argument("--tools", action="store_true", help="compare tools with a schema")
    options = parser.parse_args()
    if options.tools:  # of schemas as response formats
        os.environ["GCD_VLLM_RESPONSE_FORMAT"] = "1"
    every = public_schemas(options.schemas, shuffled=True)
    schemas = [schema for _, schema in islice(every, WARM_UP + options.count)]
    sides = ["no constraint", *(TOOLS if options.tools else ["ours", options.backend])]
    with server(options.model, options.backend) as url:
        found = asyncio.run(measure(url, schemas, sides))
        show(found, options.count)
        if options.tools:
            asyncio.run(compare_throughput(url))


def show(found: dict[str, list[Taken]], count: int) -> None:
    """Print the table of all sides."""
    sides = list(found)
    everywhere = [
        number
        for number in range(count)
        if not any(math.isnan(found[side][number].first) for side in sides)
    ]
    print(f"RESULT {len(everywhere)} of {count} schemas answered on both sides, in ms\n")
    print("RESULT", head("", "answered", *COLUMNS).replace("\n", "\nRESULT "))
    for side in sides:
        answered = sum(not math.isnan(each.first) for each in found[side])
        mine = [found[side][number] for number in everywhere]
        print("RESULT", line(side, answered, *summary(mine)))


COLUMNS = (
    "first token, median", "90%", "95%", "worst",
    "longest pause of the other stream, median", "90%", "95%", "worst",
)  # fmt: skip


def summary(taken: list[Taken]) -> list[str]:
    """Return quantiles in milliseconds, for `COLUMNS`."""
    cells = []
    for values in zip(*taken, strict=True):
        ordered = sorted(1000 * value for value in values)
        at = [ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in (0.9, 0.95)]
        cells += [f"{each:.0f}" for each in (statistics.median(ordered), *at, ordered[-1])]
    return cells


if __name__ == "__main__":
    main()
