"""The OpenAI server with the plugin: `vllm serve`, and the client `openai`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tests_vllm.cases import CONSTRAINTS, PERSON, TOOLS, asked, is_valid

if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
    pytest.skip("`make vllm` runs it separately", allow_module_level=True)

CONCURRENT = 50
BUDGETS = {"json_schema": (20, 24, 40), "regex": (4, 9), "choice": (4, 16), "tools": (30, 40),
           "segments": (20, 30), "sql": (30, 40), "grammar": (5, 9)}  # fmt: skip
# Answers of 61 tokens after prompts of about 40, so each needs 4 of 20 blocks. Requests
# start with 2, so ten start at once, and some are preempted whatever the time takes.
LONG = [({"regex": "[0-9]{60}"}, 70, "at once")] * 16


@pytest.fixture(scope="module")
def url(smollm2, tmp_path_factory):
    """A server with room for the keys and values of few requests, so that some are preempted."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", smollm2,
        "--served-model-name", "smollm2", "--dtype", "float32", "--max-model-len", "128",
        "--max-num-seqs", "16", "--port", str(port), "--enforce-eager", "--block-size", "32",
        "--num-gpu-blocks-override", "20", "--enable-auto-tool-choice",
        "--tool-call-parser", "hermes", "--middleware", "gcd_vllm.CompilingMiddleware",
    ]  # fmt: skip
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        base = f"http://127.0.0.1:{port}"
        for _ in range(900):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{base}/health").close()
                break
            if server.poll() is not None:
                break
            time.sleep(1)
        else:
            pytest.fail(log.read_text()[-3000:])
        assert server.poll() is None, log.read_text()[-3000:]
        yield base
    finally:
        server.terminate()
        server.wait(60)


def client(url):
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=1800, max_retries=0)


def arguments(constraint, budget, **more):
    message = {"role": "user", "content": "Describe Ada Lovelace."}
    return {
        "model": "smollm2", "messages": [message], "max_tokens": budget, "temperature": 0.8,
        "extra_body": {"vllm_xargs": asked(constraint)},
    } | more  # fmt: skip


async def asked_once(api, constraint, budget, how):
    """Ask in one of three ways; the text, and why it ended, or None if it was cancelled."""
    given = arguments(constraint, budget)
    if how == "at once":
        found = await api.chat.completions.create(**given)
        return found.choices[0].message.content, found.choices[0].finish_reason
    stream = await api.chat.completions.create(**given, stream=True)
    text, reason = "", None
    async for part in stream:
        if not part.choices:
            continue
        text += part.choices[0].delta.content or ""
        reason = part.choices[0].finish_reason or reason
        if how == "cancelled" and text:
            await stream.close()
            return None
    return text, reason


def test_concurrent_requests_streaming_and_not_some_cancelled_some_preempted(url):
    async def everything():
        cases = LONG.copy()
        for i in range(CONCURRENT):
            constraint = CONSTRAINTS[i % len(CONSTRAINTS)]
            budgets = BUDGETS[next(iter(constraint))]
            how = ("at once", "streaming", "streaming", "at once", "cancelled")[i // 5 % 5]
            cases.append((constraint, budgets[i // 5 % len(budgets)], how))
        async with client(url) as api:
            found = await asyncio.gather(*(asked_once(api, *case) for case in cases))
        return zip(cases, found, strict=True)

    finished = 0
    for (constraint, _, how), answer in asyncio.run(everything()):
        if how == "cancelled":
            continue
        text, reason = answer
        assert reason == "stop", (constraint, text)
        assert is_valid(constraint, text), (constraint, text)
        finished += 1
    assert finished == len(LONG) + CONCURRENT * 4 // 5
    metrics = urllib.request.urlopen(f"{url}/metrics").read().decode()
    preempted = [
        each for each in metrics.splitlines() if each.startswith("vllm:num_preemptions_total")
    ]
    assert sum(float(each.rpartition(" ")[2]) for each in preempted) > 0


def test_a_parser_of_vllm_reads_tool_calls(url):
    constraint = {"tools": TOOLS, "options": {"style": "hermes"}}

    async def ask():
        async with client(url) as api:
            given = arguments(constraint, 40, tools=TOOLS, tool_choice="auto")
            return await api.chat.completions.create(**given)

    (choice,) = asyncio.run(ask()).choices
    calls = [
        {"name": call.function.name, "arguments": json.loads(call.function.arguments)}
        for call in choice.message.tool_calls
    ]
    assert choice.finish_reason == "tool_calls"
    assert is_valid({"tools": TOOLS}, json.dumps(calls))


FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def test_an_agent_with_tools_and_a_response_schema(url):
    """A client sends nothing of this library; each call and each answer is finished and valid."""

    async def ask(api, choice, is_streamed, seed):
        given = arguments({}, 45, tools=TOOLS, tool_choice=choice, response_format=FORMAT)
        del given["extra_body"]
        given |= {"seed": seed, "parallel_tool_calls": False}
        if not is_streamed:
            raw = await api.chat.completions.with_raw_response.create(**given)
            assert raw.headers["x-gcd"].startswith("calls=hermes; choice=")
            message = raw.parse().choices[0].message
            calls = [call.function for call in message.tool_calls or ()]
            return [(call.name, call.arguments) for call in calls], message.content or ""
        content, name, text = "", None, ""
        async for part in await api.chat.completions.create(**given, stream=True):
            for delta in (each.delta for each in part.choices):
                content += delta.content or ""
                for call in delta.tool_calls or ():
                    name = call.function.name or name
                    text += call.function.arguments or ""
        return [(name, text)] if name else [], content

    async def ask_all():
        async with client(url) as api:
            return await asyncio.gather(*(
                ask(api, choice, is_streamed, seed)
                for choice in ("auto", "required", NAMED)
                for is_streamed in (False, True)
                for seed in range(4)
            ))  # fmt: skip

    found = asyncio.run(ask_all())
    for index, (calls, content) in enumerate(found):
        assert calls or index < 8
        if calls:
            ((name, text),) = calls
            assert is_valid(
                {"tools": TOOLS}, json.dumps([{"name": name, "arguments": json.loads(text)}])
            )
        else:
            assert is_valid({"json_schema": PERSON}, content)


def test_wrong_tools_get_status_400(url):
    from openai import BadRequestError

    async def ask():
        async with client(url) as api:
            named = NAMED | {"function": {"name": "unknown"}}
            given = arguments({}, 45, tools=TOOLS, tool_choice=named)
            del given["extra_body"]
            return await api.chat.completions.create(**given)

    with pytest.raises(BadRequestError, match="get_weather, got 'unknown'"):
        asyncio.run(ask())


def test_a_bad_request_among_good_ones(url):
    from openai import BadRequestError

    async def ask():
        async with client(url) as api:
            budgets = [16] * 10 + [1] + [16] * 10
            requests = [arguments(CONSTRAINTS[2], budget) for budget in budgets]
            calls = [api.chat.completions.create(**each) for each in requests]
            return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(ask())
    assert isinstance(found.pop(10), BadRequestError)
    assert all(is_valid(CONSTRAINTS[2], each.choices[0].message.content) for each in found)


def test_a_bad_request_is_an_error_that_says_why(url):
    from openai import BadRequestError

    async def ask(**changes):
        async with client(url) as api:
            return await api.chat.completions.create(
                **arguments({"json_schema": PERSON}, 24, **changes)
            )

    with pytest.raises(BadRequestError, match=r"needs at least \d+ tokens .* budget is 5"):
        asyncio.run(ask(max_tokens=5))
    with pytest.raises(BadRequestError, match="stop="):
        asyncio.run(ask(stop=["}"]))
    assert asyncio.run(ask()).choices[0].finish_reason == "stop"
