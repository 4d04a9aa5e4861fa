"""Conversion of chat requests with tools to one constraint, in the server's own format of calls.

    {"tools": [...], "tool_choice": "auto", "response_format": {...}}
    {"tools": [...], "options": {"style": "hermes", "choice": "auto", "answer": {...}}}

The first line is a request, the second one its constraint (`gcd_vllm._requests`). The converted
request has `"tool_choice": "auto"`, so that vLLM adds no constraint, and its parser reads the
calls.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from gcd import ConstraintError
from gcd._errors import show
from gcd._languages.tools.call_formats import ALIASES, FORMATS, format_of
from gcd._replies import TAGS

# Reasoning parsers whose models think in these tags (`gcd._replies.TAGS`).
_THOUGHTS = ("qwen3", "deepseek_r1", "deepseek_v3", "glm45", "minimax_m2", "hermes")
_ANSWERS = {"text": "text", "json_schema": "json", "structural_tag": "tags"}  # in a report
_SWITCHES = ("enable_thinking", "thinking")  # arguments of chat templates


class Format(NamedTuple):
    """Format of calls on a server, whether it parses calls, and the name of its parser of thoughts.

    The latter is empty if there is none.
    """

    name: str
    is_parsed: bool
    reasoning: str

    @classmethod
    def of(cls, arguments: Any) -> Format | None:
        """Return the settings of a server, given its arguments; None if tools aren't converted.

        `GCD_VLLM_CALLS` names the format of a server without a parser of calls; "off" leaves
        requests with tools to vLLM.
        """
        wanted = os.environ.get("GCD_VLLM_CALLS", "")
        parser = getattr(arguments, "tool_call_parser", None) or ""
        if wanted == "off" or not (wanted or parser):
            return None
        is_parsed = bool(parser and getattr(arguments, "enable_auto_tool_choice", False))
        reasoning = getattr(arguments, "reasoning_parser", None) or ""
        return cls(wanted or parser, is_parsed, reasoning)


def convert(
    request: Mapping[str, Any], form: Format, special: Collection[str]
) -> tuple[dict[str, Any], str] | None:
    """Return the body of a chat request with its constraint, and a report of what is enforced.

    The result is None if the request has no tools, or its own constraint. `special` are the texts
    of the tokenizer's added tokens.
    """
    tools, choice = request.get("tools"), request.get("tool_choice") or "auto"
    extra = request.get("vllm_xargs") or {}
    if not tools or choice == "none" or "messages" not in request or "gcd" in extra:
        return None
    if request.get("structured_outputs") is not None:
        raise ConstraintError(
            "expected a request with tools without structured_outputs, got both, which are two "
            "constraints; use response_format for answers without calls"
        )
    style = form.name
    if style not in FORMATS and style not in ALIASES:
        raise ConstraintError(
            f"expected a server with a known format of tool calls, got {show(style)}; set the "
            f"server's GCD_VLLM_CALLS to one of {', '.join(FORMATS)}, or to off"
        )
    if style == "mistral" and "[ARGS]" not in special:
        style = "mistral_json"
    name = _function(choice).get("name")
    if not isinstance(name, str) and choice not in ("auto", "required"):
        raise ConstraintError(
            'expected tool_choice to be "auto", "required", "none" or {"type": "function", '
            f'"function": {{"name": ...}}}}, got {show(choice)}'
        )
    options: dict[str, Any] = {"style": style, "choice": choice, "unsupported": "ignore"}
    report = [f"calls={style}", f"choice={name or choice}"]
    if name is not None:  # also of a tool whose name is "auto"
        given, options["choice"] = tools, "required"
        tools = [tool for tool in given if _function(tool).get("name") == name]
        if not tools:
            names = ", ".join(str(_function(tool).get("name")) for tool in given)
            raise ConstraintError(
                f"expected tool_choice to name one of the tools {names}, got {show(name)}"
            )
    if request.get("parallel_tool_calls") is False:
        options["max_calls"] = 1
        report.append("parallel=no")
    if _thinks(request, form):
        options["thought"] = [tag for tag in TAGS if tag in special]
        report.append("thought")
    answer = _answer_of(request.get("response_format"))
    if options["choice"] == "auto":
        options |= {} if answer is None else {"answer": answer}
        report.append(f"answer={_ANSWERS[next(iter(answer or {'text': 0}))]}")
    removed = ("response_format", "parallel_tool_calls")
    body = {name: value for name, value in request.items() if name not in removed}
    body["tools"] = [_without_strict(tool) for tool in request["tools"]]
    body["tool_choice"] = "auto" if form.is_parsed else "none"
    body["vllm_xargs"] = extra | {"gcd": json.dumps({"tools": tools, "options": options})}
    return body, "; ".join(report)


def _function(tool: Any) -> dict[str, Any]:
    inner = tool.get("function") if isinstance(tool, dict) else None
    return inner if isinstance(inner, dict) else {}


def _without_strict(tool: Any) -> Any:
    """Return a tool without `strict`, for which vLLM would add another constraint."""
    inner = {name: value for name, value in _function(tool).items() if name != "strict"}
    return tool | {"function": inner} if inner else tool


def _answer_of(given: Any) -> dict[str, Any] | None:
    """Return the constraint of answers without calls; None for any text."""
    kind = given.get("type") if isinstance(given, dict) else given
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    if kind == "structural_tag" and "structures" in given:
        return {kind: {name: given[name] for name in given if name != "type"}}
    inner = given.get("json_schema") if kind == "json_schema" else None
    if not isinstance(inner, dict) or "schema" not in inner:
        raise ConstraintError(
            "expected a response_format of type text, json_object, json_schema with a schema, or "
            f"structural_tag with structures and triggers, beside tools, got {show(given)}"
        )
    return {"json_schema": inner["schema"]}


def _thinks(request: Mapping[str, Any], form: Format) -> bool:
    """Return whether a thought precedes the answer."""
    switches = request.get("chat_template_kwargs") or {}
    own = format_of(form.name).thought is not None
    if not form.reasoning or own or any(switches.get(each) is False for each in _SWITCHES):
        return False
    if form.reasoning not in _THOUGHTS:
        raise ConstraintError(
            f"expected a server with one of the reasoning parsers {', '.join(_THOUGHTS)} for "
            f"tools, got {form.reasoning!r}; send the constraint as segments in vllm_xargs, or "
            "set the server's GCD_VLLM_CALLS to off"
        )
    return True
