"""Every draft against the `jsonschema` library's validator of that draft, and what is ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)

import gcd
from gcd.languages.json_schema.drafts import DRAFTS
from tests.gcd.languages.json_schema.test_json_schema import VALUES, compact, orders
from tests.gcd.random_strings import random_strings

VALIDATORS: dict[str, Any] = {
    "4": Draft4Validator,
    "6": Draft6Validator,
    "7": Draft7Validator,
    "2019-09": Draft201909Validator,
    "2020-12": Draft202012Validator,
}
NAMES = ("a", "b", "c")
_REFERENCES = {
    "4": ["#", "#/definitions/d", "#here"],
    "6": ["#", "#/definitions/d", "#here"],
    "7": ["#", "#/definitions/d", "#here"],
    "2019-09": ["#", "#/$defs/d", "#here"],
    "2020-12": ["#", "#/$defs/d", "#here"],
}


def _inside(draft: str) -> dict[str, st.SearchStrategy[Any]]:
    """What stands below a property: scalars, or a reference to the definition."""
    older = draft in ("4", "6", "7")
    size, bound = st.integers(0, 3), st.integers(-3, 3)
    found: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(["null", "integer", "number", "string", "array"]),
        "enum": st.lists(st.sampled_from([None, 1, "p", 2.5]), min_size=1, max_size=2, unique=True),
        "maxLength": size,
        "minimum": bound,
        "exclusiveMinimum": st.booleans() if draft == "4" else bound,
        "const": st.sampled_from([1, "p", None]),
        "format": st.just("no format of any draft"),
        "$ref": st.sampled_from(["#/definitions/d" if older else "#/$defs/d", "#here"]),
        "x-unknown": st.just({"type": "null"}),
    }
    if draft == "4":  # the meta-schema wants them together
        del found["exclusiveMinimum"]
    return found


def _few(keywords: dict[str, st.SearchStrategy[Any]], most: int) -> st.SearchStrategy[Any]:
    return st.lists(st.sampled_from(sorted(keywords)), max_size=most, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: keywords[name] for name in chosen})
    )


def _schemas(draft: str) -> st.SearchStrategy[Any]:
    """Schemas of a draft that dwell on what differs; words of other drafts are among them."""
    leaf = _few(_inside(draft), 2)
    inner = leaf if draft == "4" else leaf | st.booleans()
    keywords = {
        **_inside(draft),
        "items": inner | st.lists(inner, min_size=1, max_size=2) if draft != "2020-12" else inner,
        "additionalItems": inner | st.booleans(),
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "contains": inner,
        "minContains": st.integers(0, 2),
        "maxContains": st.integers(0, 2),
        "minItems": st.integers(0, 2),
        "unevaluatedItems": inner,
        "properties": st.tuples(*[inner] * len(NAMES)).map(
            lambda schemas: dict(zip(NAMES, schemas, strict=True))
        ),
        "required": st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=2),
        "additionalProperties": inner | st.booleans(),
        "unevaluatedProperties": inner,
        "propertyNames": st.sampled_from([{"maxLength": 1}, {"enum": ["a", "b"]}]),
        "dependentRequired": st.just({"a": ["b"]}),
        "dependentSchemas": st.fixed_dictionaries({"a": inner}),
        "if": inner,
        "then": inner,
        "else": inner,
        "not": inner,
        "anyOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=1, max_size=2),
    }
    if draft in ("4", "6", "7"):
        keywords["dependencies"] = st.fixed_dictionaries(
            {}, optional={"a": inner, "b": st.just(["c"])}
        )
    if draft == "4":
        keywords["minimum, exclusiveMinimum"] = st.just(None)
    identifier = {"4": "id", "6": "$id", "7": "$id"}.get(draft)
    named = {identifier: "#here"} if identifier else {"$anchor": "here"}
    definitions = "definitions" if draft in ("4", "6", "7") else "$defs"
    return st.builds(
        lambda schema, target, strict: {
            **{k: v for k, v in schema.items() if ", " not in k},
            **({"minimum": 1, "exclusiveMinimum": strict} if strict is not None else {}),
            definitions: {"d": {**target, **named}},
        },
        _few(keywords, 5),
        _few({k: v for k, v in _inside(draft).items() if k != "$ref"}, 2),
        st.none() | st.booleans() if draft == "4" else st.none(),
    )


def _agree(draft: str, schema: Any, values: list[Any]) -> None:
    validator = VALIDATORS[draft](schema)
    try:
        language = gcd.json_schema(
            schema, draft=draft, additional_properties="open", unknown="ignore", max_depth=2
        )
    except gcd.EmptyLanguageError:
        language = None
    except gcd.UnsupportedSchemaError as refused:
        assert refused.keyword == "unevaluatedItems"  # noqa: PT017
        assert draft == "2020-12"
        return
    for value in values:
        accepted = language is not None and any(
            language.accepts(compact(ordered)) for ordered in orders(value)
        )
        assert accepted == validator.is_valid(value), value
    if language is not None:
        for text in random_strings(language, 3):
            # A text may spell a whole number as 1.0, which is no integer to draft 4.
            assert validator.is_valid(json.loads(text)) or _repeats_a_name(text), text


def _repeats_a_name(text: bytes) -> bool:
    lengths: list[bool] = []
    json.loads(text, object_pairs_hook=lambda p: lengths.append(len({k for k, _ in p}) < len(p)))
    return any(lengths)


@pytest.mark.parametrize("draft", DRAFTS)
def test_each_draft_admits_what_its_validator_admits(draft: str) -> None:
    @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(_schemas(draft), st.lists(VALUES, min_size=1, max_size=6))
    def check(schema: Any, values: list[Any]) -> None:
        _agree(draft, schema, values)

    check()
