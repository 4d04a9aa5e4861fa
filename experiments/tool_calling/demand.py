"""Constraints that require one more argument of each called tool than the request mentions.

With `task.demand=argument`, the first optional parameter that no gold call gives becomes required,
for each tool of the gold calls. Prompt and gold calls are unchanged. An answer is correct if it
makes the gold calls with any value of the demanded arguments.
"""

from __future__ import annotations

from typing import Any

import gcd
from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.records import ToolRecord

DEMANDS = ("nothing", "argument")


def _read_tools(record: ToolRecord) -> tuple[gcd.Tool, ...]:
    """Return the record's tools with JSON schemas."""
    return gcd.parse_tools(to_json_schema_tools(record.tools)).tools


def list_demanded(record: ToolRecord) -> dict[str, str]:
    """Return the demanded parameter by tool; empty if the gold calls give every parameter."""
    given: dict[str, set[str]] = {}
    for call in record.calls:
        given.setdefault(call.name, set()).update(call.arguments)
    demanded: dict[str, str] = {}
    for tool in _read_tools(record):
        for parameter in tool.parameters:
            if not parameter.required and parameter.name not in given.get(tool.name, ()):
                demanded.setdefault(tool.name, parameter.name)
    return {tool: parameter for tool, parameter in demanded.items() if tool in given}


def demanding_tools(record: ToolRecord) -> list[dict[str, Any]]:
    """Return the record's tools with the demanded parameters required.

    Raises:
        ConstraintError: the gold calls already give every parameter.
    """
    demanded = list_demanded(record)
    if not demanded:
        raise gcd.ConstraintError(
            "expected a called tool with an optional argument that the gold calls don't give, to "
            "require it (task.demand=argument); got none"
        )
    return [
        {
            "name": tool.name,
            "parameters": {
                **tool.schema,
                "required": [
                    *tool.schema.get("required", ()),
                    *([demanded[tool.name]] if tool.name in demanded else []),
                ],
            },
        }
        for tool in _read_tools(record)
    ]
