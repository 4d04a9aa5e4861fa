"""Constraints that no automaton enforces: unreachable upper bounds, and distinct elements.

Bounds that are not counted are enforced up to a length, and longer budgets are refused. Constraints
that aren't enforced are listed in the caveats of every derived language, with a warning.
"""

from __future__ import annotations

import itertools
import json
import pickle
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from jsonschema import Draft202012Validator

import gcd
from gcd import (
    Automaton,
    ConstraintError,
    OverlongBudgetError,
    StateLimitError,
    UnsupportedSchemaError,
    Vocabulary,
    json_schema,
    tool_calls,
)
from gcd._languages.json_schema import upper_bounds
from gcd._languages.json_schema.keywords import HORIZONS
from gcd._languages.values.objects import checksums
from tests.gcd.languages.json_schema.strategies import compact
from tests.gcd.oracles import up_to

STRING = {"type": "string"}
LONG = {**STRING, "maxLength": 65_536}
COUNTED = {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1}}


def _members(schemas: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": schemas, "required": list(schemas)}


BOUNDS: dict[str, tuple[Any, list[tuple[str, str]]]] = {
    "a string": (_members({"a": LONG}), [("maxLength", "/properties/a")]),
    "beside a pattern": ({**LONG, "pattern": "^[a-z]+(-[a-z]+)*$"}, [("maxLength", "")]),
    "beside a format": (
        _members({"a": {"type": "string", "format": "uri", "maxLength": 32_000}}),
        [("maxLength", "/properties/a")],
    ),
    "elements": ({"type": "array", "items": STRING, "maxItems": 100_000}, [("maxItems", "")]),
    "elements that are counted": ({**COUNTED, "maxContains": 99_999}, [("maxContains", "")]),
    "members": (
        {"type": "object", "additionalProperties": {"const": 1}, "maxProperties": 99_999},
        [("maxProperties", "")],
    ),
    "many at once": (
        _members({f"k{i}": {"type": "string", "maxLength": 30_000} for i in range(9)}),
        [("maxLength", f"/properties/k{i}") for i in range(9)],
    ),
    "one that is used often": (
        _members({f"k{i}": {"$ref": "#/$defs/a"} for i in range(9)})
        | {"$defs": {"a": {"type": "string", "maxLength": 30_000}}},
        [("maxLength", "/$defs/a")],
    ),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_that_take_too_much_hold_up_to_a_length(name: str) -> None:
    schema, places = BOUNDS[name]
    with pytest.warns(gcd.CaveatWarning) as caught:
        language = json_schema(schema)
    [warning] = [each.message for each in caught if isinstance(each.message, gcd.CaveatWarning)]
    assert warning.caveats == language.caveats
    assert [(each.keyword, each.pointer) for each in language.caveats] == places
    assert language.max_bytes == min(each.max_bytes or 0 for each in language.caveats)
    assert language.max_bytes >= 30_000
    with pytest.raises(StateLimitError):
        json_schema(schema, unsupported="refuse")
    # Compiled in another way, by the definition of `max_bytes`.
    least = min(HORIZONS[each.keyword](each.value) for each in language.caveats)
    stated = json_schema(schema, max_bytes=least, unsupported="refuse")
    assert least <= language.max_bytes
    assert stated == Automaton(language.delta, language.accepting, language.class_of_byte, least)


SMALL = [
    (300, {"type": "string", "maxLength": 31}, '"' + "x" * 32 + '"'),
    (250, {"type": "array", "items": {"const": 77}, "maxItems": 100}, compact([77] * 101)),
    (250, {**COUNTED, "maxContains": 50}, compact([1] * 51)),
    (
        500,
        {"type": "object", "additionalProperties": {"const": 1}, "maxProperties": 20},
        "{" + ",".join(['"":1'] * 21) + "}",
    ),
]


@pytest.mark.parametrize(("limit", "schema", "longer"), SMALL)
def test_a_text_below_the_horizon_cannot_come_to_the_bound(
    limit: int, schema: Any, longer: str
) -> None:
    with (
        mock.patch.object(upper_bounds, "_LEAST", 0),
        gcd.state_limit(limit),
        pytest.warns(gcd.CaveatWarning),
    ):
        language = json_schema(schema)
    exact = json_schema(schema, unsupported="refuse")
    assert language.max_bytes is not None
    assert not language.accepts(longer)
    plain = Automaton(language.delta, language.accepting, language.class_of_byte)
    assert plain & up_to(language.max_bytes) == exact & up_to(language.max_bytes)
    assert len(longer) == language.max_bytes + 1  # the horizon is maximal


@pytest.mark.parametrize("inside", ["not", "oneOf"])
def test_bounds_of_what_is_excluded_hold_as_far(inside: str) -> None:
    long = {"type": "string", "maxLength": 3_000, "pattern": "^[ab]*$"}
    other = {"not": long} if inside == "not" else {"oneOf": [long, {"minLength": 2}]}
    schema = {"type": "string", "maxLength": 9, **other}
    with gcd.state_limit(20_000):
        language = json_schema(schema)
        assert language.max_bytes is not None or language.caveats == ()
    validator = Draft202012Validator(schema)
    for text in ("", "a", "ab", "abc", "c", "cc"):
        assert language.accepts(compact(text)) == validator.is_valid(text)


def _form(count: int, **bounds: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {f"k{i}": {"type": "string", **bounds} for i in range(count)},
    }


def _tools(count: int, arguments: dict[str, Any]) -> list[Any]:
    return [{"name": f"t{i}", "parameters": arguments} for i in range(count)]


ADDED: dict[str, Callable[..., Automaton]] = {
    "forms": lambda **o: json_schema(_form(30, maxLength=20), **o),
    "elements": lambda **o: json_schema(
        {"type": "array", "items": _form(5, maxLength=9), "maxItems": 30}, **o
    ),
    "limited calls": lambda **o: tool_calls(_tools(5, _form(2, maxLength=20)), max_calls=20, **o),
    "Python": lambda **o: tool_calls(_tools(25, _form(2, maxLength=14)), style="python", **o),
}


@pytest.mark.parametrize("name", ADDED)
def test_no_sum_of_upper_bounds_is_refused(name: str) -> None:
    with gcd.state_limit(10_000):
        with pytest.raises(StateLimitError, match=r"maxLength|maxItems"):
            ADDED[name](unsupported="refuse")
        with pytest.warns(gcd.CaveatWarning, match="validate the finished text"):
            language = ADDED[name]()
    assert any(caveat.is_unchecked for caveat in language.caveats)
    assert {caveat.keyword for caveat in language.caveats} <= {"maxLength", "maxItems"}


def test_too_much_work_for_upper_bounds_is_not_refused() -> None:
    schema = _form(60, maxLength=100)
    with gcd.work_limit(20_000_000):
        with pytest.raises(gcd.WorkLimitError):
            json_schema(schema, unsupported="refuse")
        with pytest.warns(gcd.CaveatWarning):
            language = json_schema(schema)
    assert language == json_schema(_form(60))


def test_small_bounds_are_kept_where_large_ones_add_up() -> None:
    members = _form(30, maxLength=500)["properties"] | {"zip": {"type": "string", "maxLength": 5}}
    with pytest.warns(gcd.CaveatWarning):
        language = json_schema({"type": "object", "properties": members})
    assert len(language.caveats) == 30
    assert language.accepts(compact({"k0": "x" * 501, "zip": "12345"}))
    assert not language.accepts(compact({"zip": "123456"}))


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (_form(40, minLength=400, maxLength=500), r"bounds such as maxLength 500 at '/prop"),
        ({"type": "string", "minLength": 100_000}, "keyword 'minLength' at the root"),
        ({"type": "array", "minItems": 50_000, "items": _form(3)}, "keyword 'minItems'"),
        ({"type": "array", "contains": {"const": 1}, "minContains": 10**6}, "'minContains'"),
    ],
)
def test_lower_bounds_are_refused_with_the_option_that_leaves_them_to_a_check(
    schema: Any, named: str
) -> None:
    for unsupported in ("warn", "refuse"):
        with pytest.raises(StateLimitError, match=named) as caught:
            json_schema(schema, unsupported=unsupported)
        assert 'unsupported="ignore"' in str(caught.value)
    language = json_schema(schema, unsupported="ignore")
    assert language.caveats
    assert all(caveat.is_unchecked for caveat in language.caveats)


def test_limit_errors_name_the_tool() -> None:
    tools = [*_tools(3, _form(1)), {"name": "large", "parameters": _form(9, minLength=2_000)}]
    with pytest.raises(StateLimitError, match=r"'large', of 4"):
        tool_calls(tools)
    with pytest.raises(StateLimitError, match="largest of 40 tools is 't10' at '/10/parameters'"):
        tool_calls(_tools(40, _form(1, minLength=400)))


VOCABULARY = Vocabulary.from_bytes([b'"', b"a", b"a" * 64, b""], eos_ids=[3])


def test_longer_budgets_are_refused_unless_the_bound_is_left_to_a_check() -> None:
    with pytest.warns(gcd.CaveatWarning, match="longer budgets are refused"):
        language = json_schema(LONG)
    automaton = gcd.lift(language, VOCABULARY)
    assert automaton.caveats == language.caveats
    assert automaton.max_budget == 65_538 // 64 + 1
    gcd.Matcher(automaton, budget=automaton.max_budget)
    for enter in (gcd.BudgetMask, lambda a, n: gcd.Matcher(a, budget=n)):
        with pytest.raises(OverlongBudgetError, match=r"maxLength 65536 at the root.*state_limit"):
            enter(automaton, 2_000)
    assert pickle.loads(pickle.dumps(language)).caveats == language.caveats
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        language = json_schema(LONG, unsupported="ignore")
    [caveat] = language.caveats
    assert caveat.is_unchecked
    assert str(caveat) == "maxLength 65536 at the root is not enforced"
    gcd.Matcher(gcd.lift(language, VOCABULARY), budget=100_000)


def test_caveats_go_from_parts_to_results() -> None:
    language = json_schema({"items": {"type": "string"}, "uniqueItems": True}, unsupported="ignore")
    other = gcd.regex("[a-z]")
    for result in (
        language | other,
        other & language,
        language + other,
        language.repeat(2),
        language - other,
        Automaton.union([other, other + other, language]),
        language.optional(),
    ):
        assert result.caveats == language.caveats
    for wrong in (lambda: ~language, lambda: other - language):
        with pytest.raises(ConstraintError, match="uniqueItems True at the root is not enforced"):
            wrong()


UNIQUE: list[tuple[Any, list[Any]]] = [
    ({"items": {"enum": list("abcde")}, "maxItems": 2}, list("abcdef")),
    ({"items": {"enum": [1, 1.0, True, "1"]}, "minItems": 2}, [1, True, "1", 1.5]),
    ({"items": {"enum": list(range(30))}, "maxItems": 2, "minItems": 1}, [0, 7, 29, 30]),
    ({"prefixItems": [{"enum": [1, 2]}], "items": {"enum": [2, 3, 4]}, "maxItems": 3}, [1, 2, 3]),
    ({"prefixItems": [{"type": "boolean"}, {"enum": [True, 2]}], "items": False}, [True, False, 2]),
]


@pytest.mark.parametrize(("array", "elements"), UNIQUE)
def test_few_different_values_are_exact(array: Any, elements: list[Any]) -> None:
    schema = {"type": "array", "uniqueItems": True, **array}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        language = json_schema(schema)
    assert language.caveats == ()
    validator = Draft202012Validator(schema)
    for count in range(4):
        for value in itertools.product(elements, repeat=count):
            assert language.accepts(compact(list(value))) == validator.is_valid(list(value))


def test_elements_and_names_of_many_values_are_left_to_a_check() -> None:
    tags = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    with pytest.warns(gcd.CaveatWarning, match="uniqueItems True at '/properties/tags'.*validate"):
        language = json_schema(_members({"tags": tags}))
    assert language.max_bytes is None
    assert language == json_schema(_members({"tags": {**tags, "uniqueItems": False}}))
    with pytest.raises(UnsupportedSchemaError, match="uniqueItems"):
        json_schema(tags, unsupported="refuse")
    named = {"type": "object", "additionalProperties": {"const": 1}, "minProperties": 3}
    with pytest.warns(gcd.CaveatWarning, match="minProperties 3 at the root is not enforced"):
        json_schema(named)


MAPS: list[Any] = [
    {"additionalProperties": {"const": 1}, "minProperties": 2},
    {"propertyNames": {"enum": ["a", "b", "c", "ab"]}, "minProperties": 3},
    {"propertyNames": {"enum": ["a", "b", "é"]}, "minProperties": 2, "maxProperties": 3},
    {"properties": {"a": {"const": 1}}, "additionalProperties": {"const": 1}, "minProperties": 2},
    {"patternProperties": {"^a": {"const": 1}}, "additionalProperties": False, "minProperties": 2},
]


@pytest.mark.parametrize("schema", MAPS)
def test_a_name_that_comes_twice_counts_once(schema: Any) -> None:
    schema = {"type": "object", **schema}
    language = json_schema(schema, max_depth=0)
    assert language.caveats == ()
    validator = Draft202012Validator(schema)
    keys = ['"a"', '"\\u0061"', '"b"', '"ab"', '"é"']
    for count in range(4):
        for chosen in itertools.product(keys, repeat=count):
            text = "{" + ",".join(f"{key}:1" for key in chosen) + "}"
            is_valid = validator.is_valid(json.loads(text))
            if language.accepts(text):
                assert is_valid, text
            in_order = sorted(chosen, key=lambda key: json.loads(key) != "a")  # declared first
            if is_valid and len(set(map(json.loads, chosen))) == count and in_order == list(chosen):
                named = {"properties", "propertyNames", "patternProperties"} & schema.keys()
                escaped = bool(named) and '"\\u0061"' in chosen
                assert language.accepts(text) != escaped, text


def test_names_that_differ_in_a_letter_or_in_length_are_told_apart() -> None:
    for one, other in itertools.combinations(range(13), 2):
        for before, after in (("", ""), ("item_", ""), ("x", "_id")):
            names = [f"{before}{'abcdefghijklm'[i]}{after}" for i in (one, other)]
            sums = [[each.accepts(name) for each in checksums()].index(True) for name in names]
            assert sums[0] != sums[1]


@pytest.mark.parametrize("kind", [gcd.CaveatWarning, gcd.IgnoredKeywordWarning])
def test_warnings_can_be_pickled_and_made_again_of_their_message(kind: type[Warning]) -> None:
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "uniqeItems": 1}
    with pytest.warns(kind) as caught:
        gcd.json_schema(schema)
    (warning,) = (each.message for each in caught if isinstance(each.message, kind))
    copy = pickle.loads(pickle.dumps(warning))
    assert str(copy) == str(warning)
    assert vars(copy) == vars(warning)
    assert str(kind(*warning.args)) == str(warning)  # as pytest-xdist does
