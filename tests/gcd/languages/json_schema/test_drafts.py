"""Every draft, compared with the `jsonschema` library's validator, and ignored keywords."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gcd
from gcd._languages.json_schema.keywords import DRAFTS, draft_of
from tests.gcd.languages.json_schema.strategies import VALIDATORS, VALUES, agree, compact, orders

OLD = ("4", "6", "7")


def _schemas(draft: str) -> st.SearchStrategy[Any]:
    """Schemas with the keywords that differ between drafts, including those of other drafts."""

    def few(most: int, **keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        chosen = st.lists(st.sampled_from(sorted(keywords)), max_size=most, unique=True)
        return chosen.flatmap(lambda names: st.fixed_dictionaries({n: keywords[n] for n in names}))

    at, size = "definitions" if draft in OLD else "$defs", st.integers(0, 2)
    leaf = {
        "type": st.sampled_from(["null", "integer", "string", "array"]),
        "exclusiveMinimum": st.booleans() if draft == "4" else size,
        "minimum": size,
        "maxLength": size,
        "const": st.sampled_from([1, "p", None]),
        "format": st.just("no format of any draft"),
    }
    to_it = {"$ref": st.sampled_from([f"#/{at}/d", "#here"])}
    inner = few(2, **leaf, **to_it) | (few(1, **leaf) if draft == "4" else st.booleans())
    several = st.lists(inner, min_size=1, max_size=2)
    of_a_schema = (
        *("additionalItems", "contains", "unevaluatedItems", "additionalProperties", "not"),
        *("unevaluatedProperties", "if", "then", "else"),
    )
    keywords = {
        **dict.fromkeys(of_a_schema, inner),
        **dict.fromkeys(("minContains", "maxContains", "minItems"), size),
        **dict.fromkeys(("prefixItems", "anyOf", "oneOf"), several),
        "items": inner if draft == "2020-12" else inner | several,
        "properties": st.fixed_dictionaries(dict.fromkeys("abc", inner)),
        "required": st.sampled_from([["a"], ["b", "c"]]),
        "propertyNames": st.sampled_from([{"maxLength": 1}, {"enum": ["a", "b"]}]),
        "dependentRequired": st.just({"a": ["b"]}),
        "dependentSchemas": st.fixed_dictionaries({"a": inner}),
    }
    if draft in OLD:  # the library ignores it in newer drafts
        keywords["dependencies"] = st.fixed_dictionaries({"a": inner, "b": st.just(["c"])})
    name = {"id": "#here"} if draft == "4" else {"$id": "#here"}
    name = name if draft in OLD else {"$anchor": "here"}
    return st.builds(
        lambda schema, target: {**schema, at: {"d": {**target, **name}}},
        few(5, **leaf, **to_it, **keywords),
        few(2, **leaf),
    )


@pytest.mark.parametrize("draft", DRAFTS)
def test_each_draft_accepts_what_its_validator_accepts(draft: str) -> None:
    @settings(max_examples=40)
    @given(_schemas(draft), st.lists(VALUES, min_size=1, max_size=6))
    def check(schema: Any, values: list[Any]) -> None:
        # In 2019-09 the library includes matches of `contains` in `unevaluatedItems`, and mistakes
        # the keywords of a schema in `additionalProperties` for names.
        shown, unlike = json.dumps(schema), {"contains", "unevaluatedItems"} <= schema.keys()
        unlike |= '"additionalProperties": {' in shown and "unevaluatedProperties" in shown
        assume(draft != "2019-09" or not unlike)
        agree(schema, values, draft=draft)

    check()


R, D = "#/definitions/d", {"d": {"type": "null"}}
TUPLE = {"items": [{"type": "null"}], "additionalItems": {"type": "integer"}}
TWIN = [
    {"$id": "x", "definitions": {"e": {"const": i}}, "items": {"$ref": "#/definitions/e"}}
    for i in range(3)
]
CASES: list[tuple[Any, Any, dict[str, bool | None]]] = [
    # schema, value, draft (or "": none said) -> whether it is valid; None: the schema is an error
    (TUPLE, [None, None], {"4": False, "7": False, "2019-09": False, "2020-12": None, "": False}),
    ({"additionalItems": False}, [1], {"4": True, "2019-09": True, "2020-12": True, "": True}),
    ({"prefixItems": [{"type": "null"}]}, [1], {"2019-09": True, "2020-12": False, "": False}),
    ({"items": []}, [1], {"4": True, "2019-09": True, "2020-12": None, "": True}),
    ({"minimum": 1, "exclusiveMinimum": True}, 1, {"4": False, "6": None, "": False}),
    ({"minimum": 1, "exclusiveMinimum": False}, 1, {"4": True, "6": None, "": True}),
    ({"exclusiveMaximum": True}, 1, {"4": True, "": True}),
    ({"exclusiveMinimum": 1}, 1, {"4": None, "6": False, "": False}),
    ({"const": 1}, 2, {"4": True, "6": False, "": False}),
    ({"if": True, "then": False}, 2, {"6": True, "7": False, "": False}),
    ({"contains": {"type": "null"}, "minContains": 0}, [], {"7": False, "2019-09": True, "": True}),
    ({"dependencies": {"a": ["b"]}}, {"a": 1}, dict.fromkeys([*DRAFTS, ""], False)),
    ({"dependencies": {"c": {"required": ["d"]}}}, {"c": 1}, dict.fromkeys([*DRAFTS, ""], False)),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, {"7": True, "2019-09": False, "": False}),
    ({"$ref": R, "definitions": D, "type": "integer"}, None, {"7": True, "2019-09": False}),
    ({"$ref": R, "definitions": D, "type": "integer"}, None, {"": False}),
    ({"$ref": "#x", "definitions": {"d": {"id": "#x"}}}, 1, {"4": True, "6": None, "": True}),
    ({"$ref": "#x", "definitions": {"d": {"$id": "#x"}}}, 1, {"4": None, "7": True, "": True}),
    ({"$ref": "#x", "definitions": {"d": {"$id": "#x"}}}, 1, {"2019-09": None, "2020-12": None}),
    ({"items": {"$ref": "#/items/0"}}, [1], {"4": None, "": None}),
    ({**TUPLE, "additionalItems": {"$ref": "#/items/0"}}, [None, 1], {"4": False}),
    # A reference to itself, or to a missing schema in the new resource.
    ({"items": [{"$id": "http://x/y", "$ref": "#/items/0"}]}, ["a"], {"7": None, "2019-09": None}),
    # Two schemas with one identifier: pointers inside of each begin there.
    ({"items": {"$ref": R}, "definitions": {"c": TWIN[1], "d": TWIN[2]}}, [[2]], {"7": True}),
    ({"items": {"$ref": "x"}, "definitions": {"c": TWIN[1], "d": TWIN[2]}}, [[2]], {"7": None}),
    ({"properties": {"a": True}}, {"a": 1}, {"4": None, "6": True}),
    (True, 1, {"4": None, "6": True, "": True}),
    ({"unevaluatedItems": False, "contains": {"type": "null"}}, [None], {"2019-09": False}),
    ({"not": {"$recursiveRef": "#"}}, 1, {"2019-09": None, "2020-12": False, "": None}),
    ({"properties": {"a": {"$recursiveRef": "#"}}, "type": "object"}, {"a": 1}, {"": False}),
    ({"items": {"divisibleBy": 2}}, [3], {"4": True, "2020-12": True, "": None}),
    ({"properties": {"a": {"required": True}}}, {}, {"4": None, "": None}),
]


POOL = [None, 1, 2, "a", [], [1], [None], [None, 1], {}, {"a": 1}, {"a": 1, "b": 1}, {"c": 1}]


@pytest.mark.parametrize(("schema", "value", "verdicts"), CASES)
def test_what_differs_from_draft_to_draft(
    schema: Any, value: Any, verdicts: dict[str, bool | None]
) -> None:
    """By hand, and for drafts that read the schema by the validator of `jsonschema`."""
    for draft, valid in verdicts.items():
        options = {"draft": draft or None, "additional_properties": "open", "unknown": "ignore"}
        try:
            language = gcd.json_schema(schema, **options)
        except gcd.EmptyLanguageError:
            found: bool | None = False
        except gcd.ConstraintError:
            found = None
        else:
            found = any(language.accepts(compact(ordered)) for ordered in orders(value))
        assert found == valid, draft
        # The library ignores `dependencies` in newer drafts, and in 2019-09 it includes matches of
        # `contains` in `unevaluatedItems`.
        unlike = set() if draft in OLD else {"dependencies", "unevaluatedItems"}
        if draft and valid is not None and (schema is True or not unlike & schema.keys()):
            agree(schema, POOL, draft=draft)


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_draft_is_what_schema_names_unless_it_is_asked_for(draft: str) -> None:
    uri = VALIDATORS[draft].META_SCHEMA["$schema"]
    for written in (uri, uri.rstrip("#"), uri.replace("http:", "https:")):
        assert draft_of(written) is DRAFTS[draft]
    schema = {"$schema": uri, "dependentRequired": {"a": ["b"]}}
    assert gcd.json_schema(schema, unknown="ignore").accepts('{"a":1}') == (draft in OLD)
    assert gcd.json_schema(schema, unknown="ignore", draft="7").accepts('{"a":1}')
    assert not gcd.json_schema(schema, draft="2019-09").accepts('{"a":1}')


def test_a_resource_inside_may_be_of_another_draft() -> None:
    inner = {"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://x/inner"}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "prefixItems": [{"$ref": "http://x/inner"}, {"const": 2}],
        "$defs": {"d": {**inner, "minimum": 1, "exclusiveMinimum": True, "const": 7}},
    }
    language = gcd.json_schema(schema, unknown="ignore")
    assert [text for text in ("[3,2]", "[1,2]", "[3,3]") if language.accepts(text)] == ["[3,2]"]
    assert gcd.ignored_keywords(schema) == (
        gcd.IgnoredKeyword("/$defs/d", "const", "is not a keyword of draft 4"),
    )


# -- ignored keywords ------------------------------------------------------------------------


UNKNOWN = {
    "type": "object",
    "title": "only describes",
    "properties": {"a/b": {"type": "string", "minLenth": 2, "format": "colour"}},
    "nullable": True,
    "$defs": {"unused": {"never": "reached"}},
}


def test_what_is_ignored_is_said_once_and_listed_or_refused() -> None:
    listed = gcd.ignored_keywords(UNKNOWN)
    assert [(k.pointer, k.keyword) for k in listed] == [
        ("", "nullable"),
        ("/properties/a~1b", "format"),
        ("/properties/a~1b", "minLenth"),
    ]
    with pytest.warns(gcd.IgnoredKeywordWarning, match="'minLenth' at '/prop.*/a~1b'") as caught:
        language = gcd.json_schema(UNKNOWN)
    (warning,) = caught
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gcd.json_schema(UNKNOWN, unknown="ignore") == language
        assert gcd.json_schema({"type": "object", "title": "t"}).accepts("{}")
    assert warning.message.ignored == listed  # type: ignore[union-attr]
    assert language.accepts('{"a/b":"x"}')
    many = {"type": "string", **{f"unknown {i}": i for i in range(30)}}
    with pytest.warns(gcd.IgnoredKeywordWarning, match="and 25 more") as caught:
        gcd.json_schema(many)
    assert len(caught[0].message.ignored) == 30  # type: ignore[union-attr]
    with pytest.raises(gcd.UnsupportedSchemaError, match="'nullable' at the root"):
        gcd.json_schema(UNKNOWN, unknown="refuse")
    with pytest.raises(gcd.UnsupportedSchemaError, match=r"beside \$ref in draft 7"):
        gcd.json_schema({"$ref": R, "definitions": D, "minLength": 3}, draft="7", unknown="refuse")
    described = {"$ref": R, "definitions": D, "description": "d", "default": None}
    assert gcd.json_schema(described, draft="7", unknown="refuse").accepts("null")


def test_formats_that_only_describe_are_not_ignored_keywords() -> None:
    schema = {"type": "string", "format": "colour"}
    assert gcd.ignored_keywords(schema, formats="ignore") == ()
    assert len(gcd.ignored_keywords(schema)) == 1
    # A format that no automaton decides is also an annotation, with that reason.
    (ignored,) = gcd.ignored_keywords({"format": "idn-hostname"}, draft="7")
    assert "no automaton decides" in ignored.reason
    with pytest.raises(gcd.UnsupportedSchemaError, match="idn-hostname"):
        gcd.json_schema({"format": "idn-hostname"}, draft="7", unknown="refuse")
    assert gcd.ignored_keywords({"format": "idn-hostname"}, draft="4")


def test_tool_lists_are_read_alike() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "nullable": True}}}
    tools = [{"name": name, "parameters": parameters} for name in "fg"]
    with pytest.warns(gcd.IgnoredKeywordWarning) as caught:
        gcd.tool_calls(tools)
    ignored = caught[0].message.ignored  # type: ignore[union-attr]
    assert [k.pointer for k in ignored] == [f"/{i}/parameters/properties/a" for i in (0, 1)]
    with pytest.raises(gcd.UnsupportedSchemaError, match="nullable"):
        gcd.tool_calls(tools, unknown="refuse")
    newer = {**parameters, "$schema": "http://json-schema.org/draft-07/schema#"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gcd.tool_calls([{"name": "f", "parameters": newer}], unknown="ignore")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "nullable": False},
        {"type": ["string", "null"], "nullable": True},
        {"enum": ["a", None], "nullable": True},
        {"type": "integer", "format": "int32", "x-unit": "pieces", "example": 3},
        {"type": "string", "format": "password", "xml": {"name": "p"}},
        {"oneOf": [{"type": "null"}, {"type": "string"}], "discriminator": {"propertyName": "k"}},
        {"components": {"schemas": {"a/b": {"type": "null"}}}, "$ref": "#/components/schemas/a~1b"},
    ],
)
def test_descriptions_of_openapi_are_quiet(schema: Any) -> None:
    assert gcd.ignored_keywords(schema) == ()
    gcd.json_schema(schema, unknown="refuse")
