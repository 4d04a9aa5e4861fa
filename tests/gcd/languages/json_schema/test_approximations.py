"""Schemas that exclude each other: a `oneOf` of them costs no more than an `anyOf`."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gcd import Automaton, EmptyLanguageError, WorkLimitError, json_schema, work_limit
from gcd._languages.json_schema.approximations import approximate, meet, possible_overlaps
from gcd._languages.json_schema.document import Document
from tests.gcd.languages.json_schema.strategies import SCHEMAS, VALUES, compact
from tests.gcd.oracles import work_of

INTEGER = {"type": "integer"}


def an_object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an object schema whose members are all required, unless `more` overrides it."""
    return {"type": "object", "properties": properties, "required": list(properties), **more}


def tagged(count: int, depth: int) -> Any:
    """Return a choice of `count` objects with a tag, to a depth."""
    if depth == 0:
        return an_object({"v": INTEGER}, additionalProperties=False)
    return {
        "oneOf": [
            an_object(
                {"kind": {"const": f"{depth} {i}"}, "body": tagged(count, depth - 1)},
                additionalProperties=False,
            )
            for i in range(count)
        ]
    }


def named(count: int, depth: int, **more: Any) -> Any:
    """Return a choice of `count` objects, each with a differently named member, to a depth."""
    if depth == 0:
        return an_object({"v": INTEGER}, **more)
    inner = named(count, depth - 1, **more)
    return {"oneOf": [an_object({f"V{i}": inner}, **more) for i in range(count)]}


def of_kinds(prefix: str, count: int) -> list[Any]:
    return [an_object({"kind": {"const": f"{prefix}{i}"}, "x": INTEGER}) for i in range(count)]


APART: dict[str, Any] = {
    "tags in three levels": tagged(5, 3),
    "tags of several values": {
        "oneOf": [an_object({"k": {"enum": [i, f"{i}", None][: 2 + (i == 0)]}}) for i in range(30)]
    },
    "tags behind references": {
        "oneOf": [an_object({"k": {"$ref": f"#/$defs/k{i}"}, "x": INTEGER}) for i in range(30)],
        "$defs": {f"k{i}": {"const": f"{i}"} for i in range(30)},
    },
    "branches behind references": {
        "oneOf": [{"$ref": f"#/$defs/b{i}"} for i in range(30)],
        "$defs": {f"b{i}": branch for i, branch in enumerate(of_kinds("p", 30))},
    },
    "tags in allOf": {
        "oneOf": [
            {"allOf": [an_object({"k": {"const": f"{i}"}}), an_object({"x": INTEGER})]}
            for i in range(30)
        ]
    },
    "tags inside a member": {
        "oneOf": [
            an_object({"meta": an_object({"k": {"const": f"{i}"}}), "x": INTEGER})
            for i in range(30)
        ]
    },
    "a tag for each pair": {
        "oneOf": [
            an_object({f"t{j}": {"const": i if j in (i, (i + 1) % 9) else "z"} for j in range(9)})
            for i in range(9)
        ]
    },
    "a tag that only one of them requires": {
        "oneOf": [
            an_object({"k": {"const": 1}, "x": INTEGER}),
            an_object({"k": {"const": 2}, "x": INTEGER}, required=["x"]),
        ]
    },
    "choices between choices": {
        "oneOf": [{"oneOf": of_kinds(f"{i} ", 8)} for i in range(8)],
    },
    "members that the others close out": named(5, 3, additionalProperties=False),
    "members that the others do not declare": named(5, 3),
    "tuples": {
        "oneOf": [
            {"type": "array", "prefixItems": [{"const": i}, INTEGER], "items": False, "minItems": 2}
            for i in range(30)
        ]
    },
    "types": {"oneOf": [{"type": t} for t in ("string", "integer", "null", "boolean")]},
    "bounds": {"oneOf": [{**INTEGER, "minimum": 9 * i, "maximum": 9 * i + 8} for i in range(30)]},
    "lengths": {
        "oneOf": [{"type": "string", "minLength": i, "maxLength": i} for i in range(0, 40, 2)]
    },
}


@pytest.mark.parametrize("name", APART)
def test_one_of_disjoint_branches_costs_as_much_as_any_of(name: str) -> None:
    schema = APART[name]
    either = json.loads(json.dumps(schema).replace('"oneOf"', '"anyOf"'))
    assert json_schema(schema) == json_schema(either)
    work, usual = (work_of(lambda each=each: json_schema(each)) for each in (schema, either))
    assert work < 2 * usual


def test_branches_that_overlap_are_the_only_ones_to_be_compared() -> None:
    branches = [*of_kinds("p", 40), an_object({"kind": {"const": "p3"}, "x": {"minimum": 5}})]
    language = json_schema({"oneOf": branches})
    work, usual = (work_of(lambda k=k: json_schema({k: branches})) for k in ("oneOf", "anyOf"))
    assert work < 2 * usual
    for x in (3, 7):
        for kind in ("p3", "p4"):
            value = {"kind": kind, "x": x}
            validator = Draft202012Validator({"oneOf": branches})
            assert language.accepts(compact(value)) == validator.is_valid(value)


KINDS: list[Any] = [
    {"properties": {"k": {"const": "a"}}},  # an optional tag
    {"properties": {"k": {"const": "b"}}, "required": ["k"]},
    {"properties": {"k": {"enum": ["a", 1]}}, "required": ["k"]},
    {"properties": {"k": {"const": 1.0}}},
    {"properties": {"l": {"const": "a"}}, "required": ["l"]},
    {"properties": {"k": {}}, "required": ["k", "l"]},
    {"properties": {}, "additionalProperties": {"const": "a"}},
    {"patternProperties": {"k|l": {"enum": ["b", "z"]}}},
    {"type": "object", "anyOf": [{"required": ["k"]}, {"properties": {"l": {"const": 1}}}]},
    {"if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["l"]}, "else": False},
]


@pytest.mark.parametrize("branches", list(itertools.combinations(range(len(KINDS)), 3)))
def test_one_of_objects_with_tags_follows_the_standard(branches: tuple[int, ...]) -> None:
    schema = {
        "type": "object",
        "properties": {"k": {}, "l": {}},
        "additionalProperties": False,
        "oneOf": [KINDS[i] for i in branches],
    }
    validator = Draft202012Validator(schema)
    choices = [(), ("a",), ("b",), (1,), ("z",)]
    values = [
        {name: held[0] for name, held in (("k", k), ("l", other)) if held}
        for k, other in itertools.product(choices, choices)
    ]
    try:
        language = json_schema(schema, max_depth=0)
    except EmptyLanguageError:
        language = Automaton.empty()
    for value in values:
        assert language.accepts(compact(value)) == validator.is_valid(value), value


@settings(max_examples=80)
@given(st.lists(SCHEMAS, min_size=2, max_size=4), st.lists(VALUES, min_size=1, max_size=9))
@example([{"minItems": 2, "prefixItems": [{"const": 1}]}, {"items": {"const": 2}}], [[1, 2], [2]])
def test_no_value_is_in_two_schemas_that_are_apart(schemas: list[Any], values: list[Any]) -> None:
    document = Document({"allOf": [True, *schemas]}, max_depth=1)
    root = document.root()[0]
    approximations = [approximate(document, [document.beside(root, "allOf", i + 1)])
                for i in range(len(schemas))]  # fmt: skip
    overlaps = possible_overlaps(approximations)
    validators = [Draft202012Validator(schema) for schema in schemas]
    for i, j in itertools.permutations(range(len(schemas)), 2):
        assert (j in overlaps[i]) == (
            not meet([approximations[i], approximations[j]]).has_no_value()
        )
        if j not in overlaps[i]:
            for value in values:
                assert not (validators[i].is_valid(value) and validators[j].is_valid(value))
    for part, validator in zip(approximations, validators, strict=True):
        if part.has_no_value():
            assert not any(validator.is_valid(value) for value in values)


def test_conditions_on_one_tag_are_one_case_each() -> None:
    names = [f"k{i}" for i in range(20)]
    then = {
        name: {"properties": {f"of {name}": INTEGER}, "required": [f"of {name}"]} for name in names
    }
    schema = an_object(
        {"kind": {"enum": names}},
        allOf=[
            {"if": {"properties": {"kind": {"const": name}}}, "then": then[name]} for name in names
        ],
    )
    with work_limit(100_000_000):
        language = json_schema(schema)
    for name, other in itertools.product(names, names):
        assert language.accepts(compact({"kind": name, f"of {other}": 1})) == (name == other)


def test_what_is_not_apart_is_refused_after_work_that_is_counted() -> None:
    def optional(depth: int) -> Any:
        if depth == 0:
            return INTEGER
        return {
            "oneOf": [
                an_object({"k": {"const": i}, "v": optional(depth - 1)}, required=["v"])
                for i in range(8)
            ]
        }

    with work_limit(100_000_000), pytest.raises(WorkLimitError) as refused:
        json_schema(optional(3))
    assert refused.value.keyword == "oneOf"
