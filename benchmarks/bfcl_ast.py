"""BFCL's AST accuracy of tool calls, from the rows of an experiment with xLAM.

    python -m benchmarks.bfcl_ast data/rows/tool_calls.tar.xz

The rules are those of the Berkeley Function Calling Leaderboard (Patil et al. 2025, "AST
evaluation"), applied to the most probable answer of each row:

* The calls can be paired with the right calls, in any order.
* The names are equal, all required parameters are present, and no parameter is undeclared.
* Each value has the declared type; an integer may stand for a float.
* Texts are compared without case, spaces and the characters `,./-_*^`; in lists and objects, too.

BFCL lists the acceptable values of each parameter, xLAM has only one. For a parameter with a
default, a missing argument stands for the default, in the answer and in the right calls.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import jsonschema

from benchmarks.common import XLAM, head, line
from experiments.config import one_of
from experiments.rows import Row
from experiments.tables import read_rows_of
from experiments.tool_calling.answers import STYLES, Call, parameters_of, parse_answer
from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.records import ToolRecord, read_xlam

_IGNORED = re.compile(r"[ ,./\-_*^]")
MISSING = object()
MOST_CALLS = 6
"""Maximum number of calls that are paired in all orders."""


def standard(value: Any) -> Any:
    """Return a value in the form in which BFCL compares texts, at any depth."""
    if isinstance(value, str):
        return _IGNORED.sub("", value).casefold().replace("'", '"')
    if isinstance(value, list | tuple):
        return [standard(each) for each in value]
    if isinstance(value, dict):
        return {key: standard(each) for key, each in value.items()}
    return value


def agrees(call: Call, gold: Call, record: ToolRecord, schemas: Mapping[str, Any]) -> bool:
    """Tell whether a call matches a right call."""
    if call.name != gold.name or call.name not in schemas:
        return False
    schema = schemas[call.name]
    declared, required = schema.get("properties", {}), schema.get("required", [])
    if not set(required) <= call.arguments.keys() <= declared.keys():
        return False
    types = {name: _type_of(each) for name, each in declared.items()}
    for name, value in call.arguments.items():
        if not jsonschema.Draft202012Validator(types[name]).is_valid(value):
            return False
    defaults = _defaults(record, call.name)
    for name in gold.arguments.keys() | call.arguments.keys():
        said, right = (each.arguments.get(name, MISSING) for each in (call, gold))
        default = defaults.get(name, MISSING)
        said, right = (default if each is MISSING else each for each in (said, right))
        if said is MISSING or right is MISSING or standard(said) != standard(right):
            return False
    return True


def _type_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a parameter's schema that BFCL checks."""
    found = {key: schema[key] for key in ("type", "anyOf") if key in schema}
    if isinstance(schema.get("items"), dict):
        found["items"] = _type_of(schema["items"])
    return found


def _defaults(record: ToolRecord, name: str) -> dict[str, Any]:
    """Return the defaults of a tool's parameters."""
    for tool in record.tools:
        if tool.get("name") == name:
            parameters = parameters_of(tool)
            return {key: each["default"] for key, each in parameters.items() if "default" in each}
    return {}


def is_right(text: str, style: str, record: ToolRecord) -> bool:
    """Tell whether an answer's calls are right by BFCL's rules."""
    one_of("style", style, STYLES)
    try:
        calls = parse_answer(text, style)
    except ValueError:
        return False
    if len(calls) != len(record.calls) or len(calls) > MOST_CALLS:
        return False
    tools = to_json_schema_tools(record.tools)
    schemas = {tool["name"]: tool["parameters"] for tool in tools}
    return any(
        all(agrees(*pair, record, schemas) for pair in zip(calls, order, strict=True))
        for order in permutations(record.calls)
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path, nargs="+", help="run directories, or archives of them")
    parser.add_argument("--records", type=Path, default=XLAM)
    options = parser.parse_args()
    records = {str(each.id): each for each in read_xlam(options.records).records}
    groups: dict[tuple[str, str, int], list[Row]] = defaultdict(list)  # style may have a budget
    for row in read_rows_of(options.rows):
        groups[row["style"], row["method"], row["particles"]].append(row)
    print(head("style", "method", "particles", "rows", "exact, %", "AST, %"))
    for (style, method, particles), rows in groups.items():
        exact = statistics.mean(row["best_correct"] for row in rows)
        ast = statistics.mean(
            is_right(
                row["best"] or "", style.partition(",")[0], records[row["example"].split(":")[1]]
            )
            for row in rows
        )
        print(line(
            style, method, particles, len(rows), f"{100 * exact:.1f}", f"{100 * ast:.1f}"
        ))  # fmt: skip


if __name__ == "__main__":
    main()
