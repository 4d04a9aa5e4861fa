"""Schemas that exclude each other: a `oneOf` of them costs no more than an `anyOf`."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gcd import Automaton, WorkLimitError, json_schema, work_limit
from gcd._languages.json_schema.approximations import approximate, meet, possible_overlaps
from gcd._languages.json_schema.document import Document
from tests.gcd.languages.json_schema.strategies import SCHEMAS, VALUES, compact
from tests.gcd.oracles import work_of

INTEGER = {"type": "integer"}


def an_object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an object schema whose members are all required, unless `more` overrides it."""
    return {"type": "object", "properties": properties, "required": list(properties), **more}


def named(count: int, depth: int, **more: Any) -> Any:
    """Return a choice of `count` objects, each with a differently named member, to a depth."""
    if depth == 0:
        return an_object({"v": INTEGER}, **more)
    inner = named(count, depth - 1, **more)
    return {"oneOf": [an_object({f"V{i}": inner}, **more) for i in range(count)]}


def tag(value: Any, **more: Any) -> dict[str, Any]:
    return an_object({"k": {"const": value}, **more})


def of_kinds(prefix: str, count: int) -> list[Any]:
    return [an_object({"kind": {"const": f"{prefix}{i}"}, "x": INTEGER}) for i in range(count)]


APART: dict[str, Any] = {
    "tags of several values": {
        "oneOf": [an_object({"k": {"enum": [i, f"{i}", None][: 2 + (i == 0)]}}) for i in range(15)]
    },
    "branches behind references": {
        "oneOf": [{"$ref": f"#/$defs/b{i}"} for i in range(15)],
        "$defs": {f"b{i}": branch for i, branch in enumerate(of_kinds("p", 15))},
    },
    "tags in allOf": {
        "oneOf": [{"allOf": [tag(f"{i}"), an_object({"x": INTEGER})]} for i in range(15)]
    },
    "tags inside a member": {
        "oneOf": [an_object({"meta": tag(f"{i}"), "x": INTEGER}) for i in range(15)]
    },
    "a tag for each pair": {
        "oneOf": [
            an_object({f"t{j}": {"const": i if j in (i, (i + 1) % 9) else "z"} for j in range(9)})
            for i in range(9)
        ]
    },
    "a tag that only one of them requires": {
        "oneOf": [tag(1, x=INTEGER), tag(2, x=INTEGER) | {"required": ["x"]}]
    },
    "choices between choices": {"oneOf": [{"oneOf": of_kinds(f"{i} ", 8)} for i in range(8)]},
    "members that the others close out": named(4, 2, additionalProperties=False),
    "members that the others do not declare": named(4, 2),
    "tuples": {
        "oneOf": [
            {"type": "array", "prefixItems": [{"const": i}, INTEGER], "items": False, "minItems": 2}
            for i in range(15)
        ]
    },
    "bounds": {"oneOf": [{**INTEGER, "minimum": 9 * i, "maximum": 9 * i + 8} for i in range(15)]},
    "lengths": {
        "oneOf": [{"type": "string", "minLength": i, "maxLength": i} for i in range(0, 40, 2)]
    },
}


@pytest.mark.parametrize("name", APART)
def test_one_of_disjoint_branches_costs_as_much_as_any_of(name: str) -> None:
    schema = APART[name]
    either = json.loads(json.dumps(schema).replace('"oneOf"', '"anyOf"'))
    found: list[Automaton] = []
    work, usual = (
        work_of(lambda each=each: found.append(json_schema(each))) for each in (schema, either)
    )
    assert found[0] == found[1]
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


@settings(max_examples=60)
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
    cases = [
        {"if": {"properties": {"kind": {"const": n}}}, "then": an_object({f"of {n}": INTEGER})}
        for n in names
    ]
    schema = an_object({"kind": {"enum": names}}, allOf=cases)
    with work_limit(100_000_000):
        language = json_schema(schema)
    for name, other in itertools.product(names, names):
        assert language.accepts(compact({"kind": name, f"of {other}": 1})) == (name == other)


def test_what_is_not_apart_is_refused_after_work_that_is_counted() -> None:
    def optional(depth: int) -> Any:
        inner = optional(depth - 1) if depth else INTEGER
        branches = [an_object({"k": {"const": i}, "v": inner}, required=["v"]) for i in range(8)]
        return {"oneOf": branches}

    with work_limit(20_000_000), pytest.raises(WorkLimitError) as refused:
        json_schema(optional(2))
    assert refused.value.keyword == "oneOf"
