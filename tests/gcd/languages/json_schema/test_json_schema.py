"""Schemas as languages, judged by the `jsonschema` library.

The main test draws schemas and values together and compares both verdicts. Two restrictions of the
draws make them equal without exception: names are declared in alphabetical order, so that sorted
keys are in declared order, and a number is whole exactly if it has no fraction.
"""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import product
from typing import Any
from unittest import mock

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gcd import (
    ConstraintError,
    EmptyLanguageError,
    StateLimitError,
    UnsupportedSchemaError,
    WorkLimitError,
    json_schema,
    state_limit,
    work_limit,
)
from gcd._languages.json_schema import choices as schema_choices
from gcd._languages.json_schema.keywords import HONORED
from gcd._languages.json_schema.schema import check_depth
from tests.gcd.languages.json_schema.strategies import (
    SCHEMAS,
    STYLES,
    VALUES,
    agree,
    compact,
)
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
    *(
        {keyword: branches, "$defs": {"a": {"const": "a", "description": "first"}}}
        for keyword in ("oneOf", "anyOf")
        for branches in TITLED
    ),
]


@pytest.mark.parametrize("schema", OF_NOTE)
def test_schemas_of_note_follow_the_standard(schema: Any) -> None:
    for undeclared, few_cases in product(("open", "closed"), (1, _FEW_CASES)):
        with mock.patch.object(schema_choices, "_FEW_CASES", few_cases):
            agree(schema, POOL, undeclared=undeclared, count=20)


def test_whitespace_styles() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": "null"}},
    }
    value = {"a": [1, 2], "b": None}
    texts = {
        "compact": '{"a":[1,2],"b":null}',
        "spaced": json.dumps(value),
        "flexible": "\n" + json.dumps(value, indent="\t") + " \r\n",
    }
    for style in ("compact", "spaced", "flexible"):
        language = json_schema(schema, whitespace=style)
        accepted = {name for name, text in texts.items() if language.accepts(text)}
        assert accepted == (set(texts) if style == "flexible" else {style})
    assert not json_schema(schema, whitespace="flexible").accepts('{"a":[1 2]}')
    assert not json_schema(schema, whitespace="flexible").accepts('{"a":[1\u00a0]}')


def test_declared_order_and_optional_members() -> None:
    names = [f"p{i}" for i in range(6)]
    schema = {
        "type": "object",
        "properties": {name: {"const": 0} for name in names},
        "required": ["p2", "p4"],
    }
    language = json_schema(schema)
    assert language.count(200) == 2**4
    texts = [text.decode() for text in language]
    assert len(texts) == 2**4
    for text in texts:
        keys = list(json.loads(text))
        assert keys == sorted(keys)
        assert {"p2", "p4"} <= set(keys)


def test_many_optional_members_cost_linear_size() -> None:
    def states(count: int) -> int:
        properties = {f"property_{i}": {"type": "string"} for i in range(count)}
        return json_schema({"type": "object", "properties": properties}).num_states

    assert states(40) < 2.5 * states(20)


def test_undeclared_members() -> None:
    declared = {"type": "object", "properties": {"a": {"type": "integer"}}}
    open_text, twice = '{"a":1,"z":{"y":[]}}', '{"z":1,"a":2}'
    closed = json_schema(declared)
    assert closed.accepts('{"a":1}')
    assert not closed.accepts(open_text)
    for language in (
        json_schema({**declared, "additionalProperties": True}),
        json_schema(declared, additional_properties="open"),
    ):
        assert language.accepts(open_text)
        assert language.accepts('{"z":1}')
        assert not language.accepts(twice), "a declared name comes in its place or not at all"
        assert not language.accepts('{"a":1,"\\u0061":"no integer"}'), "in any spelling"
        assert not language.accepts('{"\\u0061":"no integer"}')
    free = json_schema({"type": "object"})
    assert free.accepts('{"any":[{"thing":1}]}')


def test_a_convention_never_leaves_a_value_nothing() -> None:
    alone = json_schema(ONE_OF_TWO)
    assert alone == json_schema(ONE_OF_TWO, additional_properties="open")
    assert alone.accepts('{"a":1}')
    assert not alone.accepts('{"a":"x"}')
    for inside, texts in (
        ({"properties": {"x": ONE_OF_TWO}}, ('{"x":{"a":1}}', "{}")),
        ({"properties": {"x": ONE_OF_TWO}, "required": ["x"]}, ('{"x":{"b":1}}',)),
        ({"properties": {"x": {"anyOf": [{"type": "null"}, ONE_OF_TWO]}}}, ('{"x":{"a":1}}',)),
    ):
        language = json_schema({"type": "object", **inside})
        assert all(map(language.accepts, texts))
        assert not language.accepts('{"x":{"a":"x"}}')
        assert not language.accepts('{"y":1}'), "the convention stays in force around it"
    counted = {"type": "array", "items": STRINGS[0], "contains": {"required": ["z"]}}
    assert json_schema(counted).accepts('[{"z":1}]')
    many = {"type": "object", "properties": {"a": {"type": "null"}}, "minProperties": 2}
    assert json_schema(many).accepts('{"a":null,"z":1}')
    with pytest.raises(EmptyLanguageError):
        json_schema({**many, "additionalProperties": False})


def test_spellings_of_keys_and_constants() -> None:
    schema = {"type": "object", "properties": {"é": {"const": "a/b"}}, "required": ["é"]}
    canonical, every = json_schema(schema), json_schema(schema, escapes="all")
    assert canonical.accepts('{"é":"a/b"}')
    assert canonical.accepts('{"\\u00e9":"a/b"}')
    for other in ('{"\\u00E9":"a/b"}', '{"é":"a\\/b"}', '{"é":"\\u0061/b"}'):
        assert not canonical.accepts(other)
        assert every.accepts(other)
    assert not every.accepts('{"é":"a/c"}')


@pytest.mark.parametrize(
    ("value", "texts"),
    [(1, {"1"}), (1.0, {"1", "1.0"}), (1e23, {"1e+23", "1" + "0" * 23}), (0.1, {"0.1"})],
)
def test_numeric_constants(value: float, texts: set[str]) -> None:
    assert {t.decode() for t in json_schema({"const": value})} == texts


# -- recursion -------------------------------------------------------------------------------

LIST = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}},
    "required": ["v"],
}
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "required": ["kids"],
        }
    },
}


@pytest.mark.parametrize("max_depth", [1, 2, 4])
def test_recursion_is_unrolled_to_the_stated_depth(max_depth: int) -> None:
    linked, tree = json_schema(LIST, max_depth=max_depth), json_schema(TREE, max_depth=max_depth)
    chain: dict[str, Any] = {"v": 1}
    branch: dict[str, Any] = {"kids": []}
    for entered in range(1, 7):
        assert linked.accepts(compact(chain)) == (entered <= max_depth)
        assert tree.accepts(compact(branch)) == (entered <= max_depth)
        chain, branch = {"v": 1, "next": chain}, {"kids": [{"kids": []}, branch]}
    for text in random_strings(tree, 30):
        assert Draft202012Validator(TREE).is_valid(json.loads(text))


def test_a_recursion_that_cannot_end_is_empty() -> None:
    endless = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    with pytest.raises(EmptyLanguageError, match="max_depth=3"):
        json_schema(endless)
    with pytest.raises(EmptyLanguageError, match="max_depth=0"):
        json_schema(TREE, max_depth=0)


def test_integers_beyond_every_float_are_exact() -> None:
    large = 10**350
    language = json_schema({"type": "integer", "minimum": large, "maximum": large + 1})
    assert {int(text) for text in language} == {large, large + 1}
    assert {int(text) for text in json_schema({"enum": [large]})} == {large}
    for larger in (10**401, -(10**401), 10**5000):
        for schema in ({"minimum": larger}, {"enum": [larger]}, {"minLength": larger}):
            with pytest.raises(ConstraintError):
                json_schema(schema)


# -- bad input -------------------------------------------------------------------------------

NEWEST = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        ({"type": "string", "pattern": r"(a)\1"}, "pattern", ""),
        (
            {"properties": {"a/b": {"items": {"disallow": {}}}}},
            "disallow",
            "/properties/a~1b/items",
        ),
        ({"anyOf": [{"type": "null"}, {"extends": []}]}, "extends", "/anyOf/1"),
        ({"$ref": "#/$defs/d", "$defs": {"d": {"divisibleBy": 2}}}, "divisibleBy", "/$defs/d"),
        ({"items": {"uniqueItems": True}}, "uniqueItems", "/items"),
        ({"patternProperties": {r"(x)\1": True}}, "patternProperties", ""),
        ({"items": {"$ref": "https://example.com/schema"}}, "$ref", "/items"),
        (
            {
                "$defs": {
                    "x": {"$id": "x", "$dynamicAnchor": "n"},
                    "y": {"$id": "y", "$dynamicAnchor": "n"},
                },
                "items": {"$dynamicRef": "x#n"},
            },
            "$dynamicRef",
            "/items",
        ),
        (
            {
                "$defs": {
                    "x": {"$id": "x", "$recursiveAnchor": True, "not": {"$recursiveRef": "#"}},
                    "y": {"$id": "y", "$recursiveAnchor": True},
                },
                "items": {"$ref": "x"},
            },
            "$recursiveRef",
            "/$defs/x/not",
        ),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$schema", ""),
        ({"$schema": "https://example.com/dialect"}, "$schema", ""),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "not": {"$schema": "http://json-schema.org/draft-04/schema#"},
            },
            "$schema",
            "/not",
        ),
        (
            {"items": {"$ref": "a"}, "$defs": {"b": {"$id": "a"}, "c": {"$id": "a"}}},
            "$ref",
            "/items",
        ),
        (
            {"items": {"$ref": "#a"}, "$defs": {"b": {"$anchor": "a"}, "c": {"$anchor": "a"}}},
            "$ref",
            "/items",
        ),
    ],
)
def test_what_is_not_honored_is_refused_by_name(schema: Any, keyword: str, pointer: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=keyword.replace("$", r"\$")) as caught:
        json_schema(schema, unsupported="refuse")
    assert (caught.value.keyword, caught.value.pointer) == (keyword, pointer)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": []}, "'properties' at the root"),
        ({"properties": {"a": 3}}, "the schema at '/properties/a'"),
        ({"items": {"type": "text"}}, "'type' at '/items'"),
        ({"type": []}, "'type'"),
        ({"maxLength": -1}, "'maxLength'.*-1"),
        ({"minItems": 1.5}, "'minItems'.*1.5"),
        ({"minimum": "3"}, "'minimum'"),
        ({"maximum": float("nan")}, "'maximum'"),
        ({"required": ["a", 1]}, "'required'"),
        ({"enum": "abc"}, "'enum'"),
        ({"enum": [float("inf")]}, "'enum'"),
        ({"const": object()}, "'const'"),
        ({"anyOf": []}, "'anyOf'"),
        ({"oneOf": []}, "'oneOf'"),
        ({"not": 3}, "'not'"),
        ({"multipleOf": 0}, "'multipleOf'.*0"),
        ({"uniqueItems": 1}, "'uniqueItems'"),
        ({"dependentRequired": {"a": "b"}}, "'dependentRequired'"),
        ({"$ref": "#nowhere"}, "add an .anchor"),
        ({"$ref": "#/$defs/none"}, "has no target"),
        ({"$ref": "#/title", "title": "t"}, "to be an object or a boolean"),
        ({"$ref": "#"}, "leads back to itself"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            "leads back to itself",
        ),
        ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "leads back to itself"),
        ({"allOf": [True], "$ref": "#/allOf/-1"}, "has no target"),
        ({"$id": "http://x/", "items": {"$id": "//[y"}}, "expected a URI reference"),
        ({"$schema": NEWEST, "$id": "#foo"}, "anchor"),
        ({"$schema": NEWEST, "properties": {"a": {"$id": "x#y"}}}, "/properties/a"),
        ("string", "expected a JSON schema .* got the text"),
        ('"string"', "to be an object or a boolean"),
        (None, "to be an object or a boolean"),
    ],
)
def test_malformed_schemas_are_reported_with_the_problem(schema: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        json_schema(schema)


def test_large_enums_are_compiled_at_once() -> None:
    language = json_schema({"enum": [f"value {i}" for i in range(5000)] + list(range(5000))})
    assert language.count(30) == 10_000


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
    with state_limit(50), pytest.raises(StateLimitError):
        json_schema({"type": "string", "maxLength": 97}, unsupported="refuse")
    for depth in (-1, 1000):
        with pytest.raises(ConstraintError, match="max_depth"):
            json_schema({}, max_depth=depth)
    for no_depth in (2.5, "3", True, None):
        with pytest.raises(ConstraintError, match="expected max_depth to be a whole number"):
            check_depth(no_depth)
    with pytest.raises(StateLimitError, match="depth of 20"):
        json_schema({}, max_depth=20)
    doubled: Any = {}
    for _ in range(30):
        doubled = {"properties": {"a": doubled, "b": doubled}}
    with pytest.raises(ConstraintError, match="at most 50000 schemas"):
        json_schema(doubled)
    nested: dict[str, Any] = {}
    for _ in range(200):
        nested = {"items": nested}
    with pytest.raises(ConstraintError, match=r"expected at most .* nested schemas"):
        json_schema(nested)
    choices = {"anyOf": [{"properties": {f"p{i}": True}} for i in range(20)]}
    with pytest.raises(ConstraintError, match="alternatives"):
        json_schema({"allOf": [choices] * 5})


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


LETTERS = "abcdefgh"
HUGE: dict[str, Any] = {
    "excluded texts": {"type": "string", "not": {"enum": [f"v{i}" for i in range(10_000)]}},
    "excluded numbers": {"type": "integer", "not": {"enum": list(range(10_000))}},
    "different elements": {
        "type": "array",
        "items": {"enum": list("abcdefghij")},
        "uniqueItems": True,
    },
    "patterns of names": {
        "type": "object",
        "patternProperties": {f"^{letter}": {"type": "null"} for letter in LETTERS},
    },
    "one of many": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": i}, f"field {i}": {"type": "string"}},
                "required": ["kind"],
            }
            for i in range(20)
        ]
    },
    "conditions": {
        "type": "object",
        "properties": {letter: {"enum": [1, 2]} for letter in LETTERS},
        "allOf": [
            {
                "if": {"properties": {a: {"const": 1}}, "required": [a]},
                "then": {"required": [b]},
            }
            for a, b in zip(LETTERS, LETTERS[1:] + "a", strict=True)
        ],
    },
    "negations": _nested_negations(4) | {"type": "object"},
    "counted members": {"type": "object", "minProperties": 10**6},
    "counted elements": {"contains": {"type": "null"}, "minContains": 10**6, "type": "array"},
    "an exploding pattern": {"type": "string", "pattern": "(a|b)*a(a|b){22}"},
    "a long pattern": {"type": "string", "pattern": r"(\w{50}){50}"},
    "a fine divisor": {"type": "number", "multipleOf": 0.123456789},
    "choices beside choices": {
        "allOf": [
            {"anyOf": [{"properties": {f"{i} {j}": True}} for i in range(20)]} for j in range(6)
        ]
    },
}


@pytest.mark.parametrize("name", HUGE)
def test_huge_schemas_end_in_a_language_or_a_named_refusal(name: str) -> None:
    with suppress(ConstraintError):
        assert not json_schema(HUGE[name]).is_empty


def test_what_excluded_constants_leave() -> None:
    texts = json_schema({"type": "string", "not": {"enum": [f"v{i}" for i in range(10_000)]}})
    assert not texts.accepts('"v9999"')
    assert not texts.accepts('"\\u00769999"')
    assert texts.accepts('"v10000"')
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
@pytest.mark.parametrize("form", [{}, {"not": {"const": 9}}, {"not": {"not": True}}])
def test_zero_is_written_without_a_sign(schema: Any, form: Any) -> None:
    language = json_schema(schema | form)
    validator = Draft202012Validator(schema)
    for text in ("0", "-1", "1", "-5", "3", "0.5", "1.5", "-7", "7"):
        is_whole = "." not in text or schema.get("type") != "integer"
        assert language.accepts(text) == (is_whole and validator.is_valid(json.loads(text))), text
    assert not language.accepts("-0")
    if schema.get("minimum", -1) >= 0:
        assert language.run("-") < 0  # a sign would only lead to zero


@pytest.mark.parametrize("schema", _OF_NUMBERS)
def test_zero_with_a_sign_is_the_same_value(schema: Any) -> None:
    is_valid = Draft202012Validator(schema).is_valid(0)
    others = json_schema({"type": ["number", "null"], "not": schema})
    without = json_schema({"anyOf": [schema, {"type": "null"}], "not": {"const": 0}})
    assert others.accepts("0") != is_valid
    for text in ("0", "-0", "0.0", "-0.0", "-0.000"):
        assert not (is_valid and others.accepts(text)), text
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


def test_more_members_than_there_can_be() -> None:
    for fewest in (3, 10**6, 10**300):
        schema = {"type": "object", "additionalProperties": False, "minProperties": fewest}
        with pytest.raises(EmptyLanguageError):
            json_schema(schema)


def test_an_empty_schema_names_the_innermost_part_that_every_value_needs() -> None:
    none = {"type": "string", "minLength": 3, "maxLength": 2}
    within = {"type": "object", "properties": {"k": none, "free": none}, "required": ["k"]}
    listed = {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}
    outer = {"type": "object", "properties": {"a": {}, "b": listed}, "required": ["a", "b"]}
    with pytest.raises(
        EmptyLanguageError, match=r"[$]defs/x/properties/k' has no values, because .*; correct it$"
    ):
        json_schema({**outer, "$defs": {"x": within}})
    with pytest.raises(
        EmptyLanguageError,
        match="schema: type, minLength and maxLength exclude each other; correct the",
    ):
        json_schema(none)
    assert json_schema({**outer, "required": ["a"], "$defs": {"x": within}}).accepts('{"a":1}')
