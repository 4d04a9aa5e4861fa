"""Requests with tools become one constraint in the server's format; wrong ones get HTTP 400."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from gcd import ConstraintError
from gcd._replies import TAGS
from gcd_vllm._compiler import COMPILERS
from gcd_vllm._constraint_cache import ConstraintCache
from gcd_vllm._requests import ConstraintRequest
from gcd_vllm._tool_requests import Format, convert
from tests.gcd.languages.tools.calls import TOOLS
from tests.gcd_vllm import fakes
from tests.gcd_vllm.fakes import VllmConfig

CALL = '<tool_call>\n{"name": "note", "arguments": {"text": "a"}}\n</tool_call>'
WEATHER = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "a", "days": 1}}\n</tool_call>'
)
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
NOTE = {"type": "function", "function": {"name": "note"}}
HERMES = Format("hermes", True, "")


def request(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "?"}]
    return {"messages": messages, "tools": TOOLS, "max_tokens": 90} | more


def language_of(body: dict[str, Any]) -> Any:
    return ConstraintRequest.parse(body["vllm_xargs"]["gcd"]).language()


CASES = [
    ({}, "hi", "hi" + CALL, f"{WEATHER}\n{CALL}"),
    ({"tool_choice": "required"}, None, CALL, f"{WEATHER}\n{CALL}"),
    ({"tool_choice": NOTE}, None, CALL, None),
    ({"parallel_tool_calls": False}, "hi", CALL, None),
    ({"response_format": FORM}, '{"ok":true}', CALL, f"{WEATHER}\n{CALL}"),
    ({"response_format": {"type": "json_object"}}, '{"b":[1]}', CALL, f"{WEATHER}\n{CALL}"),
    ({"response_format": FORM, "tool_choice": "required"}, None, CALL, f"{WEATHER}\n{CALL}"),
]


@pytest.mark.parametrize(("more", "text", "one", "two"), CASES)
def test_what_a_request_permits(more, text, one, two):
    body, report = convert(request(**more), HERMES, ())
    language = language_of(body)
    assert language.accepts(one)
    assert text is None or language.accepts(text)
    assert language.accepts(f"{WEATHER}\n{CALL}") == (two is not None)
    assert text is not None or not language.accepts("hi")
    assert not language.accepts("[1]") or "response_format" not in more
    assert not language.accepts(CALL.replace("note", "unknown"))
    assert not language.accepts(CALL.replace('"text"', '"txt"'))
    assert body["tool_choice"] == "auto"
    assert not {"response_format", "parallel_tool_calls"} & body.keys()
    assert report.startswith("calls=hermes; choice=")


TAG = {"begin": "<ok>", "schema": SCHEMA, "end": "</ok>"}
TAGGED = {"type": "structural_tag", "structures": [TAG], "triggers": ["<o"]}


def test_structural_tags_beside_tools():
    body, report = convert(request(response_format=TAGGED), HERMES, ())
    language = language_of(body)
    right = '<ok>{"ok":true}</ok>'
    for text in ("Hi.", right, f"So {right} or {right}!", CALL, f"{WEATHER}\n{CALL}"):
        assert language.accepts(text)
    for text in ("<ok>", '<ok>{"ok":1}</ok>', "a <or", right[:-1], f"{right}<o", f"{right}{CALL}"):
        assert not language.accepts(text)
    assert report == "calls=hermes; choice=auto; answer=tags"
    alone = ConstraintRequest.parse(json.dumps({"structural_tag": {**TAGGED}})).language()
    assert alone.accepts(f"{right} <tool_call>")


def test_options_of_tools():
    def asked(**options: Any) -> Any:
        options = {"tools": TOOLS, "options": {"style": "hermes", **options}}
        return ConstraintRequest.parse(json.dumps(options)).language()

    for answer, text in (({"regex": "a+"}, "aa"), ({"grammar": 'start: "c"'}, "c")):
        language = asked(choice="auto", answer=answer)
        assert [language.accepts(each) for each in (text, CALL, "x")] == [True, True, False]
    for thought in (True, ["<thought>"]):
        with pytest.raises(ConstraintError, match="expected thought to be a list of <think>"):
            asked(thought=thought)


def test_what_is_left_to_vllm():
    for more in (
        {"tool_choice": "none"},
        {"tools": []},
        {"tools": None},
        {"vllm_xargs": {"gcd": "{}"}},  # the request's own constraint decides
    ):
        assert convert(request(**more), HERMES, ()) is None


def test_strict_is_removed_because_vllm_would_add_a_second_constraint():
    for value in (True, False):
        tool = {"type": "function", "function": TOOLS[1]["function"] | {"strict": value}}
        assert convert(request(tools=[tool]), HERMES, ())[0]["tools"] == [TOOLS[1]]


def test_the_servers_settings_decide(monkeypatch):
    def named(**arguments: Any) -> Format | None:
        return Format.of(SimpleNamespace(**arguments))

    assert named(tool_call_parser=None) is None
    assert named(tool_call_parser="xlam", enable_auto_tool_choice=True) == ("xlam", True, "")
    monkeypatch.setenv("GCD_VLLM_CALLS", "hermes")
    assert named() == ("hermes", False, "")
    monkeypatch.setenv("GCD_VLLM_CALLS", "off")
    assert named(tool_call_parser="xlam") is None
    unparsed, _ = convert(request(), Format("hermes", False, ""), ())
    assert unparsed["tool_choice"] == "none"
    for special, style in ((["[ARGS]"], "mistral"), ([], "mistral_json")):
        _, report = convert(request(), Format("mistral", True, ""), special)
        assert f"calls={style};" in report


def test_a_thought_comes_first():
    form = Format("hermes", True, "qwen3")
    body, _ = convert(request(), form, ())
    replies = language_of(body)
    for thought in ("I see <tool_call>.</think>", "<think>I see.</think>"):
        assert replies.accepts(thought + CALL)  # the prompt may have the first tag
        assert replies.accepts(thought + "Hi.")
    assert not replies.accepts(CALL)
    assert not replies.accepts("Hi.")
    single, _ = convert(request(), form, ["</think>", "<think>"])
    assert {*language_of(single).specials} == {*TAGS}
    silent, _ = convert(request(chat_template_kwargs={"enable_thinking": False}), form, ())
    assert "thought" not in json.loads(silent["vllm_xargs"]["gcd"])["options"]


WRONG = [
    *(
        (more, message, "hermes")
        for more, message in (
            ({"tool_choice": NOTE | {"function": {"name": "x"}}}, "get_weather, note, got 'x'"),
            ({"tool_choice": "any"}, "expected tool_choice"),
            ({"tool_choice": {"type": "allowed_tools"}}, "expected tool_choice"),
            ({"response_format": {"type": "structural_tag"}}, "expected a response_format"),
            ({"response_format": TAGGED | {"triggers": ["<a"]}}, "with one of the triggers"),
            ({"response_format": TAGGED | {"structures": [{"begin": "<o"}]}}, "schema and end"),
            ({"response_format": TAGGED | {"structures": [TAG | {"end": 1}]}}, "expected"),
            ({"response_format": {"type": "json_schema"}}, "expected a response_format"),
            ({"response_format": FORM | {"json_schema": {"schema": {"type": "no"}}}}, "'no'"),
            ({"structured_outputs": {"regex": "a"}}, "two constraints"),
            ({"tools": [TOOLS[1], TOOLS[1]]}, "different names"),
            ({"tools": [NOTE | {"function": {"name": "a b"}}]}, "rename the tool"),
            ({"tools": [{"type": "web_search"}]}, "web_search"),
        )
    ),
    ({}, "known format", "step3"),
    ({}, "special token", "granite"),
]


class Server(fakes.Server):
    """Keeps the body that it receives."""

    def __init__(self, config: Any) -> None:
        more = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
        super().__init__(config, self.keep, **more)
        self.received: Any = None

    def keep(self, body: Any) -> list[Any]:
        self.received = body
        status = 422 if body is None else 200
        start = {"type": "http.response.start", "status": status, "headers": []}
        return [start, {"type": "http.response.body", "body": b"{}"}]


@pytest.fixture(scope="module", autouse=True)
def _close():
    yield
    COMPILERS.close()


def post(server: Server, body: Any) -> list[Any]:
    return asyncio.run(server.post(body))


@pytest.fixture
def server(tokens):
    return Server(VllmConfig(tokens, max_model_len=400))


def test_the_middleware_converts_and_reports(server):
    start, body = post(server, request())
    assert (start["status"], body["body"]) == (200, b"{}")
    assert (b"x-gcd", b"calls=hermes; choice=auto; answer=text") in start["headers"]
    assert server.received == convert(request(), HERMES, ())[0]
    own = request(vllm_xargs={"gcd": json.dumps({"choice": ["a"]})})
    start, _ = post(server, own)
    assert (start["headers"], server.received) == ([], own)
    long = {"x": {"type": "string", "maxLength": 60_000}}
    unique = {"x": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}
    for members, report in ((long, b"calls="), (unique, b"unchecked=")):
        parameters = {"type": "object", "properties": members, "minProperties": 1}
        functions = [{"name": name, "parameters": parameters} for name in ("f", "g")]
        tools = [{"type": "function", "function": each} for each in functions]
        start, _ = post(server, request(tools=tools))
        assert start["status"] == 200
        assert report in dict(start["headers"])[b"x-gcd"]


def test_a_request_is_enforced_although_it_cannot_be_prepared(server, monkeypatch, caplog):
    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(ConstraintCache, "prepare", fail)
        start, _ = post(server, request())
        assert (start["status"], server.received) == (200, convert(request(), HERMES, ())[0])
    monkeypatch.setattr(ThreadPoolExecutor, "submit", fail)  # then vLLM decides
    start, _ = post(server, request())
    assert (start["status"], server.received) == (200, request())
    assert "RuntimeError: can't start new thread" in caplog.text


@pytest.mark.parametrize(("more", "message", "parser"), WRONG)
def test_wrong_requests_are_refused_with_one_sentence(server, more, message, parser):
    server.state.args.tool_call_parser = parser
    start, body = post(server, request(**more))
    assert start["status"] == 400
    error = json.loads(body["body"])["error"]
    assert error["code"] == 400
    assert message in error["message"]
    assert server.received is None


def test_a_forced_tool_may_have_the_name_of_a_choice():
    tools = [{"type": "function", "function": {"name": name}} for name in ("auto", "note")]
    body, _ = convert(request(tools=tools, tool_choice=tools[0]), HERMES, ())
    calls = [f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'
             for name in ("auto", "note")]  # fmt: skip
    assert [language_of(body).accepts(text) for text in (*calls, "hi")] == [True, False, False]
