"""Random schemas, and values that may satisfy them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c")


EXTRA = "x"


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


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    size, bound = st.integers(0, 3), st.integers(-3, 3) | st.sampled_from([-0.5, 2.5])
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, unique=True),
        "enum": st.lists(VALUES, max_size=4),
        "const": VALUES,
        "minLength": size,
        "maxLength": size,
        "minimum": bound,
        "maximum": bound,
        "exclusiveMinimum": bound,
        "exclusiveMaximum": bound,
        "minItems": size,
        "maxItems": size,
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "anyOf": st.lists(inner, min_size=1, max_size=3),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=1, max_size=3),
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "multipleOf": st.sampled_from([1, 2, 0.5, 1.5]),
        "pattern": st.sampled_from(["q", "^p|é$", "^.{2}$"]),
        "contains": inner,
        "minContains": size,
        "maxContains": size,
        "uniqueItems": st.booleans(),
        "unevaluatedItems": inner,
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
