"""Schemas as providers and generators write them, in wrappers, and values that are not schemas."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import gcd
from gcd import ConstraintError, EmptyLanguageError, UnsupportedSchemaError, json_schema

N = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
NAMED = {"name": "answer", "schema": N}


@pytest.fixture(autouse=True)
def _no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", gcd.IgnoredKeywordWarning)
        yield


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        (NAMED, "/schema"),
        ({**NAMED, "strict": True, "description": None}, "/schema"),
        ({"strict": False, "schema": N}, "/schema"),
        ({"type": "json_schema", "json_schema": NAMED}, "/json_schema/schema"),
        ({"type": "json_schema", **NAMED}, "/schema"),
        ({"type": "json_object", "schema": N}, "/schema"),
        ({"type": "json", "value": N}, "/value"),
        ({"format": {"type": "json_schema", **NAMED}}, "/format/schema"),
        ({"text": {"format": {"type": "json_schema", **NAMED}}}, "/text/format/schema"),
        (
            {"model": "m", "messages": [], "response_format": {"type": "json_schema", "schema": N}},
            "/response_format/schema",
        ),
        ({"generationConfig": {"responseSchema": N}}, "/generationConfig/responseSchema"),
        ({"guided_json": N}, "/guided_json"),
    ],
)
def test_wrappers_are_removed(given: Any, pointer: str) -> None:
    assert json_schema(given) == json_schema(N)
    assert json_schema(json.dumps(given)) == json_schema(N)
    wrong = json.loads(json.dumps(given).replace('"integer"', '"whole"'))
    with pytest.raises(ConstraintError, match=f"'type' at '{pointer}/properties/n'"):
        json_schema(wrong)


@pytest.mark.parametrize("given", [{"type": "json_object"}, {"format": {"type": "json_object"}}])
def test_the_mode_for_json_is_any_object(given: Any) -> None:
    assert json_schema(given) == json_schema({"type": "object"})


API = {"openapi": "3.1.0", "info": {}, "paths": {}, "components": {"schemas": {"A/B": N}}}


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"city": "string"}, '"properties": {"city": '),
        ({"title": "t", "city": {"type": "string"}}, '"properties": {"city": '),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "minLenth": 3}, "minLenth"),
        ({"A": N, "B": N}, '"properties": {"A": '),
        ({"name": {"type": "string"}, "schema": {"type": "string"}}, '"properties": {"name": '),
        ({"text": {"type": "string"}}, '"properties": {"text": '),
        ({"name": "answer", "strict": True}, "none of its keywords"),
        (API, '"$ref": "#/components/schemas/A~1B"'),
        ({"swagger": "2.0", "paths": {}, "definitions": {"A": N}}, '"$ref": "#/definitions/A"'),
        ({"name": "f", "description": "d", "parameters": N}, "gcd.tool_calls"),
        ({"type": "function", "function": {"name": "f", "parameters": N}}, "gcd.tool_calls"),
    ],
)
def test_a_mapping_without_keywords_is_no_schema(given: Any, remedy: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        json_schema(given, unknown="ignore")
    assert remedy in str(caught.value)


@pytest.mark.parametrize("given", [{}, True, {"title": "t"}, {"x-a": 1}, {"$defs": {"a": N}}])
def test_schemas_of_any_value(given: Any) -> None:
    assert json_schema(given) == json_schema(True)


def test_a_schema_of_an_api_is_selected_by_a_reference() -> None:
    dialect = "https://spec.openapis.org/oas/3.1/dialect/base"
    given = {**API, "jsonSchemaDialect": dialect, "$ref": "#/components/schemas/A~1B"}
    assert json_schema(given) == json_schema({"$schema": dialect, **N}) == json_schema(N)


@pytest.mark.parametrize(
    ("generated", "standard"),
    [
        ({"type": "STRING"}, {"type": "string"}),
        ({"type": ["Integer", "NULL"]}, {"type": ["integer", "null"]}),
        ({"type": "array", "minItems": "1"}, {"type": "array", "minItems": 1}),
        ({"type": "object", "properties": None, "required": None}, {"type": "object"}),
        ({"type": None, "anyOf": [{"type": "null"}], "enum": None, "a": None}, {"type": "null"}),
        ({"const": None}, {"type": "null"}),
        ({"type": "integer", "format": "uint"}, {"type": "integer"}),
        ({"type": ["number", "null"], "format": "money"}, {"type": ["number", "null"]}),
        ({"type": "string", "format": "cuid2", "pattern": "^a$"}, {"const": "a"}),
        ({"type": "string", "format": "enum", "enum": ["a"]}, {"const": "a"}),
    ],
)  # fmt: skip
def test_spellings_of_generators(generated: Any, standard: Any) -> None:
    assert json_schema(generated) == json_schema(standard)
    inside = {"type": "OBJECT", "properties": {"a": generated}}
    assert json_schema(inside) == json_schema({"type": "object", "properties": {"a": standard}})


def test_what_a_format_does_not_mean_is_reported() -> None:
    for schema in (
        {"type": "string", "format": "cuid2"},
        {"format": "money"},
        {"pattern": "a", "format": "iri"},
    ):
        with pytest.warns(gcd.IgnoredKeywordWarning, match="'format' at the root"):
            json_schema(schema)  # fmt: skip
    with pytest.raises(ConstraintError, match=r"'type' at the root .* got None"):
        json_schema({"type": None, "description": "a value"})


def test_the_order_of_members_may_be_given() -> None:
    members: Any = {name: {"type": "integer"} for name in "abc"}
    schema = {"type": "object", "properties": members, "required": ["a", "c"]}
    ordered = {**schema, "propertyOrdering": ["c", "unknown", "a"]}
    language = json_schema({"type": "array", "items": ordered})
    assert language.accepts('[{"c":1,"a":2,"b":3}]')
    assert not language.accepts('[{"a":2,"b":3,"c":1}]')
    # Languages that are compared have the same order.
    without = json_schema({**ordered, "not": {"required": ["b"]}})
    assert without.accepts('{"c":1,"a":2}')
    assert not without.accepts('{"c":1,"a":2,"b":3}')
    with pytest.raises(ConstraintError, match=r"'propertyOrdering' at the root .* list of names"):
        json_schema({**schema, "propertyOrdering": "a"})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"a": "string"}}, """'/properties/a' .* write {"type": "string"}"""),
        ({"items": {"anyOf": [{}, "text"]}}, "'/items/anyOf/1' .* got 'text'; correct it"),
        ({"properties": {"a": None}}, "'/properties/a' .* got None"),
        ({"properties": {1: {}}}, "'properties' at the root"),
        ({"properties": {"a": {"pattern": "/^a$/"}}}, r"'/properties/a' .* write '\^a\$'"),
        ({"patternProperties": {"/a$/": {}}}, r"'patternProperties' at the root .* write 'a\$'"),
    ],
)
def test_messages_name_the_part_and_the_remedy(schema: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        json_schema(schema)


def test_slashes_of_a_pattern_are_text() -> None:
    assert json_schema({"type": "string", "pattern": "^/a/b/$"}).accepts('"/a/b/"')
    assert json_schema({"type": "string", "pattern": "/a/"}).accepts('"b/a/"')
    with pytest.warns(gcd.IgnoredKeywordWarning, match="'pattern' at the root has slashes"):
        json_schema({"type": "string", "pattern": "/a/i"})


@pytest.mark.parametrize(
    ("schema", "clash"),
    [
        (
            {"type": "string", "minLength": 0, "format": "date", "pattern": "/"},
            "type, minLength, format and pattern exclude each other",
        ),
        ({"enum": ["a", "bc"], "maxLength": 0}, "enum and maxLength exclude each other"),
        (
            {"allOf": [{"type": "null"}, {"type": "array"}]},
            "type at '.*/allOf/0' and type at '.*/allOf/1' exclude each other",
        ),
        ({"enum": []}, "enum excludes every value"),
        ({"type": "integer", "minimum": 1, "exclusiveMaximum": 2, "multipleOf": 2}, "minimum, "),
        ({"type": "string", "not": {"type": "string"}}, "schema; correct the schema"),
    ],
)  # fmt: skip
def test_keywords_that_exclude_each_other_are_named(schema: Any, clash: str) -> None:
    with pytest.raises(EmptyLanguageError, match=clash):
        json_schema(schema)
    part = {"type": "object", "properties": {"d": schema}, "required": ["d"]}
    inside = "has no values; correct" if "correct" in clash else clash
    with pytest.raises(
        EmptyLanguageError, match=f"the part at '/properties/d' .*{inside}|{inside}"
    ):
        json_schema(part)


SPELLED: list[Any] = [
    {"type": "string", "pattern": "^a"},
    {"type": "string", "not": {"pattern": "^a"}},
    {"type": "string", "pattern": "^[a-c/é]+$", "not": {"pattern": "b"}},
    {"type": "string", "oneOf": [{"pattern": "a"}, {"pattern": "b"}]},
    {"type": "string", "pattern": "^a", "not": {"not": {"pattern": "b$"}}},
    {"type": "string", "anyOf": [{"pattern": "a"}, {"const": "é"}], "not": {"enum": ["a", "ab"]}},
]


@pytest.mark.parametrize("schema", SPELLED)
def test_escapes_that_json_does_not_need_are_left_out(schema: Any) -> None:
    """Never a wrong value in any spelling; every right value as `json.dumps` writes it."""
    validator = Draft202012Validator(schema)
    narrow, every = json_schema(schema), json_schema(schema, escapes="all")
    as_key = json_schema(
        {"propertyNames": schema, "additionalProperties": {"const": 1}, "type": "object"}
    )
    for value in ("a", "b", "ab", "ba", "c", "é", "a/é", 'a"\\', "a\x7f\n"):
        escaped = '"' + "".join(f"\\u{ord(character):04X}" for character in value) + '"'
        is_valid = validator.is_valid(value)
        for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
            assert narrow.accepts(text) == every.accepts(text) == is_valid
            assert as_key.accepts(f"{{{text}:1}}") == is_valid
        assert every.accepts(escaped) == is_valid
        if not is_valid:
            assert not narrow.accepts(escaped)
        elif schema.keys() == {"type", "pattern"}:
            assert narrow.accepts(escaped) == (value == "é")


def test_names_that_match_a_pattern_are_not_escaped() -> None:
    schema = {
        "type": "object",
        "patternProperties": {"^a": {"const": 1}},
        "additionalProperties": {"const": 2},
    }
    language = json_schema(schema)
    assert language.accepts('{"a":1,"b":2}')
    assert not language.accepts('{"\\u0061":1}')
    assert not language.accepts('{"\\u0061":2}')


def test_a_class_of_dates_is_written_in_digits() -> None:
    import datetime

    assert json_schema(datetime.date).accepts('"2024-01-01"')
    assert not json_schema(datetime.date).accepts('"2\\u003024-01-01"')
    assert json_schema(datetime.date, escapes="all").accepts('"2\\u003024-01-01"')
    with pytest.raises(UnsupportedSchemaError, match="write `\\$`"):
        json_schema({"pattern": r"a\Z"})
