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
from unittest import mock

import pytest

from gcd import (
    ConstraintError,
    StateLimitError,
    UnsupportedSchemaError,
    WorkLimitError,
    json_schema,
    state_limit,
    tool_calls,
    work_limit,
)
from gcd._errors import LimitError
from gcd._languages.cycles import cycles
from gcd._languages.json_schema import choices
from tests.gcd.oracles import work_of


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        (
            {"properties": {"a": {"type": "string", "maxLength": 10**6}}},
            "maxLength",
            "/properties/a",
        ),
        ({"items": {"minLength": 10**300}}, "minLength", "/items"),
        ({"$defs": {"a": {"minItems": 10**300}}, "$ref": "#/$defs/a"}, "minItems", "/$defs/a"),
        ({"anyOf": [{"minProperties": 10**300}]}, "minProperties", "/anyOf/0"),
        ({"contains": {"const": 1}, "minContains": 10**300}, "minContains", ""),
        ({"items": {"maxItems": 10**7, "items": {"maxItems": 9}}}, "maxItems", "/items"),
        ({"pattern": "(a|b)*a(a|b){20}$"}, "pattern", ""),
        ({"enum": [f"{i}" * 40 for i in range(9_000)]}, "enum", ""),
    ],
)
def test_a_limit_on_states_names_the_keyword(schema: Any, keyword: str, pointer: str) -> None:
    with pytest.raises(StateLimitError) as caught:
        json_schema({"type": ["object", "array", "string"], **schema}, unsupported="refuse")
    assert (caught.value.keyword, caught.value.pointer) == (keyword, pointer)
    place = repr(pointer) if pointer else "the root"
    assert str(caught.value).startswith(f"keyword {keyword!r} at {place}: ")
    assert len(str(caught.value)) < 300  # no count of 300 digits


def test_the_part_that_took_most_of_the_work_is_named_not_the_last_one() -> None:
    members = {f"a{i}": {"type": "integer"} for i in range(9)}
    members |= {"costly": {"type": "string", "maxLength": 1_000, "format": "uuid"}}
    members |= {f"b{i}": {"type": "string", "maxLength": 3 + i} for i in range(9)}
    taken = work_of(lambda: json_schema({"type": "object", "properties": members}))
    with work_limit(taken // 2), pytest.raises(WorkLimitError) as caught:
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
        (lambda link: {"anyOf": [link]}, "nested schemas for one value"),
        (lambda link: {"not": link}, "nested schemas for one value"),
        (lambda link: {"type": "object", "properties": {"a": link}}, "nested too deeply"),
        (lambda link: {"type": "array", "items": link}, "nested too deeply"),
    ],
)
def test_long_chains_of_references_are_refused_by_name(step: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=rf"{message}.*at '/.*d|schema at '/.*d.*{message}"):
        json_schema(_chain(2_000, step))
    json_schema(_chain(20, step))


def _free(value: Any) -> Any:
    return {"type": "object", "properties": {"t": {"const": value}}, "required": ["t"]}


def _patterns(first: int) -> list[Any]:
    return [{"type": "string", "pattern": f"{i}"} for i in range(first, first + 20)]


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
    found = []
    with work_limit(10_000_000):
        for _ in range(2):  # the second time, caches are full
            with pytest.raises(LimitError) as caught:
                json_schema(ATTACKS[name])
            found.append(caught.value)
    assert found[0].pointer is not None
    assert len(str(found[0])) < 300
    assert (type(found[0]), found[0].keyword) == (type(found[1]), found[1].keyword)


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
    with state_limit(200), pytest.raises(StateLimitError, match="a lower max_depth helps"):
        json_schema(loop)
    with state_limit(200):
        json_schema(loop, max_depth=0)


def test_tool_calls_are_metered_together() -> None:
    names = [f"tool_{i}" for i in range(9)]
    tools = [
        {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "string", "maxLength": 400 + i}},
            },
        }
        for i, name in enumerate(names)
    ]
    one = work_of(lambda: tool_calls(tools[:1]))
    with work_limit(3 * one):
        tool_calls(tools[:1])
        with pytest.raises(WorkLimitError, match=r"'maxLength' at '/\d/.*'tool_\d', of 9"):
            tool_calls(tools, unsupported="refuse")
        left = tool_calls(tools, unsupported="ignore").caveats
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


def test_unique_items_go_as_far_as_their_sets_of_values_fit() -> None:
    def unique(count: int, **more: Any) -> Any:
        return {"type": "array", "uniqueItems": True, "items": {"enum": [*range(count)]}, **more}

    language = json_schema(unique(11))
    order = random.Random(3).sample(range(11), 11)
    assert language.accepts(json.dumps(order, separators=(",", ":")))
    assert not language.accepts(json.dumps([*order, order[4]], separators=(",", ":")))
    pairs = json_schema(unique(40, maxItems=2))
    assert pairs.count(40) == 1 + 40 + 40 * 39
    for schema in (unique(20), {"type": "array", "uniqueItems": True, "items": {"type": "string"}}):
        with pytest.raises(UnsupportedSchemaError) as caught:
            json_schema(schema, unsupported="refuse")
        assert caught.value.keyword == "uniqueItems"


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        (
            {"items": {"allOf": [{"anyOf": _patterns(20 * j)} for j in range(3)]}},
            "anyOf",
            "/items/allOf/0",
        ),
        ({"oneOf": [_free(i) for i in range(1_001)]}, "oneOf", ""),
        ({"dependentRequired": {f"a{i}": [f"b{i}"] for i in range(10)}}, "dependentRequired", ""),
        (
            {"allOf": [{"if": {"pattern": f"a{i}"}, "then": {"pattern": "z"}} for i in range(10)]},
            "if",
            "/allOf/0",
        ),
    ],
)
def test_too_many_cases_name_a_choice(schema: Any, keyword: str, pointer: str) -> None:
    multiplied = mock.patch.object(choices, "_FEW_CASES", 10**9)  # rather than intersected
    with multiplied, pytest.raises(UnsupportedSchemaError, match="alternatives") as caught:
        json_schema(schema)
    assert (caught.value.keyword, caught.value.pointer) == (keyword, pointer)


_SIXTY = list(range(60))


@pytest.mark.parametrize(
    ("elements", "millions"),  # of units, 200 of which are at most a second
    [
        ({"items": {"oneOf": [{"const": i} for i in _SIXTY]}}, 200),
        ({"items": {"type": "integer", "minimum": 1, "maximum": 60}, "minItems": 60}, 10),
        ({"prefixItems": [{"enum": _SIXTY[:39]} for _ in _SIXTY], "items": False}, 50),
        ({"prefixItems": [{"enum": list(range(i, i + 9))} for i in _SIXTY]}, 50),
    ],
)
def test_elements_of_too_many_values_are_refused_before_they_are_built(
    elements: Any, millions: int
) -> None:
    schema = {"type": "array", "uniqueItems": True, **elements}
    with work_limit(millions * 1_000_000), pytest.raises(UnsupportedSchemaError) as refused:
        json_schema(schema, unsupported="refuse")
    assert refused.value.keyword == "uniqueItems"


def test_constants_that_are_apart_are_compared_without_building_them() -> None:
    with work_limit(200_000_000):
        language = json_schema({"oneOf": [{"const": i} for i in range(90)]})
    assert {text.decode() for text in language} == {str(i) for i in range(90)}


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf"])
def test_thousands_of_titled_constants_are_one_enum(keyword: str) -> None:
    values = [f"value-{7_919 * i % 100_003}" for i in range(2_000)]
    branches = [{"const": value, "title": value.title()} for value in values]
    with work_limit(50_000_000):
        language = json_schema({keyword: branches})
    assert language == json_schema({"enum": values})
    beside = json_schema({keyword: [*branches, {"type": "string", "pattern": "^value-1"}]})
    assert beside.accepts('"value-0"')
    assert beside.accepts('"value-100003"')
    assert beside.accepts('"value-15838"') == (keyword == "anyOf")  # a constant, and the pattern


def doubled(keyword: str) -> dict[str, Any]:
    """A schema of a kilobyte that spells out 2^30 references."""
    definitions: dict[str, Any] = {"d0": {"type": "integer", "minimum": 3, "maximum": 4}}
    for i in range(1, 31):
        definitions[f"d{i}"] = {keyword: [{"$ref": f"#/$defs/d{i - 1}"}] * 2}
    return {"$ref": "#/$defs/d30", "$defs": definitions}


def test_a_schema_with_several_references_is_read_once():
    language = json_schema(doubled("allOf"))
    assert language == json_schema({"type": "integer", "minimum": 3, "maximum": 4})


def test_choices_that_double_are_paid_for():
    with work_limit(50_000_000), pytest.raises(WorkLimitError):
        json_schema(doubled("anyOf"))
