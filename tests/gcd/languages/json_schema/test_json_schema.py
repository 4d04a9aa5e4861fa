"""Schemas as languages, judged by the `jsonschema` library.

The main test draws schemas and values together and compares both verdicts. Two restrictions of the
draws make them equal without exception: names are declared in alphabetical order, so that sorted
keys are in declared order, and a number is whole exactly if it has no fraction.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gcd import ConstraintError, StateLimitError, WorkLimitError, json_schema, work_limit
from gcd._languages.json_schema import choices as schema_choices
from gcd._languages.json_schema.keywords import HONORED
from gcd._languages.json_schema.schema import check_depth
from tests.gcd.languages.json_schema.strategies import SCHEMAS, STYLES, VALUES, agree, compact
from tests.gcd.random_strings import random_strings


@settings(max_examples=130)
@given(
    SCHEMAS,
    st.lists(VALUES, min_size=1, max_size=6),
    st.sampled_from(list(STYLES)),
    st.sampled_from(["open", "open", "closed"]),
    st.booleans(),
)
def test_schemas_accept_what_the_standard_accepts(
    schema: Any, values: list[Any], whitespace: str, undeclared: str, intersect: bool
) -> None:
    """Choices beside each other are multiplied, or intersected if they have many cases."""
    with mock.patch.object(schema_choices, "_FEW_CASES", 1 if intersect else _FEW_CASES):
        agree(schema, values, whitespace=whitespace, undeclared=undeclared)


_FEW_CASES = schema_choices._FEW_CASES
STRINGS = [{"type": "object", "properties": {n: {"type": "string"}}} for n in "ab"]
ONE_OF_TWO = {"oneOf": STRINGS}  # every object without undeclared members is both, or neither
Y_FIRST = {"properties": {"y": {"const": 1}}, "required": ["y"]}
X_THEN_Y = {"properties": {"x": {"const": 1}}, "required": ["x"], "$ref": "#/$defs/D"}
X_AND_Y = {"$defs": {"D": Y_FIRST}}
ONE_Z = {"type": "array", "prefixItems": [{"const": "Z"}], "items": False, "minItems": 1}
POINT = {"prefixItems": [{"type": "number"}] * 2, "items": False, "minItems": 2, "type": "array"}
TITLED: list[list[Any]] = [
    [{"const": v, "title": f"{v}"} for v in ("a", "b", "a", 1, 1.0, True, None)],
    [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}, {"pattern": "^[ac]"}, {"const": 2}],
    [{"type": "string", "enum": ["a", 1]}, {"const": 1}, {"type": "integer", "maximum": 1}],
    [{"$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#/$defs/a"}]}, {"const": "b"}],
    [{"const": "a"}, {"enum": ["b", {"x": 1}]}, {"const": "b"}, {"const": [1]}, {"type": "array"}],
    [{"const": "a", "minLength": 2}, {"const": "a"}, {"const": "b", "type": "integer"}],
    [{"const": 0}, {"const": False}, {"enum": [0.5, None]}],
    [{"const": 1}, {"enum": [2, [1]]}, {"const": [1]}],
    [{"enum": [1, 2], "not": {"const": 2}}, {"const": 2}],
]
POOL = [
    *(None, True, False, 0, 1, 2, 3, -1, 0.5, 1.5, 2.5, "", "a", "b", "c", "ab", "qq", "four"),
    *({}, {"a": 1}, {"b": 1}, {"x": 1}, {"x": 1, "y": 1}, {"a": 1, "b": 1}, {"a": 2, "b": 1}),
    *({"a": "t"}, {"b": 1, "c": 1}, {"a": None, "b": None}, {"n": 1}, {"n": 121}, {"a": True}),
    *([], [1], [2], [1, 2], [None], ["a"], [{}], [{"x": 1, "y": 1}], [{"x": 1}], [1, 1, 1]),
    *({"name": "abc", "at": [1, 2.5]}, {"name": "", "at": None}, {"a": [1], "z": []}),
    *({name: value} for name in ("a#const 0", "a~ const 0", "a~0 const 0") for value in ("Z", [1])),
]
OF_NOTE: list[Any] = [
    {},
    {"minLength": 3},
    {"type": "number", "minimum": 2, "exclusiveMaximum": 2.5},
    {"const": 1},
    {"enum": [True, 0]},
    {"type": "object", "additionalProperties": True, "required": ["b"]},
    {"properties": dict.fromkeys("abc", True), "anyOf": [{"required": ["a"]}, {"required": ["c"]}]},
    {"additionalProperties": False, "allOf": [{"properties": dict.fromkeys("abc", True)}]},
    {"not": {"properties": {"b": True}, "propertyNames": {"not": {"const": "b"}}}, "if": True},
    {"const": [None], "unevaluatedItems": False},
    {"enum": [{"a": 1}, {}], "unevaluatedProperties": False},
    {"allOf": [{"const": [1]}], "unevaluatedItems": {"type": "null"}},
    {"const": {"a": 1}, "unevaluatedProperties": False},
    {"enum": [[1], 2], "unevaluatedItems": {"type": "string"}},
    {"properties": {"a": {}}, "enum": [{"a": 1}, {"b": 1}], "unevaluatedProperties": False},
    {"anyOf": [{"const": [1]}, {"items": True}], "unevaluatedItems": False},
    {"unevaluatedItems": False, "if": {"const": [1]}},
    {"type": "object", "properties": {"a": ONE_OF_TWO}, "not": {"required": ["b"]}},
    {"not": {"properties": {"a": {"oneOf": [{"not": s} for s in STRINGS]}}}},
    {"items": ONE_OF_TWO, "contains": {"required": ["a"]}, "maxContains": 1, "type": "array"},
    # Texts that are compared have one order of members, wherever these are declared.
    {"type": "object", "not": {"enum": [{"a": 1, "b": 2}, {"b": 1, "a": 2}]}},
    {"type": "object", "not": X_THEN_Y} | X_AND_Y,
    {"type": "object", "oneOf": [{"minProperties": 2}, X_THEN_Y]} | X_AND_Y,
    {"type": "array", "items": {"type": "object"}, "not": {"contains": X_THEN_Y}} | X_AND_Y,
    {
        "type": "object",
        "anyOf": [{"required": ["a", "b"]}, {"required": ["a", "c"]}, {"required": ["x"]}],
        "oneOf": [{"required": ["b", "a"]}, {"required": ["c", "a"]}, {"required": ["y"]}],
        "not": {"required": ["c", "b", "q"]},
        "if": {"required": ["b", "a"]},
        "then": {"required": ["b"]},
    },
    # Names don't collide with those of schemas that are made inside.
    *(
        {"properties": {"a": {"const": [1]}, name: ONE_Z}, "type": "object"}
        for name in ("a#const 0", "a~ const 0", "a~0 const 0")
    ),
    {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 120}}},
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 5, "title": "described only"},
            "tags": {"type": "array", "items": {"enum": ["a", 'q"', "é"]}, "maxItems": 2},
            "at": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
        },
        "required": ["name", "at"],
        "$defs": {"point": POINT},
    },
    {
        "properties": {"a": {"type": "boolean"}},
        "additionalProperties": {"type": ["integer", "null"]},
    },
    # Repeats that harm nothing.
    {"required": ["a", "a"], "properties": {"a": True}},
    {"type": ["string", "null", "string"], "enum": ["a", 1, "a"]},
    {"dependentRequired": {"a": ["b", "b"]}, "properties": {"a": True, "b": True}},
    *({k: [{"$ref": "#/$defs/d"}] * 2, "$defs": {"d": {"const": 1}}} for k in ("allOf", "anyOf")),
    *(
        {keyword: branches, "$defs": {"a": {"const": "a", "description": "first"}}}
        for keyword in ("oneOf", "anyOf")
        for branches in TITLED
    ),
]


@pytest.mark.parametrize("schema", OF_NOTE)
def test_schemas_of_note_follow_the_standard(schema: Any) -> None:
    for undeclared, few_cases in (("open", _FEW_CASES), ("closed", 1)):
        with mock.patch.object(schema_choices, "_FEW_CASES", few_cases):
            agree(schema, POOL, undeclared=undeclared, count=20)


def test_whitespace_styles() -> None:
    value = {"a": [1, 2], "b": None}
    schema = {"properties": {"a": {"items": {"type": "integer"}}, "b": {"type": "null"}}}
    texts = {style: json.dumps(value, **options) for style, options in STYLES.items()}
    texts["flexible"] = f"\n{texts['flexible']} \r\n"
    for style in STYLES:
        language = json_schema({"const": value, **schema}, whitespace=style)
        accepted = {name for name, text in texts.items() if language.accepts(text)}
        assert accepted == (set(texts) if style == "flexible" else {style})
    flexible = json_schema(schema | {"type": "object"}, whitespace="flexible")
    assert flexible.accepts('{"a" : [1\t,\n2 ] }')
    assert not any(map(flexible.accepts, ('{"a":[1 2]}', '{"a":[1\u00a0]}')))


def test_optional_members_come_in_their_order_and_cost_linear_size() -> None:
    def members(count: int) -> Any:
        return {
            "type": "object",
            "properties": {f"property_{i}": {"const": 0} for i in range(count)},
        }

    language = json_schema({**members(6), "required": ["property_2", "property_4"]})
    texts = [text.decode() for text in language]
    assert len(texts) == language.count(200) == 2**4
    for text in texts:
        keys = list(json.loads(text))
        assert keys == sorted(keys)
        assert {"property_2", "property_4"} <= set(keys)
    assert json_schema(members(40)).num_states < 2.5 * json_schema(members(20)).num_states


def test_undeclared_members() -> None:
    declared = {"type": "object", "properties": {"a": {"type": "integer"}}}
    text = '{"a":1,"z":{"y":[]}}'
    assert not json_schema(declared).accepts(text)
    language = json_schema({**declared, "additionalProperties": True})
    assert language == json_schema(declared, additional_properties="open")
    assert language.accepts(text)
    assert language.accepts('{"z":1}')
    # A declared name comes in its place or not at all, in any spelling.
    for text in ('{"z":1,"a":2}', '{"a":1,"\\u0061":"x"}', '{"\\u0061":"x"}'):
        assert not language.accepts(text)


def test_a_convention_never_leaves_a_value_nothing() -> None:
    """Objects are closed, except where this would exclude every value."""
    some = {"anyOf": [{"type": "null"}, ONE_OF_TWO]}
    counted = {"type": "array", "items": STRINGS[0], "contains": {"required": ["z"]}}
    many = {"type": "object", "properties": {"a": {"type": "null"}}, "minProperties": 2}
    assert json_schema(ONE_OF_TWO) == json_schema(ONE_OF_TWO, additional_properties="open")
    for schema, accepted, refused in (
        (ONE_OF_TWO, ['{"a":1}'], ['{"a":"x"}']),
        (an_object(ONE_OF_TWO), ['{"x":{"a":1}}', "{}"], ['{"x":{"a":"x"}}', '{"y":1}']),
        (an_object(ONE_OF_TWO, "x"), ['{"x":{"b":1}}'], ['{"x":{"a":"x"}}', '{"y":1}']),
        (an_object(some), ['{"x":{"a":1}}'], ['{"x":{"a":"x"}}', '{"y":1}']),
        (counted, ['[{"z":1}]'], []),
        (many, ['{"a":null,"z":1}'], []),
    ):
        language = json_schema(schema)
        assert all(map(language.accepts, accepted))
        assert not any(map(language.accepts, refused))


def an_object(x: Any, *required: str) -> Any:
    return {"type": "object", "properties": {"x": x}, "required": list(required)}


def test_spellings_of_keys_and_constants() -> None:
    schema = {"type": "object", "properties": {"é": {"const": "a/b"}}, "required": ["é"]}
    canonical, every = json_schema(schema), json_schema(schema, escapes="all")
    for text in ('{"é":"a/b"}', '{"\\u00e9":"a/b"}'):
        assert canonical.accepts(text)
        assert every.accepts(text)
    for text in ('{"\\u00E9":"a/b"}', '{"é":"a\\/b"}', '{"é":"\\u0061/b"}'):
        assert not canonical.accepts(text)
        assert every.accepts(text)
    assert not every.accepts('{"é":"a/c"}')
    large = 10**350
    for constant, texts in (
        ({"const": 1}, {"1"}),
        ({"const": 1.0}, {"1", "1.0"}),
        ({"const": 1e23}, {"1e+23", f"{10**23}"}),
        ({"const": 0.1}, {"0.1"}),
        ({"enum": [large]}, {f"{large}"}),
        ({"type": "integer", "minimum": large, "maximum": large + 1}, {f"{large}", f"{large + 1}"}),
    ):
        assert {text.decode() for text in json_schema(constant)} == texts


# -- recursion -------------------------------------------------------------------------------

LIST = {**an_object({"type": "integer"}, "x"), "type": "object"}
LIST["properties"]["next"] = {"$ref": "#"}
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {"tree": an_object({"type": "array", "items": {"$ref": "#/$defs/tree"}}, "x")},
}


@pytest.mark.parametrize("max_depth", [1, 2, 4])
def test_recursion_is_unrolled_to_the_stated_depth(max_depth: int) -> None:
    linked, tree = json_schema(LIST, max_depth=max_depth), json_schema(TREE, max_depth=max_depth)
    chain: dict[str, Any] = {"x": 1}
    branch: dict[str, Any] = {"x": []}
    for entered in range(1, 7):
        assert linked.accepts(compact(chain)) == (entered <= max_depth)
        assert tree.accepts(compact(branch)) == (entered <= max_depth)
        chain, branch = {"x": 1, "next": chain}, {"x": [{"x": []}, branch]}
    for text in random_strings(tree, 30):
        assert Draft202012Validator(TREE).is_valid(json.loads(text))


# -- limits ----------------------------------------------------------------------------------


def _nested_negations(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"not": {"properties": {"a": schema}}}
    return schema


def test_limits_are_respected() -> None:
    many = {"anyOf": [{"minLength": i} for i in range(20)]}
    assert json_schema({"type": "string", "allOf": [many] * 5}) == json_schema({"type": "string"})
    with work_limit(50_000_000), pytest.raises(WorkLimitError, match="keyword 'not' at the root"):
        json_schema(_nested_negations(8))
    for depth in (-1, 1000, 2.5, "3", True, None):
        with pytest.raises(ConstraintError, match="expected max_depth to be a whole number"):
            check_depth(depth)
    with pytest.raises(StateLimitError, match="depth of 20"):
        json_schema({}, max_depth=20)


OLDER = ("id", "definitions", "additionalItems", "dependencies", "$recursiveRef", "$schema")


@settings(max_examples=150)
@given(
    st.recursive(
        VALUES,
        lambda inner: st.dictionaries(
            st.sampled_from([*HONORED, *OLDER, "$id", "$anchor", "$defs", "x"]), inner, max_size=4
        ),
        max_leaves=8,
    )
)
def test_hostile_schemas_end_in_a_language_or_a_named_refusal(schema: Any) -> None:
    assume(isinstance(schema, (dict, bool)))
    with suppress(ConstraintError):
        assert not json_schema(schema, unknown="ignore").is_empty


def test_what_excluded_constants_leave() -> None:
    texts = json_schema({"type": "string", "not": {"enum": [f"v{i}" for i in range(10_000)]}})
    some = ['"v10000"', '"v9999"', '"\\u00769999"']
    assert [text for text in some if texts.accepts(text)] == some[:1]
    numbers = json_schema({"not": {"enum": [7, 2.5, 0]}})
    for text in ("7", "7.0", "7.00", "2.5", "2.50", "0", "-0", "0.0", "-0.0", "7e0", "0e9"):
        assert not numbers.accepts(text), text
    for text in ("8", "-7", "2.51", "70", "true"):
        assert numbers.accepts(text), text


_OF_NUMBERS: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": "integer", "minimum": 0},
    {"type": "integer", "minimum": -5, "maximum": 0},
    {"type": "number", "minimum": 0},
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "number", "exclusiveMinimum": -1, "maximum": 1},
    {"type": "number", "maximum": 0, "minimum": 0},
    {"type": "number", "multipleOf": 0.5},
    {"type": "integer", "multipleOf": 7},
    {"type": "number", "enum": [-0.0, 3, 1.5]},
    {"const": 0},
    {"const": -0.0, "maximum": 0},
    {"enum": [1, -0.0]},
]


@pytest.mark.parametrize("schema", _OF_NUMBERS)
def test_zero_is_written_without_a_sign_and_with_one_is_the_same_value(schema: Any) -> None:
    validator = Draft202012Validator(schema)
    for form in ({}, {"not": {"const": 9}}, {"not": {"not": True}}):
        language = json_schema(schema | form)
        for text in ("0", "-1", "1", "-5", "3", "0.5", "1.5", "-7", "7"):
            is_whole = "." not in text or schema.get("type") != "integer"
            is_valid = is_whole and validator.is_valid(json.loads(text))
            assert language.accepts(text) == is_valid, text
        assert not language.accepts("-0")
        if schema.get("minimum", -1) >= 0:
            assert language.run("-") < 0  # a sign would only lead to zero
    others = json_schema({"type": ["number", "null"], "not": schema})
    without = json_schema({"anyOf": [schema, {"type": "null"}], "not": {"const": 0}})
    assert others.accepts("0") != validator.is_valid(0)
    for text in ("0", "-0", "0.0", "-0.0", "-0.000"):
        assert not (validator.is_valid(0) and others.accepts(text)), text
        assert not without.accepts(text), text


def test_zero_with_a_sign_is_no_other_element() -> None:
    for items in ({"enum": [0, 1]}, {"type": "integer", "minimum": -1, "maximum": 1}):
        schema = {"type": "array", "minItems": 2, "uniqueItems": True, "items": items}
        language = json_schema(schema)
        assert language.accepts("[0,1]")
        assert not any(language.accepts(f"[0,{text}]") for text in ("0", "-0", "-0.0"))


def test_any_order() -> None:
    schema = {"type": "object", "properties": {n: {"const": 1} for n in "abc"}, "required": ["b"]}
    language = json_schema(schema, any_order=3)
    assert language.count(40) == 1 + 2 * 2 + 6
    assert language.accepts('{"c":1,"b":1}')
    assert not language.accepts('{"b":1,"c":1,"b":1}')
    assert json_schema(schema, any_order=2) == json_schema(schema)
    with pytest.raises(ConstraintError, match="expected any_order to be"):
        json_schema(schema, any_order=9)
    without = json_schema({**schema, "not": {"required": ["c"]}}, any_order=3)
    assert {t.decode() for t in without} == {'{"b":1}', '{"a":1,"b":1}', '{"b":1,"a":1}'}
