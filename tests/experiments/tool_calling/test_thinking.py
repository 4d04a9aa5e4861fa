"""Thoughts before calls: what is an answer, what its calls are, and where prompts end."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

import gcd
from experiments.tool_calling.answers import Call, write_answer
from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.prompts import compact_prompt
from experiments.tool_calling.records import ToolRecord
from experiments.tool_calling.task import Request, record_handler
from experiments.tool_calling.thinking import (
    calls_of,
    check_thinking,
    cue,
    thinking_prompt,
    thoughts,
)

TOOL = {"name": "f", "description": "", "parameters": {"a": {"type": "str"}}}
RECORD = ToolRecord("7", "Call f.", (TOOL,), (Call("f", {"a": "x"}),))


@pytest.mark.parametrize("style", ["json", "python"])
@pytest.mark.parametrize("thinking", ["free", 12])
def test_an_answer_is_thoughts_and_calls(style, thinking):
    language = thoughts(style, thinking) + gcd.tool_calls(to_json_schema_tools([TOOL]), style=style)
    end = cue(style).encode()
    calls = write_answer(RECORD.calls, RECORD.tools, style).encode()
    for thought in (b"", " Twelve, é\n?".encode(), b"\n\nCalls in"):
        assert language.accepts(thought + end + calls)
        assert calls_of(thought + end + calls, style) == calls
    assert language.accepts(b"thirteen long" + end + calls) == (thinking == "free")
    assert not language.accepts(calls)
    assert calls_of(calls, style) == b""
    assert not language.accepts(end + b"more" + end + calls)  # the first cue ends the thoughts
    # A cue inside of a string belongs to the calls.
    strange = write_answer((Call("f", {"a": "Calls in JSON:"}),), (TOOL,), style).encode()
    assert language.accepts(end + strange)
    assert calls_of(end + strange, style) == strange


@pytest.mark.parametrize("style", ["json", "python"])
def test_the_prompt_goes_on_where_the_thoughts_end(style):
    prompt = compact_prompt(RECORD, style)
    shorter = thinking_prompt(prompt, style)
    assert shorter.endswith("Request: Call f.\nThoughts:")
    assert (shorter + cue(style)).replace("Thoughts:\n", "") == prompt
    with pytest.raises(ValueError, match=r"give model\.prompt=compact"):
        thinking_prompt("<|im_start|>assistant\n", style)


def test_a_row_is_about_the_calls():
    options = SimpleNamespace(
        max_calls=None, demand="nothing", thinking="free", formats="assert", max_bytes=None
    )
    config = SimpleNamespace(task=options, model=SimpleNamespace(prompt="compact"))
    task = record_handler(config, None, Counter())
    request = Request(RECORD, "json")
    gold = task.gold(request)
    assert task.language(request).accepts(gold.encode())
    assert task.prompt(request).endswith("Thoughts:")
    assert task.is_correct(request, b"Well." + gold.encode())
    assert not task.is_correct(request, gold.partition("\n")[2].partition("\n")[2].encode())
    example = SimpleNamespace(record=request)
    posterior = SimpleNamespace(answers=(b"Well." + gold.encode(),))
    assert task.columns(example, posterior)["parses"]
    assert not task.columns(example, SimpleNamespace(answers=()))["parses"]


@pytest.mark.parametrize("thinking", ["some", 0, True, 1.5, None])
def test_what_is_no_thinking_is_refused(thinking):
    with pytest.raises(ValueError, match=r"expected task\.thinking to be none, free, or"):
        check_thinking(thinking)
