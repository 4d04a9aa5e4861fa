"""`max_bytes`: the language is exact up to that length, and longer texts are refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcd
import smc
from gcd import Automaton, EmptyLanguageError, OverlongBudgetError, Vocabulary, json_schema
from smc.testing import ToyLM
from tests.gcd.oracles import up_to

NAMES = {"a": {"type": "string", "maxLength": 9}, "b": {"type": "integer"}}
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
    {"type": "object", "properties": NAMES, "required": ["b"]},
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
            with pytest.raises(EmptyLanguageError):
                json_schema(SCHEMAS[index], max_bytes=length)
            continue
        found = json_schema(SCHEMAS[index], max_bytes=length)
        assert found.max_bytes == length
        plain = Automaton(found.delta, found.accepting, found.class_of_byte)
        assert plain & up_to(length) == expected
        assert found.count(100) == whole.count(length)


def test_lengths_out_of_reach_take_no_states() -> None:
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 65_535},
            "list": {"type": "array", "items": {"type": "string"}, "maxItems": 10_000},
        },
        "maxProperties": 30_000,
        "additionalProperties": {"type": "integer"},
    }
    with pytest.raises(gcd.StateLimitError):
        json_schema(schema, unsupported="refuse")
    language = json_schema(schema, max_bytes=4_000)
    assert language.num_states < 200
    text = b'{"text":"%s"}' % (b"x" * 3_989)
    assert len(text) == 4_000
    assert language.accepts(text)
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


VOCABULARY = Vocabulary.from_bytes([b'"', b"a", b"aaa", b"{}", b""], eos_ids=[4])


def _lifted(max_bytes: int | None) -> gcd.TokenAutomaton:
    language = json_schema({"type": "string", "maxLength": 50_000}, max_bytes=max_bytes)
    return gcd.lift(language, VOCABULARY)


def test_budgets_that_could_hold_more_are_refused_where_they_meet() -> None:
    automaton, proposal = _lifted(20), smc.LCD()
    draw = partial(smc.sample, ToyLM(VOCABULARY), [[0]], automaton, particles=2, proposal=proposal)
    assert automaton.max_bytes == 20
    assert automaton.max_budget == 7  # six tokens of three bytes, and EOS
    for enter in (
        lambda budget: gcd.BudgetMask(automaton, budget),
        lambda budget: gcd.BudgetMask(gcd.AutomatonBatch([automaton] * 2), [7, budget]),
        lambda budget: gcd.Matcher(automaton, budget=budget),
        lambda budget: draw(max_tokens=budget),
    ):
        enter(7)
        with pytest.raises(OverlongBudgetError, match=r"at most 20 bytes.*7 tokens.*budget is 8"):
            enter(8)
    with pytest.raises(OverlongBudgetError, match="there is no budget") as caught:
        gcd.Matcher(automaton)
    assert (caught.value.longest, caught.value.budget) == (7, None)


def test_no_text_within_the_largest_budget_is_longer() -> None:
    automaton = _lifted(20)
    longest = {automaton.initial: 0}
    for _ in range((automaton.max_budget or 0) - 1):
        further: dict[int, int] = {}
        for state, length in longest.items():
            for token in np.flatnonzero(automaton.delta[state, automaton.class_of] >= 0).tolist():
                target = automaton.step(state, token)
                size = length + len(VOCABULARY.token_bytes[token])
                further[target] = max(further.get(target, 0), size)
        longest = further
    assert max(longest.values()) <= 20


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
