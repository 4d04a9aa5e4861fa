"""Compilation in another process: no other request waits, and nothing is compiled twice."""

from __future__ import annotations

import asyncio
import json
from asyncio import Queue
from contextlib import suppress
from threading import Event

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gcd
import gcd_vllm._v1  # noqa: F401 (takes seconds, which no test should)
from gcd_vllm import CompilingMiddleware, Processor
from gcd_vllm._admission import COMPILED, Admission, admission_of
from gcd_vllm._compiler import COMPILERS, CompilerError, Compilers
from gcd_vllm._constraint_cache import ConstraintCache
from gcd_vllm._particle_request import PARTICLE
from gcd_vllm._requests import ConstraintRequest
from gcd_vllm._serialization import pack, unpack
from tests.gcd_vllm import fakes
from tests.gcd_vllm.fakes import SamplingParams, VllmConfig, allowed_after, finite, v1_processor
from tests.small_vocabulary import vocabulary

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}
TOKENS = vocabulary()
PACKED = pack(gcd.lift(gcd.regex("a*|b{4}"), TOKENS))


@pytest.fixture
def config(tokens):
    """A configuration of V1."""
    config = VllmConfig(tokens, max_model_len=400)
    config.use_v2_model_runner = False
    return config


@pytest.fixture(scope="module", autouse=True)
def _close():
    yield
    COMPILERS.close()


def refuse_to_compile(self):
    raise AssertionError("compiled again")


class Server(fakes.Server):
    """Validates like vLLM's server."""

    def __init__(self, config):
        super().__init__(config, self.validate)
        self.vllm_config = config

    def validate(self, given):
        params = SamplingParams(max_tokens=given["max_tokens"], extra_args=given["vllm_xargs"])
        try:
            self.check({"prompt_token_ids": [1]}, params)
        except ValueError as error:
            return [error]
        return [params]

    def check(self, prompt, params):
        Processor.validate_params(params)

    async def post(self, constraint, **more):
        xargs = {"gcd": json.dumps(constraint)} | more
        return (await super().post({"max_tokens": 60, "vllm_xargs": xargs}))[0]


def is_lifted_from(reply, language, tokens):
    found = unpack(reply.extra_args[COMPILED], tokens)
    return np.array_equal(found.delta, gcd.lift(language, tokens).delta)


def test_others_do_not_wait_for_a_compile(config, tokens, monkeypatch):
    begun, go_on = Event(), Event()
    compile_ = Compilers.compile

    def slow(self, request, *limits):
        if request.value == "ab":
            begun.set()
            assert go_on.wait(600)
        return compile_(self, request, *limits)

    monkeypatch.setattr(Compilers, "compile", slow)

    async def serve():
        server = Server(config)
        waits = [asyncio.create_task(server.post({"regex": "ab"})) for _ in range(2)]
        await asyncio.to_thread(begun.wait, 600)
        others = [await server.post({"choice": [text]}) for text in "abab"]
        assert not any(task.done() for task in waits)
        go_on.set()
        return [await task for task in waits], others

    try:
        waited, others = asyncio.run(serve())
    finally:
        go_on.set()
    assert all(is_lifted_from(each, gcd.regex("ab"), tokens) for each in waited)
    assert all(isinstance(each, SamplingParams) for each in others)


@pytest.mark.parametrize(("constraint", "more"), [
    ({"json_schema": SCHEMA}, {}),
    ({"choice": ["a", "bc"], "budget": 3}, {PARTICLE: json.dumps({"key": "k"})}),
])  # fmt: skip
def test_a_constraint_is_compiled_once(config, monkeypatch, constraint, more):
    asyncio.run(Server(config).post(constraint, **more))
    monkeypatch.setattr(ConstraintRequest, "language", refuse_to_compile)
    reply = asyncio.run(Server(config).post(constraint, **more))
    assert isinstance(reply, SamplingParams), reply


def test_an_engine_takes_the_language_of_the_frontend(config, tokens, monkeypatch):
    named = {COMPILED: "x"}  # clients can't name a language
    reply = asyncio.run(Server(config).post({"json_schema": SCHEMA}, **named))
    engine = VllmConfig(tokens, max_model_len=400)
    monkeypatch.setattr(ConstraintRequest, "language", refuse_to_compile)
    processor = v1_processor(engine, (reply, [1], []))
    logits = processor.apply(torch.zeros(1, tokens.size))
    matcher = gcd.Matcher(gcd.lift(gcd.json_schema(SCHEMA), tokens), budget=60)
    assert finite(logits[0]) == allowed_after(matcher, [], tokens.size)


@pytest.mark.parametrize("constraint", [{"regex": "("}, {}])
def test_refusals_are_those_of_the_checks(config, tokens, constraint):
    reply = asyncio.run(Server(config).post(constraint))
    with pytest.raises(gcd.ConstraintError) as raised:
        ConstraintCache(tokens).get(ConstraintRequest.parse(json.dumps(constraint)))
    assert str(reply) == str(raised.value)


def test_a_budget_below_the_bound_is_decided_beside_the_loop(config, monkeypatch):
    text = {"choice": ["one", "two"], "budget": 2}
    asyncio.run(Server(config).post(text))
    lifts = []
    monkeypatch.setattr("gcd_vllm._constraint_cache.lift", lambda *_: lifts.append(1))
    reply = asyncio.run(Server(config).post(text))
    assert "needs at least 4" in str(reply)
    assert not lifts


def test_without_another_process_it_compiles_in_this_one(config, tokens, monkeypatch, caplog):
    COMPILERS.close()
    monkeypatch.setattr("gcd_vllm._compiler.sys.executable", "/no/such/file")
    reply = asyncio.run(Server(config).post({"regex": "ab"}))
    assert is_lifted_from(reply, gcd.regex("ab"), tokens)
    assert "delays other requests" in caplog.text


def test_a_process_that_ends_is_replaced():
    request = ConstraintRequest("regex", "a*")
    assert unpack(COMPILERS.compile(request, 10**9, 99, 60.0)) == gcd.regex("a*")
    for process in COMPILERS._idle:
        process._process.kill()
    with pytest.raises(CompilerError, match="ended"):
        COMPILERS.compile(request, 10**9, 99, 60.0)
    with pytest.raises(gcd.ConstraintError, match="states"):
        COMPILERS.compile(ConstraintRequest("regex", "a{200}"), 10**9, 99, 60.0)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("GCD_VLLM_SECONDS", "0.01"), ("GCD_VLLM_WORK", "9"), ("GCD_VLLM_STATES", "9")],
)
def test_a_constraint_over_a_limit_is_refused_with_its_variable(
    config, monkeypatch, variable, value
):
    monkeypatch.setenv(variable, value)
    server = Server(config)
    for _ in range(2):  # the second time, the reason is known
        reply = asyncio.run(server.post(pattern := {"regex": "(a|b)*a(a|b){14}"}))
        assert isinstance(reply, ValueError)
        assert f"raise the server's {variable}" in str(reply)
    with pytest.raises(ValueError, match=variable):
        admission_of(config).cache.get(ConstraintRequest("regex", pattern["regex"]))


def test_unknown_requests_go_through(config):
    async def echo(scope, receive, send):
        await send(await receive())

    async def reply(body, scope):
        found = Queue()

        async def receive():
            return {"type": "http.request", "body": body}

        await CompilingMiddleware(echo)(scope, receive, found.put)
        return found.get_nowait()["body"]

    scope = {"type": "http", "method": "POST", "headers": []}
    for body in (b'{"gcd"', b"", b'{"vllm_xargs": {"gcd": 7}}', b'{"vllm_xargs": {"gcd": "{}"}}'):
        assert asyncio.run(reply(body, scope)) == body
    assert isinstance(admission_of(config), Admission)


@pytest.mark.parametrize(
    "language",
    [gcd.json_schema(SCHEMA, max_bytes=30), gcd.regex("a{40000}")],
)
def test_packed_languages(language):
    packed = pack(language)
    found = unpack(packed)
    assert found == language
    assert (found.max_bytes, found.caveats) == (language.max_bytes, language.caveats)
    with pytest.raises(gcd.ConstraintError, match="packed constraint"):
        unpack(packed[:-1])
    header, _, rest = packed.partition(b"\n")
    with pytest.raises(gcd.ConstraintError, match="packed constraint"):
        unpack(header.replace(b", ", b", 1", 1) + b"\n" + rest)


@given(st.integers(0, 4), st.sampled_from(["", "00", -2, 0, 10**6, "<i4", "<U1", None, [[1]]]))
def test_headers_that_do_not_fit_are_refused(index, wrong):
    header, _, rest = PACKED.partition(b"\n")
    values = json.loads(header)
    values[index] = wrong
    changed = json.dumps(values).encode()
    assume(json.loads(changed) != json.loads(header))
    with suppress(gcd.ConstraintError):
        found = unpack(changed + b"\n" + rest, TOKENS)
        assert isinstance(found, gcd.TokenAutomaton), "another initial state, or longer texts"
        found.check()
