"""Schemas as providers and generators write them, in wrappers, and values that are not schemas."""

from __future__ import annotations

import datetime
import json
import warnings
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import gcd
from gcd import ConstraintError, json_schema

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


API: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {},
    "paths": {},
    "components": {"schemas": {"A/B": N}},
    "jsonSchemaDialect": "https://spec.openapis.org/oas/3.1/dialect/base",
}


def test_documents_that_are_not_schemas_alone() -> None:
    for mode in ({"type": "json_object"}, {"format": {"type": "json_object"}}):
        assert json_schema(mode) == json_schema({"type": "object"})
    assert json_schema({**API, "$ref": "#/components/schemas/A~1B"}) == json_schema(N)


@pytest.mark.parametrize(
    ("generated", "standard"),
    [
        *((schema, True) for schema in ({}, {"title": "t"}, {"x-a": 1}, {"$defs": {"a": N}})),
        ({"$schema": API["jsonSchemaDialect"], **N}, N),
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


def test_what_a_keyword_does_not_mean_is_reported() -> None:
    for schema, said in (
        ({"type": "string", "format": "cuid2"}, "'format' at the root"),
        ({"format": "money"}, "'format' at the root"),
        ({"pattern": "a", "format": "iri"}, "'format' at the root"),
        ({"type": "string", "pattern": "/a/i"}, "'pattern' at the root has slashes"),
    ):
        with pytest.warns(gcd.IgnoredKeywordWarning, match=said):
            json_schema(schema)
    # The slashes of a pattern without flags are text.
    assert json_schema({"type": "string", "pattern": "^/a/b/$"}).accepts('"/a/b/"')
    assert json_schema({"type": "string", "pattern": "/a/"}).accepts('"b/a/"')


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


def test_names_and_dates_are_escaped_only_where_every_spelling_is_asked_for() -> None:
    schema = {
        "type": "object",
        "patternProperties": {"^a": {"const": 1}},
        "additionalProperties": {"const": 2},
    }
    language = json_schema(schema)
    assert language.accepts('{"a":1,"b":2}')
    assert not language.accepts('{"\\u0061":1}')
    assert not language.accepts('{"\\u0061":2}')
    assert json_schema(datetime.date).accepts('"2024-01-01"')
    assert not json_schema(datetime.date).accepts('"2\\u003024-01-01"')
    assert json_schema(datetime.date, escapes="all").accepts('"2\\u003024-01-01"')
