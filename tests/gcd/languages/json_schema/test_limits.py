"""Work limits of schemas: what is refused, by the part that took most, and what costs no more.

`scripts/check_json_schema.py` measures that no schema takes more than 10 s or 1 GB. These tests
cover schemas that are expensive, or whose errors are hard to make readable, and choices of schemas
that exclude each other: a `oneOf` of them costs no more than an `anyOf`.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import gcd
from gcd import json_schema
from gcd._errors import LimitError
from gcd._languages.cycles import cycles
from gcd._languages.json_schema.approximations import approximate, meet, possible_overlaps
from gcd._languages.json_schema.document import Document
from tests.gcd.languages.json_schema.strategies import SCHEMAS, VALUES, compact
from tests.gcd.oracles import work_of

INTEGER = {"type": "integer"}


def an_object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an object schema whose members are all required, unless `more` overrides it."""
    return {"type": "object", "properties": properties, "required": list(properties), **more}


def test_the_part_that_took_most_of_the_work_is_named_not_the_last_one() -> None:
    members = {f"a{i}": {"type": "integer"} for i in range(9)}
    members |= {"costly": {"type": "string", "maxLength": 1_000, "format": "uuid"}}
    members |= {f"b{i}": {"type": "string", "maxLength": 3 + i} for i in range(9)}
    taken = work_of(lambda: json_schema({"type": "object", "properties": members}))
    with gcd.work_limit(taken // 2), pytest.raises(gcd.WorkLimitError) as caught:
        json_schema({"type": "object", "properties": members}, unsupported="refuse")
    assert (caught.value.keyword, caught.value.pointer) == ("maxLength", "/properties/costly")


@pytest.fixture
def _room_for_checks() -> Iterator[None]:
    """Raise the recursion limit, because the suite's type checks add two frames to every call."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(3 * usual)
    yield
    sys.setrecursionlimit(usual)


def _chain(length: int, step: Any) -> Any:
    names = [f"d{i}" for i in range(length)]
    links = {name: step({"$ref": f"#/$defs/{after}"}) for name, after in itertools.pairwise(names)}
    return {"$defs": links | {names[-1]: {"type": "null"}}, "$ref": "#/$defs/d0"}


@pytest.mark.usefixtures("_room_for_checks")
@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda link: link, "nested schemas for one value"),
        (lambda link: {"not": link}, "nested schemas for one value"),
        (lambda link: {"type": "object", "properties": {"a": link}}, "nested too deeply"),
    ],
)
def test_long_chains_of_references_are_refused_by_name(step: Any, message: str) -> None:
    with pytest.raises(
        gcd.ConstraintError, match=rf"{message}.*at '/.*d|schema at '/.*d.*{message}"
    ):
        json_schema(_chain(2_000, step))
    json_schema(_chain(20, step))


ATTACKS = {
    "branches of which no value is": {
        "allOf": [{"anyOf": [{"allOf": [{"not": {}}, {"anyOf": [False] * 30}]}] * 30}] * 20
    },
    "branches that are compared": {
        "oneOf": [{"properties": {f"{i}": {"type": "string"}}} for i in range(100)]
    },
    "a clique of definitions": {
        "$ref": "#/$defs/0",
        "$defs": {
            f"{i}": an_object({f"{j}": {"$ref": f"#/$defs/{j}"} for j in range(8)}, required=[])
            for i in range(8)
        },
    },
    "conditions": {
        "allOf": [
            {"if": {"properties": {"t": {"const": i}}}, "then": {"required": [f"r{i}"]}}
            for i in range(9)
        ]
    },
    "many long strings": {
        "properties": {f"k{i}": {"type": "string", "minLength": 3_000 + i} for i in range(60)}
    },
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_would_take_too_long_is_refused_with_its_part(name: str) -> None:
    with gcd.work_limit(4_000_000), pytest.raises(LimitError) as caught:
        json_schema(ATTACKS[name])
    assert caught.value.pointer is not None
    assert len(str(caught.value)) < 300


def test_what_is_refused_does_not_depend_on_what_was_compiled_before() -> None:
    text = {"type": "string", "minLength": 31, "maxLength": 57}
    number = {"type": "number", "minimum": 0.125, "multipleOf": 0.015}
    schema = an_object({"a": text, "b": number, "c": {"not": {"enum": ["a 1", "a 2"]}}, "d": {}})
    assert work_of(lambda: json_schema(schema)) == work_of(lambda: json_schema(schema))


def test_recursion_is_refused_with_the_remedy() -> None:
    loop = {"type": "object", "properties": {n: {"$ref": "#"} for n in "abcdef"}}
    with gcd.state_limit(200), pytest.raises(gcd.StateLimitError, match="a lower max_depth helps"):
        json_schema(loop)
    with gcd.state_limit(200):
        json_schema(loop, max_depth=0)


def test_tool_calls_are_metered_together() -> None:
    def tool(length: int) -> Any:
        text = {"type": "string", "maxLength": length}
        return {"name": f"t{length}", "parameters": an_object({"a": text})}

    tools = [tool(400 + i) for i in range(9)]
    with gcd.work_limit(3 * work_of(lambda: gcd.tool_calls(tools[:1]))):
        gcd.tool_calls(tools[:1])
        with pytest.raises(gcd.WorkLimitError, match=r"'maxLength' at '/\d/.*'t40\d', of 9"):
            gcd.tool_calls(tools, unsupported="refuse")
        left = gcd.tool_calls(tools, unsupported="ignore").caveats
        assert {(each.keyword, each.is_unchecked) for each in left} == {("maxLength", True)}


def test_cycles_are_the_strongly_connected_components() -> None:
    random.seed(5)
    for size in range(1, 9):
        for _ in range(60):
            nodes = [str(i) for i in range(size)]
            below = {n: random.sample(nodes, random.randint(0, min(2, size))) for n in nodes}
            reached = {n: set(below[n]) for n in nodes}
            for _ in nodes:
                for n in nodes:
                    reached[n] |= {m for k in set(reached[n]) for m in reached[k]}
            found = cycles(below)
            assert set(found) == {n for n in nodes if n in reached[n]}, json.dumps(below)
            for a in found:
                for b in found:
                    together = b in reached[a] and a in reached[b]
                    assert (found[a] == found[b]) == together, json.dumps(below)


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf"])
def test_a_thousand_titled_constants_are_one_enum(keyword: str) -> None:
    values = [f"value-{7_919 * i % 100_003}" for i in range(1_000)]
    branches = [{"const": value, "title": value.title()} for value in values]
    with gcd.work_limit(12_000_000):
        language = json_schema({keyword: branches})
    assert language == json_schema({"enum": values})
    beside = json_schema({keyword: [*branches, {"type": "string", "pattern": "^value-1"}]})
    assert beside.accepts('"value-0"')
    assert beside.accepts('"value-100003"')
    assert beside.accepts('"value-15838"') == (keyword == "anyOf")  # a constant, and the pattern


def test_a_kilobyte_that_spells_out_a_billion_references() -> None:
    """References of `allOf` are read once; choices that double are paid for."""
    for keyword in ("allOf", "anyOf"):
        definitions: dict[str, Any] = {"d0": {"type": "integer", "minimum": 3, "maximum": 4}}
        for i in range(1, 31):
            definitions[f"d{i}"] = {keyword: [{"$ref": f"#/$defs/d{i - 1}"}] * 2}
        schema = {"$ref": "#/$defs/d30", "$defs": definitions}
        if keyword == "allOf":
            assert json_schema(schema) == json_schema(definitions["d0"])
        else:
            with gcd.work_limit(10_000_000), pytest.raises(gcd.WorkLimitError):
                json_schema(schema)


# -- schemas that exclude each other ---------------------------------------------------------------


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
    "tags behind references": {
        "oneOf": [an_object({"k": {"$ref": f"#/$defs/k{i}"}, "x": INTEGER}) for i in range(15)],
        "$defs": {f"k{i}": {"const": f"{i}"} for i in range(15)},
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
    found: list[gcd.Automaton] = []
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
HELD = [{}, *({"k": k} for k in ("a", "b", 1, "z"))]
RECORDS = [{**one, **({"l": other["k"]} if other else {})} for one in HELD for other in HELD]


@pytest.mark.parametrize("first", range(len(KINDS)))
def test_one_of_objects_with_tags_follows_the_standard(first: int) -> None:
    closed = an_object({"k": {}, "l": {}}, required=[], additionalProperties=False)
    for second, third in ((1, 3), (4, 9)):  # in ten rounds, each two kinds are together
        branches = [KINDS[(first + i) % len(KINDS)] for i in (0, second, third)]
        schema = {**closed, "oneOf": branches}
        language, validator = gcd.Automaton.empty(), Draft202012Validator(schema)
        with suppress(gcd.EmptyLanguageError):
            language = json_schema(schema, max_depth=0)
        for value in RECORDS:
            assert language.accepts(compact(value)) == validator.is_valid(value), (schema, value)


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
    with gcd.work_limit(100_000_000):
        language = json_schema(schema)
    for name, other in itertools.product(names, names):
        assert language.accepts(compact({"kind": name, f"of {other}": 1})) == (name == other)


def test_what_is_not_apart_is_refused_after_work_that_is_counted() -> None:
    def optional(depth: int) -> Any:
        inner = optional(depth - 1) if depth else INTEGER
        branches = [an_object({"k": {"const": i}, "v": inner}, required=["v"]) for i in range(8)]
        return {"oneOf": branches}

    with gcd.work_limit(20_000_000), pytest.raises(gcd.WorkLimitError) as refused:
        json_schema(optional(2))
    assert refused.value.keyword == "oneOf"
