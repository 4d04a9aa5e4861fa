"""Demands beyond the request, against calls written by hand."""

from __future__ import annotations

import json

import pytest

import gcd
from experiments.tool_calling.answers import Call, makes_calls, write_answer
from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.demand import (
    demanding_tools,
    list_demanded,
)
from experiments.tool_calling.records import record_of

FLAT = {
    "name": "weather",
    "description": "Forecast",
    "parameters": {
        "city": {"type": "str"},
        "days": {"type": "int, optional"},
        "unit": {"type": "str, optional"},
    },
}
SCHEMA = {
    "name": "weather",
    "description": "Forecast",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"type": "string"},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
}
OTHER = {"name": "time", "description": "", "parameters": {"zone": {"type": "str, optional"}}}


def record(tool, **arguments):
    call = {"name": "weather", "arguments": {"city": "Oslo", **arguments}}
    return record_of({"query": "?", "tools": [tool, OTHER], "answers": [call]}, "0")


@pytest.mark.parametrize("tool", [FLAT, SCHEMA], ids=["flat", "schema"])
@pytest.mark.parametrize("style", ["json", "python"])
def test_an_argument_that_the_gold_calls_leave_open_has_to_be_given(tool, style):
    asked = record(tool, days=3)
    assert list_demanded(asked) == {"weather": "unit"}
    free = gcd.tool_calls(to_json_schema_tools(asked.tools), style=style)
    demanding = gcd.tool_calls(demanding_tools(asked), style=style)

    def text(**arguments):
        return write_answer([Call("weather", arguments)], asked.tools, style).encode()

    gold, more = text(city="Oslo", days=3), text(city="Oslo", days=3, unit="C")
    assert free.accepts(gold)
    assert free.accepts(more)
    assert demanding.accepts(more)
    assert not demanding.accepts(gold)
    assert not demanding.accepts(text(unit="C"))  # what was required still is
    assert demanding.accepts(text(city="Oslo", unit="C"))  # and what was optional
    other = write_answer([Call("time", {})], asked.tools, style).encode()
    assert demanding.accepts(other)  # a tool that the gold calls do not use is as it was


@pytest.mark.parametrize("style", ["json", "python"])
def test_an_answer_is_right_whatever_it_gives_for_what_was_demanded(style):
    asked = record(FLAT, days=3)
    demanded = list_demanded(asked)

    def right(**arguments):
        text = write_answer([Call("weather", arguments)], asked.tools, style)
        return makes_calls(text.encode(), asked.calls, style, demanded)

    assert right(city="Oslo", days=3, unit="C")
    assert right(city="Oslo", days=3, unit="?")
    assert not right(city="Oslo", days=4, unit="C")
    assert not makes_calls(b"\xff", asked.calls, style, demanded)
    assert not makes_calls("[", asked.calls, style, demanded)


def test_a_record_whose_calls_give_everything_is_refused_by_name():
    with pytest.raises(
        gcd.ConstraintError, match=r"require it \(task\.demand=argument\); got none"
    ):
        demanding_tools(record(FLAT, days=3, unit="C"))
    assert json.dumps(list_demanded(record(FLAT))) == '{"weather": "days"}'
