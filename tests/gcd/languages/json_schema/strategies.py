"""Random schemas, values that may satisfy them, and the comparison with `jsonschema`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st
from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)

import gcd
from tests.gcd.random_strings import random_strings

VALIDATORS: dict[str | None, Any] = {
    None: Draft202012Validator,
    "4": Draft4Validator,
    "6": Draft6Validator,
    "7": Draft7Validator,
    "2019-09": Draft201909Validator,
    "2020-12": Draft202012Validator,
}
STYLES: dict[str, dict[str, Any]] = {
    "compact": {"separators": (",", ":")},
    "spaced": {},
    "flexible": {"indent": "\t"},
}
"""Options of `json.dumps` for the values of `whitespace`."""

NAMES, EXTRA = ("a", "b", "c"), "x"
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-4, 4),
    st.integers(-4, 4).map(lambda n: n + 0.5),
    st.sampled_from(["", "p", "é", "qq", "😀😀", 'a"\n', "four"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*NAMES, EXTRA]), inner, max_size=4).map(
            lambda value: dict(sorted(value.items()))
        )
    ),
    max_leaves=5,
).filter(lambda value: depth_of(value) <= 2)


def _object_keywords(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return {
        "properties": st.tuples(*[inner | st.just(True)] * len(NAMES)).map(
            lambda schemas: dict(zip(NAMES, schemas, strict=True))
        ),
        "required": st.lists(st.sampled_from([*NAMES, EXTRA]), unique=True, max_size=2),
        "additionalProperties": inner | st.booleans(),
        "patternProperties": st.dictionaries(
            st.sampled_from(["a", "^[bx]$", "^$|c"]), inner, min_size=1, max_size=2
        ),
        "unevaluatedProperties": inner | st.booleans(),
        "propertyNames": st.sampled_from(
            [{"maxLength": 1}, {"enum": ["a", "b"]}, {"pattern": "[ax]"}, {"not": {"const": "b"}}]
        ),
        "minProperties": st.integers(0, 3),
        "maxProperties": st.integers(0, 3),
        "dependentRequired": st.dictionaries(
            st.sampled_from([*NAMES, EXTRA]),
            st.lists(st.sampled_from(NAMES), unique=True, max_size=2),
            max_size=2,
        ),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
    }


_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_OF_A_SCHEMA = ("items", "not", "if", "then", "else", "contains", "unevaluatedItems")


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    size, bound = st.integers(0, 3), st.integers(-3, 3) | st.sampled_from([-0.5, 2.5])
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, unique=True),
        "enum": st.lists(VALUES, max_size=4),
        "const": VALUES,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "anyOf": st.lists(inner, min_size=1, max_size=3),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=1, max_size=3),
        "multipleOf": st.sampled_from([1, 2, 0.5, 1.5]),
        "pattern": st.sampled_from(["q", "^p|é$", "^.{2}$"]),
        "uniqueItems": st.booleans(),
        **dict.fromkeys(_COUNTS, size),
        **dict.fromkeys(_BOUNDS, bound),
        **dict.fromkeys(_OF_A_SCHEMA, inner),
        **_object_keywords(inner),
    }
    # Few keywords at a time, but object keywords together; otherwise hardly any value is valid.
    few = st.lists(st.sampled_from(sorted(keywords)), max_size=3, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: keywords[name] for name in chosen})
    )
    objects = st.fixed_dictionaries(
        {"properties": keywords["properties"]},
        optional={name: keywords[name] for name in _MORE_OF_OBJECTS},
    )
    arrays = st.fixed_dictionaries(
        {"items": inner | st.sampled_from([{"enum": [None, 1, "p"]}, {"type": "boolean"}])},
        optional={name: keywords[name] for name in _MORE_OF_ARRAYS},
    )
    conditions = st.fixed_dictionaries(
        {"if": inner, "then": inner}, optional={"else": inner, "not": inner}
    )
    return few | objects | arrays | conditions


_MORE_OF_OBJECTS = (
    *("type", "required", "additionalProperties", "patternProperties", "unevaluatedProperties"),
    *("propertyNames", "minProperties", "dependentRequired", "dependentSchemas", "not", "oneOf"),
)
_MORE_OF_ARRAYS = (
    *("type", "prefixItems", "uniqueItems", "contains", "minContains", "maxContains", "maxItems"),
    *("unevaluatedItems", "not"),
)
SCHEMAS = st.recursive(st.booleans() | _schemas(st.just(True)), _schemas, max_leaves=4)


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def agree(
    schema: Any,
    values: Iterable[Any],
    *,
    draft: str | None = None,
    whitespace: str = "compact",
    undeclared: str = "open",
    count: int = 4,
) -> None:
    """Compare the language with the draft's validator, on values and on texts of the language.

    Only the order of members is narrower than the standard: some order must be accepted. Without
    undeclared members, valid values may be missing, but the language isn't empty if there are any.
    """
    validator = VALIDATORS[draft](schema)
    try:
        language = gcd.json_schema(
            schema,
            draft=draft,
            additional_properties=undeclared,
            whitespace=whitespace,
            unknown="ignore",
            unsupported="refuse",
            max_depth=2,
        )
    except gcd.EmptyLanguageError:
        language = gcd.Automaton.empty()
    except gcd.UnsupportedSchemaError as refused:
        assert refused.keyword in ("uniqueItems", "unevaluatedItems")  # noqa: PT017
        return
    for value in values:
        is_valid = _verdict(validator, value)
        texts = (json.dumps(v, ensure_ascii=False, **STYLES[whitespace]) for v in orders(value))
        accepted = any(map(language.accepts, texts))
        if undeclared == "open" or accepted:
            assert accepted == is_valid, value
        assert not (is_valid and language.is_empty), value
    if not language.is_empty:
        for text in random_strings(language, count):
            value = json.loads(text)
            assert _verdict(validator, value) or has_duplicate_keys(text), text
            again = json.dumps(value, ensure_ascii=False)
            if whitespace == "spaced" and "Infinity" not in again:  # 1e999 is a number of JSON
                assert language.accepts(again) or has_duplicate_keys(text), text


def _verdict(validator: Any, value: Any) -> bool:
    """Return the library's verdict; old versions fail on some values of `items`."""
    try:
        return bool(validator.is_valid(value))
    except (AttributeError, TypeError):  # len(True), [...].get("id")
        reject()


def has_duplicate_keys(text: bytes) -> bool:
    lengths: list[bool] = []
    json.loads(text, object_pairs_hook=lambda p: lengths.append(len({k for k, _ in p}) < len(p)))
    return any(lengths)


def orders(value: Any) -> Iterator[Any]:
    """Yield the value with the members of its objects in every order."""
    if isinstance(value, list):
        yield from map(list, itertools.product(*map(orders, value)))
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            for members in itertools.product(*(orders(value[key]) for key in keys)):
                yield dict(zip(keys, members, strict=True))
    else:
        yield value


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, (list, tuple)):
        return 1 + max(map(depth_of, value), default=0)
    return 0
