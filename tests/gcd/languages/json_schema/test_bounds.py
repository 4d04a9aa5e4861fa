"""Languages that are exact up to a length, and constraints that no automaton enforces.

Up to `max_bytes`, or up to the length that an upper bound needs at least, the language is exact;
longer budgets are refused. Constraints that aren't enforced are listed in the caveats of every
derived language, with a warning.
"""

from __future__ import annotations

import itertools
import json
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import gcd
import smc
from gcd import Automaton, json_schema
from gcd._languages.json_schema import upper_bounds
from gcd._languages.json_schema.keywords import HORIZONS
from gcd._languages.values.objects import checksums
from smc.testing import ToyLM
from tests.gcd.languages.json_schema.strategies import agree, compact
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
    with pytest.raises(gcd.StateLimitError):
        json_schema(schema, unsupported="refuse")
    # Compiled in another way, by the definition of `max_bytes`.
    least = min(HORIZONS[each.keyword](each.value) for each in language.caveats)
    stated = json_schema(schema, max_bytes=least, unsupported="refuse")
    assert least <= language.max_bytes
    assert stated == Automaton(language.delta, language.accepting, language.class_of_byte, least)


@pytest.mark.parametrize("inside", ["not", "oneOf"])
def test_bounds_of_what_is_excluded_hold_as_far(inside: str) -> None:
    long = {"type": "string", "maxLength": 3_000, "pattern": "^[ab]*$"}
    other = {"not": long} if inside == "not" else {"oneOf": [long, {"minLength": 2}]}
    schema = {"type": "string", "maxLength": 9, **other}
    with gcd.state_limit(20_000):
        agree(schema, ["", "a", "ab", "abc", "c", "cc"])


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
    "limited calls": lambda **o: gcd.tool_calls(
        _tools(5, _form(2, maxLength=20)), max_calls=20, **o
    ),
    "Python": lambda **o: gcd.tool_calls(_tools(25, _form(2, maxLength=14)), style="python", **o),
}


@pytest.mark.parametrize("name", ADDED)
def test_no_sum_of_upper_bounds_is_refused(name: str) -> None:
    with gcd.state_limit(10_000):
        with pytest.raises(gcd.StateLimitError, match=r"maxLength|maxItems"):
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
        with pytest.raises(gcd.StateLimitError, match=named) as caught:
            json_schema(schema, unsupported=unsupported)
        assert 'unsupported="ignore"' in str(caught.value)
    language = json_schema(schema, unsupported="ignore")
    assert language.caveats
    assert all(caveat.is_unchecked for caveat in language.caveats)


def test_limit_errors_name_the_tool() -> None:
    tools = [*_tools(3, _form(1)), {"name": "large", "parameters": _form(9, minLength=2_000)}]
    with pytest.raises(gcd.StateLimitError, match=r"'large', of 4"):
        gcd.tool_calls(tools)
    with pytest.raises(
        gcd.StateLimitError, match="largest of 40 tools is 't10' at '/10/parameters'"
    ):
        gcd.tool_calls(_tools(40, _form(1, minLength=400)))


VOCABULARY = gcd.Vocabulary.from_bytes([b'"', b"a", b"a" * 64, b""], eos_ids=[3])


def test_longer_budgets_are_refused_unless_the_bound_is_left_to_a_check() -> None:
    with pytest.warns(gcd.CaveatWarning, match="longer budgets are refused"):
        language = json_schema(LONG)
    automaton = gcd.lift(language, VOCABULARY)
    assert automaton.caveats == language.caveats
    assert automaton.max_budget == 65_538 // 64 + 1
    gcd.Matcher(automaton, budget=automaton.max_budget)
    for enter in (gcd.BudgetMask, lambda a, n: gcd.Matcher(a, budget=n)):
        with pytest.raises(
            gcd.OverlongBudgetError, match=r"maxLength 65536 at the root.*state_limit"
        ):
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
        with pytest.raises(
            gcd.ConstraintError, match="uniqueItems True at the root is not enforced"
        ):
            wrong()


UNIQUE: list[tuple[Any, list[Any]]] = [
    ({"items": {"enum": list("abcde")}, "maxItems": 2}, list("abcdef")),
    ({"items": {"enum": [1, 1.0, True, "1"]}, "minItems": 2}, [1, True, "1", 1.5]),
    ({"items": {"enum": list(range(11))}, "minItems": 2}, [0, 7, 10, 11]),  # 2^11 sets
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
    with pytest.raises(gcd.UnsupportedSchemaError, match="uniqueItems"):
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


def test_names_that_differ_in_a_letter_are_told_apart() -> None:
    for before, after in (("", ""), ("item_", ""), ("x", "_id")):
        names = [f"{before}{letter}{after}" for letter in "abcdefghijklm"]
        sums = [[each.accepts(name) for each in checksums()].index(True) for name in names]
        assert len(set(sums)) == len(names)


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


# -- max_bytes -------------------------------------------------------------------------------

MEMBERS = {"a": {"type": "string", "maxLength": 9}, "b": {"type": "integer"}}
SCHEMAS: list[Any] = [
    {"type": "string", "maxLength": 7},
    {"type": "string", "minLength": 3, "maxLength": 12},
    {"type": "string", "minLength": 9},
    {"type": "string", "pattern": "^[ab]+$", "maxLength": 6},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 4, "minItems": 2},
    {"type": "array", "contains": {"const": 1}, "items": {"enum": [1, 2]}, "maxContains": 3},
    {"type": "array", "contains": {"const": 1}, "items": {"enum": [1, 2]}, "minContains": 4},
    {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 2},
    {"type": "object", "additionalProperties": {"enum": [0]}, "maxProperties": 2},
    {"type": "object", "properties": MEMBERS, "required": ["b"]},
    {"oneOf": [{"type": "string", "maxLength": 8}, {"type": "string", "minLength": 5}]},
    {"not": {"type": "string", "maxLength": 6}, "type": ["string", "null"]},
    {"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": {"const": 1}},
    {"enum": ["a long text, indeed", 1, None]},
    {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 3]}, "maxItems": 2},
]


@pytest.mark.parametrize("index", range(len(SCHEMAS)))
def test_up_to_that_length_it_is_the_same_language(index: int) -> None:
    whole = json_schema(SCHEMAS[index])
    for length in (1, 2, 4, 5, 8, 9, 11, 14, 17, 30):
        expected = whole & up_to(length)
        if expected.is_empty:
            with pytest.raises(gcd.EmptyLanguageError):
                json_schema(SCHEMAS[index], max_bytes=length)
            continue
        found = json_schema(SCHEMAS[index], max_bytes=length)
        assert found.max_bytes == length
        plain = Automaton(found.delta, found.accepting, found.class_of_byte)
        assert plain & up_to(length) == expected
        assert found.count(100) == whole.count(length)


def test_lengths_out_of_reach_take_no_states() -> None:
    lists = {"type": "array", "items": {"type": "string"}, "maxItems": 10_000}
    schema = {
        "type": "object",
        "properties": {"text": LONG, "list": lists},
        "maxProperties": 30_000,
    }
    language = json_schema({**schema, "additionalProperties": {"type": "integer"}}, max_bytes=4_000)
    assert language.num_states < 200
    assert language.accepts(b'{"text":"%s"}' % (b"x" * 3_989))
    assert not language.accepts(b'{"text":"%s"}' % (b"x" * 3_990))  # valid, but too long
    within = json_schema({"type": "string", "maxLength": 100}, max_bytes=103)
    assert not within.accepts('"' + "x" * 101 + '"')  # this limit is within reach
    assert within.accepts('"' + "x" * 100 + '"')


@settings(max_examples=40)
@given(st.data())
def test_the_algebra_respects_it(data: st.DataObject) -> None:
    """Operations on languages that are exact up to n return results that are exact up to n."""
    length = data.draw(st.integers(0, 4))
    pieces = [gcd.regex(p) for p in ("a*", "(ab)+", "b?a", "a{3,6}", "(b|aa)*", "bb")]

    def known(whole: Automaton) -> Automaton:
        other = data.draw(st.sampled_from(pieces))
        mixed = (whole & up_to(length)) | (other - up_to(length))
        return Automaton(mixed.delta, mixed.accepting, mixed.class_of_byte, length)

    first, second = (data.draw(st.sampled_from(pieces)) for _ in range(2))
    a, b = known(first), known(second) if data.draw(st.booleans()) else second
    cases = [
        (first | second, a | b),
        (first & second, a & b),
        (first - second, a - b),
        (second - first, b - a),
        (~first, ~a),
        (first + second, a + b),
        (second + first + first, Automaton.concatenate([b, a, a])),
        (Automaton.union([first, second, first]), Automaton.union([a, b, a])),
        (second | Automaton.empty(), Automaton.union([b, known(Automaton.empty())])),
        (first.repeat(1, 3), a.repeat(1, 3)),
        (first.star(), a.star()),
        (first.optional(), a.optional()),
        (first.reverse(), a.reverse()),
    ]
    for expected, found in cases:
        assert found.max_bytes == length
        plain = Automaton(found.delta, found.accepting, found.class_of_byte)
        assert plain & up_to(length) == expected & up_to(length)
        assert found.count(length + 3) == expected.count(length)
        for text in (b"", b"a", b"ab", b"aab", b"bba", b"abab", b"aaaaa"):
            assert found.accepts(text) == (len(text) <= length and expected.accepts(text))


def test_equality_and_fingerprints_tell_them_apart() -> None:
    short, others = (
        json_schema(True, max_bytes=30),
        [json_schema(True), json_schema(True, max_bytes=31)],
    )
    assert short == json_schema(True, max_bytes=30)
    for other in others:
        assert short != other
        assert short.fingerprint != other.fingerprint


PIECES = gcd.Vocabulary.from_bytes([b'"', b"a", b"aaa", b"{}", b""], eos_ids=[4])


def _lifted(max_bytes: int | None) -> gcd.TokenAutomaton:
    language = json_schema({"type": "string", "maxLength": 50_000}, max_bytes=max_bytes)
    return gcd.lift(language, PIECES)


def test_budgets_that_could_hold_more_are_refused_where_they_meet() -> None:
    automaton, proposal = _lifted(20), smc.LCD()
    draw = partial(smc.sample, ToyLM(PIECES), [[0]], automaton, particles=2, proposal=proposal)
    assert automaton.max_bytes == 20
    assert automaton.max_budget == 7  # six tokens of three bytes, and EOS
    for enter in (
        lambda budget: gcd.BudgetMask(automaton, budget),
        lambda budget: gcd.BudgetMask(gcd.AutomatonBatch([automaton] * 2), [7, budget]),
        lambda budget: gcd.Matcher(automaton, budget=budget),
        lambda budget: draw(max_tokens=budget),
    ):
        enter(7)
        with pytest.raises(
            gcd.OverlongBudgetError, match=r"at most 20 bytes.*7 tokens.*budget is 8"
        ):
            enter(8)
    with pytest.raises(gcd.OverlongBudgetError, match="there is no budget") as caught:
        gcd.Matcher(automaton)
    assert (caught.value.longest, caught.value.budget) == (7, None)


@pytest.mark.parametrize("said", [{"format": "uri"}, {"pattern": "^([0-9A-Fa-f]{1,90}-)*$"}])
def test_a_length_with_a_format_takes_no_states_if_no_text_is_that_long(said: Any) -> None:
    schema = {"type": "object", "properties": {"url": {"type": "string", "maxLength": 999, **said}}}
    with gcd.state_limit(20_000):
        with pytest.raises(gcd.StateLimitError, match='or set unsupported="ignore"') as refused:
            gcd.json_schema(schema, unsupported="refuse")
        assert refused.value.keyword == "maxLength"
        assert refused.value.pointer == "/properties/url"
        counted = gcd.json_schema(schema, max_bytes=1001)
    free = {"type": "object", "properties": {"url": {"type": "string", **said}}}
    assert counted == gcd.json_schema(free, max_bytes=1001)
