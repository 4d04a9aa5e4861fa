"""Requests as JSON texts, and the cache of their compiled constraints."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest

import gcd
from gcd_vllm._constraint_cache import ConstraintCache, usable_budget
from gcd_vllm._requests import ConstraintRequest
from tests.small_vocabulary import vocabulary

DATABASE = {
    "table_names_original": ["singer"],
    "column_names_original": [[-1, "*"], [0, "name"], [0, "age"]],
    "column_types": ["text", "text", "number"],
    "primary_keys": [],
    "foreign_keys": [],
}
PARTS = [{"anything": True, "until": ";", "tokens": 4}, {"choice": ["a"]}]
TOOLS = [{"name": "f", "parameters": {}}]
TEXT = {"type": "string", "maxLength": 1 << 20, "format": "date"}
LONG = [{"name": "f", "parameters": {"properties": {"a": TEXT}, "required": ["a"]}}]
LIMITS = {"style": "python", "max_bytes": 300, "formats": "ignore"}
SAME = [
    ({"json_schema": '\ufeff{"const": 1}'}, gcd.json_schema({"const": 1})),
    ({"json_schema": {"const": 1}}, gcd.json_schema({"const": 1})),
    ({"choice": ["a", "bc"]}, gcd.choice(["a", "bc"])),
    ({"tools": {"functions": TOOLS}}, gcd.tool_calls(TOOLS)),
    ({"tools": LONG, "options": LIMITS}, gcd.tool_calls(LONG, **LIMITS)),
    ({"json_schema": {}, "options": {"max_depth": 1}}, gcd.json_schema({}, max_depth=1)),
    ({"grammar": 's: "a"', "options": {"start": "s"}}, gcd.grammar('s: "a"', start="s")),
    ({"grammar": 'root ::= [ab] "c"*'}, gcd.grammar('root ::= [ab] "c"*', "gbnf")),
]


def parsed(constraint, **more):
    return ConstraintRequest.parse(json.dumps(constraint | more))


@pytest.mark.parametrize(("constraint", "language"), SAME)
def test_a_request_means_what_the_function_of_its_name_returns(constraint, language):
    assert parsed(constraint).language() == language
    text = json.dumps(constraint)
    assert ConstraintRequest.parse(f"\ufeff{text}").key == ConstraintRequest.parse(text).key


def test_databases_and_segments():
    query = parsed({"sql": DATABASE}).language()
    assert query.accepts(b"SELECT singer.name FROM singer")
    found = parsed({"segments": PARTS}).language()
    assert [(part.until, part.tokens) for part in found.parts] == [(";", 4), (None, None)]
    optional = {"json_schema": {}, "options": {"max_depth": 1}}
    (part,) = parsed({"segments": [optional]}).language().parts
    assert part.text == gcd.json_schema({}, max_depth=1)


def test_what_no_automaton_holds_is_left_to_a_check_only_if_that_is_asked_for():
    names = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"a": names}}}]
    for constraint, pointer in (({"json_schema": names}, "at the root"), ({"tools": tools}, "'/0")):
        for request in (constraint, {"segments": [constraint]}):
            with pytest.raises(gcd.ConstraintError, match=f"uniqueItems True.*{pointer}.*remove"):
                parsed(request).language()
        found = parsed(constraint, options={"unsupported": "ignore"}).language()
        assert [caveat.keyword for caveat in found.caveats] == ["uniqueItems"]
    with pytest.raises(gcd.UnsupportedSchemaError, match="uniqueItems"):
        parsed({"json_schema": names}, options={"unsupported": "refuse"}).language()


def test_keys_tell_constraints_apart_and_not_their_budgets_or_spaces():
    one = ConstraintRequest.parse('{"json_schema": {"a": 1, "b": 2}}')
    assert one.key == ConstraintRequest.parse('{"budget":7,"json_schema":{"a":1,"b":2}}').key
    assert one.key != ConstraintRequest.parse('{"json_schema": {"b": 2, "a": 1}}').key
    assert parsed({"regex": "a"}).key != parsed({"choice": "a"}).key
    assert parsed({"regex": "a"}).key == parsed({"regex": "a", "options": {}}).key
    assert parsed({"regex": "a"}).key == parsed({"regex": "a"}, deadline_ms=5).key
    tools = {"tools": TOOLS}
    keys = {parsed(tools, options=each).key for each in ({}, {"max_bytes": 9}, {"max_bytes": 8})}
    assert len(keys) == 3
    text = json.dumps({"regex": "ab*"})  # parsed by the middleware, in a thread, and not again
    assert ConstraintRequest.parse(text) is ConstraintRequest.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "one JSON text"),
        ("[" * 100_000, "one JSON text"),
        (" " * (1 << 21), "at most"),
        (7, "one JSON text"),
        ("[]", "a JSON object"),
        ("{}", "got none"),
        ('{"regex": "a", "budget": true}', "whole number"),
        (json.dumps({"x" * 9000: 1}), r"got x{100}; pass one of"),
        ('{"regex": "a", "choices": []}', "exactly one of"),
        ('{"regex": "a", "options": []}', r"options to be a JSON object, got \[\]"),
        ('{"tools": [], "options": {"draft": 9}}', "no option 'draft'; use one of style, "),
        ('{"segments": [], "options": {"max_bytes": 9}}', "segments has no option"),
        ('{"regex": "a", "deadline_ms": true}', "expected deadline_ms to be a whole number"),
        ('{"regex": "a", "deadline_ms": -1}', "expected deadline_ms to be a whole number"),
    ],
)
def test_invalid_requests_are_refused(text, why):
    with pytest.raises(gcd.ConstraintError, match=why):
        ConstraintRequest.parse(text)


def test_equal_constraints_share_an_automaton_and_refusals_are_remembered(monkeypatch):
    cache = ConstraintCache(vocabulary())
    first = cache.get(parsed({"regex": "ab*"}, budget=4))
    for language in (ConstraintRequest.language, None):  # the second time, nothing is compiled
        monkeypatch.setattr(ConstraintRequest, "language", language)
        assert cache.get(parsed({"regex": "ab*"})) is first
        with pytest.raises(gcd.ConstraintError, match="without"):
            cache.get(parsed({"regex": "("}))
    monkeypatch.undo()
    with pytest.raises(gcd.ConstraintError, match="GCD_VLLM_WORK"):
        ConstraintCache(vocabulary(), max_work=1000).get(parsed({"regex": "(a|b)*a(a|b){9}"}))


def test_what_is_known_does_not_wait_for_what_is_compiled(monkeypatch):
    cache, begun, go_on = ConstraintCache(vocabulary()), Event(), Event()
    known = cache.get(parsed({"regex": "a"}))
    language = ConstraintRequest.language

    def slow(self):
        begun.set()
        assert go_on.wait(600)
        return language(self)

    monkeypatch.setattr(ConstraintRequest, "language", slow)
    with ThreadPoolExecutor(3) as pool:
        cold = [pool.submit(cache.get, parsed({"regex": "ab"})) for _ in range(2)]
        assert begun.wait(600)
        try:
            assert pool.submit(cache.get, parsed({"regex": "a"})).result(600) is known
        finally:
            go_on.set()
        assert cold[0].result(600) is cold[1].result(600)
    monkeypatch.setattr(ConstraintRequest, "language", None)
    assert cache.get(parsed({"regex": "ab"})) is cold[0].result()


def test_another_process_takes_constraints_lifted_here(monkeypatch):
    request = parsed({"json_schema": {"type": "string", "maxLength": 9}})
    cache, other = ConstraintCache(vocabulary()), ConstraintCache(vocabulary())
    made, packed = cache.get(request), cache.export(request)
    monkeypatch.setattr(ConstraintRequest, "language", None)
    other.put(request, packed)
    found = other.get(request)
    for name in ("class_of", "delta", "accepting", "steps_to_accept"):
        np.testing.assert_array_equal(getattr(found, name), getattr(made, name))
    assert (found.initial, found.eos_class) == (made.initial, made.eos_class)
    monkeypatch.setattr("gcd_vllm._constraint_cache._MOST_PACKED", 1)
    assert cache.export(request) == packed
    assert other.export(request) is None
    with pytest.raises(gcd.ConstraintError, match="packed constraint"):
        other.put(parsed({"regex": "a"}), b"")


def test_languages_are_passed_on_if_automata_are_too_large_up_to_a_number_of_bytes(monkeypatch):
    monkeypatch.setattr("gcd_vllm._constraint_cache._MOST_LANGUAGE_BYTES", 1)
    monkeypatch.setattr("gcd_vllm._constraint_cache._MOST_LIFTED", 1)
    cache, other = ConstraintCache(vocabulary()), ConstraintCache(vocabulary())
    first, last = (parsed({"regex": text}) for text in ("cd", "ab*"))
    cache.get(first)
    made = cache.get(last)
    assert cache.export(first) is None
    other.put(last, cache.export(last))
    monkeypatch.setattr(ConstraintRequest, "language", None)
    assert np.array_equal(other.get(last).delta, made.delta)


def test_automata_lifted_elsewhere_are_found_by_name(monkeypatch):
    automaton = gcd.lift(gcd.regex("ab*"), vocabulary())
    cache = ConstraintCache(vocabulary())
    request = cache.keep(automaton)
    assert cache.get(request) is automaton
    assert cache.keep(automaton) == request
    text = json.dumps({request.kind: request.value, "budget": 5})
    assert cache.get(ConstraintRequest.parse(text)) is automaton
    other = ConstraintCache(vocabulary())  # of another process
    with pytest.raises(gcd.ConstraintError, match="expected lifted to be the digest of an"):
        other.get(request)
    monkeypatch.setattr("gcd_vllm._constraint_cache._MOST_PACKED", 1)
    other.put(request, cache.export(request))
    assert np.array_equal(other.get(request).delta, automaton.delta)
    assert cache.keep(gcd.lift(gcd.regex("ab+"), vocabulary())) != request
    tokens = gcd.Vocabulary.from_bytes([b"a", b"b", b""], eos_ids=[2])
    with pytest.raises(gcd.ConstraintError, match="expected a constraint over the engine's voc"):
        cache.keep(gcd.lift(gcd.regex("a"), tokens))
    with pytest.raises(gcd.ConstraintError, match="another vocabulary"):
        ConstraintCache(tokens).put(request, cache.export(request))


def test_memory_is_bounded():
    requests = [parsed({"regex": f"a{{{n}}}b*"}) for n in range(1, 9)]
    size = ConstraintCache(vocabulary()).get(requests[-1]).nbytes
    cache = ConstraintCache(vocabulary(), max_bytes=3 * size)
    automata = [cache.get(request) for request in requests]
    assert cache.get(requests[-1]) is automata[-1]
    assert cache.get(requests[0]) is not automata[0]
    with pytest.raises(gcd.ConstraintError, match="MiB"):
        ConstraintCache(vocabulary(), max_bytes=size).get(requests[-1])


def test_the_least_limit_counts_and_is_named():
    automaton = gcd.lift(gcd.regex("abc"), vocabulary())
    assert usable_budget(automaton, {"one": 9, "two": 4}) == 4
    with pytest.raises(gcd.InfeasibleBudgetError, match="within two: needs at least 4"):
        usable_budget(automaton, {"one": 9, "two": 3})


def test_a_reason_is_short_and_whatever_goes_wrong_is_a_refusal(monkeypatch):
    cache = ConstraintCache(vocabulary())
    with pytest.raises(gcd.ConstraintError) as refused:
        cache.get(parsed({"json_schema": {"$ref": "#/" + "x" * 5000}}))
    assert len(str(refused.value)) < 600

    def broken(self):
        raise AssertionError

    for language in (broken, None):  # the second time, the reason is known
        monkeypatch.setattr(ConstraintRequest, "language", language)
        with pytest.raises(gcd.ConstraintError, match="AssertionError"):
            cache.get(parsed({"regex": "b"}))
