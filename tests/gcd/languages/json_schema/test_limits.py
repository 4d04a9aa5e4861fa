"""Work limits of schemas: which schemas are refused, and which part the error names.

`scripts/check_json_schema.py` measures that no schema takes more than 10 s or 1 GB. These tests
cover schemas that are expensive, or whose errors are hard to make readable.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import gcd
from gcd import json_schema
from gcd._errors import LimitError
from gcd._languages.cycles import cycles
from tests.gcd.oracles import work_of


def test_the_part_that_took_most_of_the_work_is_named_not_the_last_one() -> None:
    members = {f"a{i}": {"type": "integer"} for i in range(9)}
    members |= {"costly": {"type": "string", "maxLength": 1_000, "format": "uuid"}}
    members |= {f"b{i}": {"type": "string", "maxLength": 3 + i} for i in range(9)}
    taken = work_of(lambda: json_schema({"type": "object", "properties": members}))
    with gcd.work_limit(taken // 2), pytest.raises(gcd.WorkLimitError) as caught:
        json_schema({"type": "object", "properties": members}, unsupported="refuse")
    assert (caught.value.keyword, caught.value.pointer) == ("maxLength", "/properties/costly")


@pytest.fixture
def _room_for_checks() -> Iterator[None]:
    """Raise the recursion limit, because the suite's type checks add two frames to every call."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(3 * usual)
    yield
    sys.setrecursionlimit(usual)


def _chain(length: int, step: Any) -> Any:
    names = [f"d{i}" for i in range(length)]
    links = {name: step({"$ref": f"#/$defs/{after}"}) for name, after in pairwise(names)}
    return {"$defs": links | {names[-1]: {"type": "null"}}, "$ref": "#/$defs/d0"}


@pytest.mark.usefixtures("_room_for_checks")
@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda link: link, "nested schemas for one value"),
        (lambda link: {"not": link}, "nested schemas for one value"),
        (lambda link: {"type": "object", "properties": {"a": link}}, "nested too deeply"),
    ],
)
def test_long_chains_of_references_are_refused_by_name(step: Any, message: str) -> None:
    with pytest.raises(
        gcd.ConstraintError, match=rf"{message}.*at '/.*d|schema at '/.*d.*{message}"
    ):
        json_schema(_chain(2_000, step))
    json_schema(_chain(20, step))


ATTACKS = {
    "branches of which no value is": {
        "allOf": [{"anyOf": [{"allOf": [{"not": {}}, {"anyOf": [False] * 30}]}] * 30}] * 20
    },
    "branches that are compared": {
        "oneOf": [{"properties": {f"{i}": {"type": "string"}}} for i in range(100)]
    },
    "a clique of definitions": {
        "$ref": "#/$defs/0",
        "$defs": {
            f"{i}": {
                "type": "object",
                "properties": {f"{j}": {"$ref": f"#/$defs/{j}"} for j in range(8)},
            }
            for i in range(8)
        },
    },
    "conditions": {
        "allOf": [
            {"if": {"properties": {"t": {"const": i}}}, "then": {"required": [f"r{i}"]}}
            for i in range(9)
        ]
    },
    "many long strings": {
        "properties": {f"k{i}": {"type": "string", "minLength": 3_000 + i} for i in range(60)}
    },
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_would_take_too_long_is_refused_with_its_part(name: str) -> None:
    with gcd.work_limit(4_000_000), pytest.raises(LimitError) as caught:
        json_schema(ATTACKS[name])
    assert caught.value.pointer is not None
    assert len(str(caught.value)) < 300


def test_what_is_refused_does_not_depend_on_what_was_compiled_before() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "minLength": 31, "maxLength": 57},
            "b": {"type": "number", "minimum": 0.125, "multipleOf": 0.015},
            "c": {"not": {"enum": ["a 1", "a 2"]}},
            "d": {},
        },
    }
    assert work_of(lambda: json_schema(schema)) == work_of(lambda: json_schema(schema))


def test_recursion_is_refused_with_the_remedy() -> None:
    loop = {"type": "object", "properties": {n: {"$ref": "#"} for n in "abcdef"}}
    with gcd.state_limit(200), pytest.raises(gcd.StateLimitError, match="a lower max_depth helps"):
        json_schema(loop)
    with gcd.state_limit(200):
        json_schema(loop, max_depth=0)


def test_tool_calls_are_metered_together() -> None:
    def tool(length: int) -> Any:
        text = {"type": "string", "maxLength": length}
        return {"name": f"t{length}", "parameters": {"type": "object", "properties": {"a": text}}}

    tools = [tool(400 + i) for i in range(9)]
    with gcd.work_limit(3 * work_of(lambda: gcd.tool_calls(tools[:1]))):
        gcd.tool_calls(tools[:1])
        with pytest.raises(gcd.WorkLimitError, match=r"'maxLength' at '/\d/.*'t40\d', of 9"):
            gcd.tool_calls(tools, unsupported="refuse")
        left = gcd.tool_calls(tools, unsupported="ignore").caveats
        assert {(each.keyword, each.is_unchecked) for each in left} == {("maxLength", True)}


def test_cycles_are_the_strongly_connected_components() -> None:
    random.seed(5)
    for size in range(1, 9):
        for _ in range(60):
            nodes = [str(i) for i in range(size)]
            below = {n: random.sample(nodes, random.randint(0, min(2, size))) for n in nodes}
            reached = {n: set(below[n]) for n in nodes}
            for _ in nodes:
                for n in nodes:
                    reached[n] |= {m for k in set(reached[n]) for m in reached[k]}
            found = cycles(below)
            assert set(found) == {n for n in nodes if n in reached[n]}, json.dumps(below)
            for a in found:
                for b in found:
                    together = b in reached[a] and a in reached[b]
                    assert (found[a] == found[b]) == together, json.dumps(below)


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf"])
def test_a_thousand_titled_constants_are_one_enum(keyword: str) -> None:
    values = [f"value-{7_919 * i % 100_003}" for i in range(1_000)]
    branches = [{"const": value, "title": value.title()} for value in values]
    with gcd.work_limit(12_000_000):
        language = json_schema({keyword: branches})
    assert language == json_schema({"enum": values})
    beside = json_schema({keyword: [*branches, {"type": "string", "pattern": "^value-1"}]})
    assert beside.accepts('"value-0"')
    assert beside.accepts('"value-100003"')
    assert beside.accepts('"value-15838"') == (keyword == "anyOf")  # a constant, and the pattern


def test_a_kilobyte_that_spells_out_a_billion_references() -> None:
    """References of `allOf` are read once; choices that double are paid for."""
    for keyword in ("allOf", "anyOf"):
        definitions: dict[str, Any] = {"d0": {"type": "integer", "minimum": 3, "maximum": 4}}
        for i in range(1, 31):
            definitions[f"d{i}"] = {keyword: [{"$ref": f"#/$defs/d{i - 1}"}] * 2}
        schema = {"$ref": "#/$defs/d30", "$defs": definitions}
        if keyword == "allOf":
            assert json_schema(schema) == json_schema(definitions["d0"])
        else:
            with gcd.work_limit(10_000_000), pytest.raises(gcd.WorkLimitError):
                json_schema(schema)
