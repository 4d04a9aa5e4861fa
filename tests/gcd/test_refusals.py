"""Refusals of arguments, by the words of the error.

`languages/test_refusals.py` has schemas, patterns, grammars and lists of tools.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gcd
from gcd import StateLimitError, WorkLimitError
from gcd._languages.text.code_points import texts
from gcd._languages.values.json_values import json_notation, json_string
from gcd._languages.values.numbers import Bound, multiples, numbers
from gcd._languages.values.python_values import python_notation
from gcd._removed import REMOVED

pytestmark = pytest.mark.usefixtures("unchecked_annotations")

LANGUAGE: Any = gcd.regex("a")
VOCABULARY = gcd.Vocabulary.from_bytes([b"a", b""], [1])
LIFTED = gcd.lift(LANGUAGE, VOCABULARY)
TABLES = gcd.SqlSchema((gcd.Table("t", (gcd.Column("c"),)),))
AB = gcd.Vocabulary.from_bytes([b"a", b"b", b"", b""], [3])
EMPTY, FREE, HOLE = gcd.Automaton.empty(), gcd.Segment(gcd.anything()), gcd.infill("ab", "")
FIRST, ENDLESS = gcd.Segment(LANGUAGE, until="<"), gcd.Segment(LANGUAGE, until="a")
PREFIXES, SPLIT = gcd.Segment(gcd.choice(["a", "ab"]), tokens=2), gcd.segments([FREE])
ANSWERED: Any = {"choice": "auto", "answer": gcd.json_schema({"type": "object"})}
MATCHER, PING = gcd.Matcher(LIFTED), {"name": "ping", "parameters": {}}
OPTIONS = ("whitespace", "escapes", "additional_properties", "formats", "unknown", "draft")
NESTED = 'start: "(" start ")" | "xyz"'
from_bytes, positions = gcd.Vocabulary.from_bytes, gcd.TokenAutomaton.from_position_sets


def ended_by(token: int) -> gcd.Segments:
    return gcd.segments([gcd.Segment(LANGUAGE, until=token), FREE])


def wired(target: int, **options: int) -> gcd.Automaton:
    table = np.full((1, 256), -1)
    table[0, 0] = target
    return gcd.Automaton.from_transitions(table, np.array([True]), **options)


def edges(*wires: Any, **options: Any) -> gcd.TokenAutomaton:
    return gcd.TokenAutomaton.from_transitions(AB, wires, accepting=["Q"], initial="P", **options)


def tensors(edge: Any, initial: int = 0, accepting: int = 1) -> gcd.TensorAutomaton:
    return gcd.TensorAutomaton.from_edges(2, [edge], 1, [initial], [accepting])


def masks_of_two(out: Any) -> None:
    gcd.MatcherBatch([gcd.Matcher(LIFTED), gcd.Matcher(LIFTED)]).fill_masks(out)


class Model:
    """Stand-in for an instance of a pydantic model."""

    def model_json_schema(self) -> dict[str, Any]:
        raise AssertionError("expected only classes as schemas")


WRONG: list[tuple[Callable[[], Any], str]] = [
    # -- arguments of wrong types
    (lambda: gcd.regex(3), "expected a pattern as str, got 3"),
    (lambda: gcd.regex(b"ab"), "got b'ab'; decode"),
    (lambda: gcd.regex(re.compile("a")), ".pattern"),
    (lambda: gcd.literal(3), "got 3"),
    (lambda: gcd.keywords([["a"]], max_words="3"), "got '3'"),
    (lambda: gcd.keywords([["a"]], letters=["a"]), "got ['a']"),
    (lambda: gcd.keywords([["a"]], punctuation=3), "got 3"),
    (lambda: gcd.tool_calls(3), "list under 'tools'; got 3"),
    (lambda: gcd.sql(3), "the path of a database, got 3"),
    (lambda: gcd.sql(TABLES, 0), "got 0"),
    (lambda: gcd.widest_dialect(TABLES, "5"), "got '5'"),
    (lambda: gcd.segments(3), "got 3; pass [gcd.Seg"),
    (lambda: gcd.lift("a", VOCABULARY), "got 'a'; compile"),
    (lambda: gcd.lift(LANGUAGE, None), "from_tokenizer"),
    (lambda: LANGUAGE + "b", "got 'b'; make one with gcd.literal"),
    (lambda: LANGUAGE | "b", "got 'b'; make one with gcd.literal"),
    (lambda: LANGUAGE.accepts(3), "got 3"),
    (lambda: from_bytes(["a", "b"], 1), "got 'a'; encode"),
    (lambda: from_bytes(b"ab", 1), "got b'ab'"),
    (lambda: from_bytes([b"a"], None), "got None"),
    (lambda: from_bytes([b"a"], "</s>"), "got '</s>'"),
    (lambda: from_bytes([b""], 0, size="3"), "got '3'"),
    (lambda: gcd.Vocabulary.from_ranks(3, 1), "got 3"),
    (lambda: gcd.inspect_prefix("a", [0]), "gcd.lift"),
    (lambda: gcd.inspect_prefix(LIFTED, "a"), "got 'a'"),
    (lambda: gcd.why_refused(LIFTED, [0.5], 0), "got [0.5]"),
    (lambda: gcd.state_limit("9").__enter__(), "got '9'"),
    (lambda: gcd.work_limit(None).__enter__(), "got None"),
    (lambda: gcd.work_limit(0).__enter__(), "at least 1"),
    (lambda: gcd.state_limit(0).__enter__(), "at least 1"),
    (lambda: gcd.json_schema(3), "an object or a boolean, got 3"),
    (lambda: gcd.json_schema(Exception), "cannot parse the type Exception"),
    (lambda: gcd.json_schema(Model()), "pydantic model class, got its instance"),
    (lambda: gcd.json_schema("a.json"), "expected a JSON schema (Expecting value"),
    (lambda: gcd.ignored_keywords('{"type":'), "class that pydantic validates"),
    # -- languages
    (lambda: gcd.choice([1, 2]), "as str or bytes, got 1"),
    (lambda: gcd.choice("abc"), "expected a list of texts"),
    (lambda: gcd.literal("\ud800"), "lone surrogate"),
    (lambda: gcd.keywords([]), "at least one group"),
    (lambda: gcd.keywords([["cat"], []]), "at least one inflection in group 2 of keywords"),
    (lambda: gcd.keywords(["cat"]), "to be a list of words, got 'cat'"),
    (lambda: gcd.keywords("cat"), "to get a list of groups"),
    (lambda: gcd.keywords([["two words"]]), "got 'two words'"),
    (lambda: gcd.keywords([[""]]), "got ''"),
    (lambda: gcd.keywords([["été"]]), "letters (ascii)"),
    (lambda: gcd.keywords([["\ud800"]]), "lone surrogate"),
    (lambda: gcd.keywords([["a"]], letters="greek"), "one of ascii, latin, unicode, got 'greek'"),
    (lambda: gcd.keywords([["a"]], punctuation=",&"), "got '&'"),
    (lambda: gcd.keywords([["a"]], punctuation="("), "both brackets or neither, got '('"),
    (lambda: gcd.keywords([["a"]], max_words=0), "max_words to be a whole number, at least 1"),
    (lambda: gcd.keywords([["a"], ["b"]], max_words=1), "max_words of at least 2 for 2 groups"),
    (lambda: gcd.infill(3, ""), "expected before to be a text, got 3"),
    (lambda: gcd.infill("", None), "expected after to be a text, got None"),
    (lambda: gcd.infill("", "", "a"), "the middle as a gcd.Automaton, got 'a'"),
    (lambda: gcd.infill("", "", gcd.segments([FREE])), "middle as a gcd.Automaton, got Segments"),
    (lambda: gcd.infill("", "", EMPTY), "EmptyLanguageError: expected a middle"),
    (lambda: HOLE.heal([0, 1, 0], AB), "ends with 'ab', got 'ba' at its end"),
    (lambda: HOLE.heal([0, 1, 2], AB), "without special tokens after it"),
    (lambda: HOLE.heal([0, 77], AB), "prompt in 0..3, got 77"),
    (lambda: HOLE.heal([0, 1], None), "expected a gcd.Vocabulary"),
    (lambda: gcd.infill("xx", "x").middle_of("xx"), "expected a text that begins with"),
    (lambda: gcd.infill("xx", "x").middle_of("xxa"), "expected a text that begins with"),
    (lambda: gcd.infill("xx", "x").middle_of("axxx"), "expected a text that begins with"),
    (lambda: gcd.segments([]), "at least one segment for segments"),
    (lambda: gcd.segments([LANGUAGE]), "expected gcd.Segment(...)"),
    (lambda: gcd.segments([FREE, gcd.Segment(LANGUAGE, until="a")]), "segment 1 of 2: "),
    (lambda: gcd.segments([FIRST, ENDLESS]), "EmptyLanguageError: segment 2 of 2 (until 'a'): "),
    (lambda: gcd.segments([FIRST, PREFIXES, FREE]), "segment 2 of 3: expected an unambiguous end"),
    (lambda: SPLIT.split(b"a", AB), "expected token ids as whole numbers, got "),
    (lambda: SPLIT.split((0, -1), AB), " got -1"),
    (lambda: SPLIT.split((0, 4), AB), " got 4"),
    (lambda: gcd.Segment("free text"), "use gcd.anything() for free text"),
    (lambda: gcd.Segment(LANGUAGE, until=""), "expected until to be non-empty"),
    (lambda: gcd.Segment(LANGUAGE, until="\ud800"), "lone surrogate"),
    (lambda: gcd.Segment(LANGUAGE, until=True), "a text or the id of a token, got True"),
    (lambda: gcd.Segment(LANGUAGE, tokens=0), "at least one token in a segment, got tokens=0"),
    (lambda: gcd.Segment(LANGUAGE, tokens=True), "whole number of tokens, got True"),
    (lambda: gcd.lift(ended_by(9), AB), "expected a token id in 0..3, got 9"),
    (lambda: gcd.lift(ended_by(3), AB), "doesn't end the whole text, got EOS id 3"),
    (lambda: gcd.lift(ended_by(0), AB), "whose bytes"),
    (lambda: gcd.grammar(NESTED, max_depth=-1), "max_depth"),
    (lambda: gcd.grammar(NESTED, max_bytes=0), "max_bytes"),
    (lambda: gcd.grammar(NESTED, start="other"), "no rule 'other'"),
    (lambda: gcd.grammar(NESTED, max_depth=0), "raise max_depth"),
    (lambda: gcd.grammar(NESTED, max_bytes=2), "3 bytes, so raise max_bytes"),
    *(
        (lambda option=option: gcd.json_schema({}, **{option: "loose"}), option)
        for option in OPTIONS
    ),
    (lambda: gcd.json_schema({}, unsupported=""), 'to be "warn" or "ignore" or "refuse"'),
    (lambda: gcd.json_schema({}, max_bytes=0), "max_bytes to be a whole number, at"),
    (lambda: gcd.json_schema({}, max_bytes=True), "max_bytes to be a whole number, at"),
    (lambda: gcd.json_schema({"const": "12345678"}, max_bytes=9), "shortest has 10"),
    (lambda: gcd.tool_calls([PING], style="yaml"), "style"),
    (lambda: gcd.tool_calls([PING], style="hermis"), "name of a format"),
    (lambda: gcd.tool_calls([PING], whitespace="pretty"), "whitespace"),
    (lambda: gcd.tool_calls([PING], min_calls=-1), "min_calls"),
    (lambda: gcd.tool_calls([PING], min_calls=2, max_calls=1), "at least min_calls"),
    (lambda: gcd.tool_calls([PING], max_depth=-1), "max_depth"),
    (lambda: gcd.tool_calls([PING], max_bytes=0), "max_bytes"),
    (lambda: gcd.tool_calls([PING], formats="no"), "formats"),
    (lambda: gcd.tool_calls([PING], unknown="no"), "unknown"),
    (lambda: gcd.tool_calls([PING], style="hermes", choice="nope"), "the tools are ping"),
    (lambda: gcd.tool_calls([PING], style="hermes", answer=LANGUAGE), "only with choice"),
    (lambda: gcd.tool_calls([PING], style="hermes", min_calls=0), "at least 1"),
    (lambda: gcd.tool_calls([PING], style="internlm", min_calls=2), "no list of at least 2 calls"),
    (lambda: gcd.tool_calls([PING], style="llama3_json", **ANSWERED), "begin like calls"),
    # -- parts of languages
    *(
        (lambda read=notation, e=escapes: read("spaced", e).spell("a\ud800"), "lone surrogate")
        for notation, escapes in ((json_notation, "canonical"), (python_notation, "all"))
    ),
    (lambda: json_notation("pretty"), "whitespace"),
    (lambda: json_notation("spaced", "pretty"), "escapes"),
    (lambda: json_string(0, 1_000_000), "length limit of 1000000"),
    (lambda: texts(0, 1_000_000), "length limit of 1000000"),
    (lambda: numbers(Bound(Decimal("1E+5000"), False)), "digits"),
    *(
        (lambda divisor=divisor: multiples(Decimal(divisor)), "greater than 0")
        for divisor in ("-0", "-2", "NaN", "Infinity")
    ),
    (lambda: multiples(Decimal("1E+999999")), "400 digits"),
    (lambda: multiples(Decimal("1E-500")), "400 digits"),
    (lambda: LANGUAGE.repeat(3, 2), "got 3 and 2"),
    (lambda: LANGUAGE.delta.fill(0), "read-only"),
    (lambda: LIFTED.delta.fill(0), "read-only"),
    (lambda: LIFTED.steps_to_accept.fill(0), "read-only"),
    (lambda: wired(-1, initial=4), "expected an initial state in 0..0, got 4"),
    (lambda: wired(7), "got -1..7"),
    (lambda: gcd.Automaton.byte_set([300]), "bytes in 0..255"),
    # -- lifted automata
    (lambda: from_bytes([], []), "at least one token"),
    (lambda: gcd.lift(EMPTY, VOCABULARY), "EmptyLanguageError: expected"),
    (lambda: gcd.lift(gcd.literal("axb"), AB), "no token has the byte 0x78 ('x')"),
    (lambda: gcd.lift(gcd.literal("ab"), from_bytes([b"a", b"bb", b""], 2)), "with the tokens"),
    (lambda: gcd.lift(LANGUAGE, from_bytes([b"a"], [])), 'eos="accept"'),
    (lambda: gcd.lift(LANGUAGE, from_bytes([b"a"], []), eos="never"), "to be one of"),
    (lambda: gcd.lift(gcd.regex("a+b?"), AB, eos="accept"), "is a prefix of another, got b'a'"),
    (lambda: gcd.lift(LANGUAGE, AB, literals="canonical"), "from_tokenizer"),
    (lambda: gcd.lift(LANGUAGE, AB, literals="own"), "expected literals to be one of"),
    (lambda: LIFTED.step(0, 2), "expected a token id in 0..1, got 2"),
    (lambda: LIFTED.step(0, -1), "expected a token id in 0..1, got -1"),
    (lambda: gcd.AutomatonBatch([LIFTED, gcd.lift(LANGUAGE, AB)]), "for automaton 1; lift all"),
    (lambda: gcd.AutomatonBatch([]), "at least one automaton"),
    (lambda: edges(("P", 9, "Q")), "'P' -> 'Q': expected token ids in 0..3, got 9"),
    (lambda: edges(("P", 3, "Q")), "got EOS id 3"),
    (lambda: edges(("P", 2, "Q")), "tokens with bytes, got token 2"),
    (lambda: edges(("P", [0, 1], "Q"), ("P", 1, "P")), "token 1 from state 'P', got 'Q' and 'P'"),
    (lambda: edges(("P", 0, "Q"), ("Q", 0, "P"), eos="accept"), "got edges from 'Q'"),
    (lambda: edges(("P", 0, "Q"), eos="never"), "expected eos to be one of"),
    (edges, "lead from 'P' to one of 1 accepting states"),
    (lambda: positions(AB, [[0], []]), "at least one token at position 1"),
    (lambda: positions(from_bytes([b"a"], []), [[0]]), "with EOS ids, got none"),
    (lambda: tensors((2, 0, 0)), "expected a source in 0..1, got 2"),
    (lambda: tensors((0, 3, 0)), "expected a class in 0..0, got 3"),
    (lambda: tensors((0, 0, -1)), "expected a target in 0..1, got -1"),
    (lambda: tensors((0, 0, 1), initial=5), "expected an initial state in 0..1, got 5"),
    (lambda: tensors((0, 0, 1), accepting=2), "expected an accepting state in 0..1, got 2"),
    # -- matchers
    (lambda: gcd.Matcher(LANGUAGE, budget=5), "for Automaton, got none; pass vocabulary="),
    (lambda: gcd.MatcherBatch([]), "at least one"),
    (lambda: gcd.MatcherBatch([MATCHER, MATCHER]), "twice"),
    (lambda: gcd.MatcherBatch([MATCHER, gcd.Matcher(LANGUAGE, AB)]), "of size 2, got 4"),
    (lambda: gcd.MatcherBatch([MATCHER]).__setitem__(0, gcd.Matcher(LANGUAGE, AB)), "2, got 4"),
    (lambda: gcd.Matcher(LIFTED, budget=1), "InfeasibleBudgetError: "),
    *(
        (lambda budget=budget: gcd.Matcher(LIFTED, budget=budget), "whole number of tokens, got")
        for budget in (1.5, True, float("inf"), "3", np.bool_(True))
    ),
    (lambda: gcd.check_budget(LIFTED, 2.5), "a whole number of tokens, got 2.5"),
    (lambda: MATCHER.forced(-1), "a limit of at least 0 tokens, got -1"),
    (lambda: MATCHER.advance([0]), "expected one token, got"),
    (lambda: MATCHER.validate(np.array([[0, 0]])), "one-dimensional draft, got shape (1, 2)"),
    (lambda: masks_of_two(np.empty((1, 1), np.int32)), "contiguous int32"),
    (lambda: masks_of_two(np.empty((2, 2), np.int32)), "contiguous int32"),
    (lambda: masks_of_two(np.empty((2, 2), np.int32)[:, ::2]), "contiguous int32"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_is_refused_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert message in f"{type(caught.value).__name__}: {caught.value}"


def test_ids_may_be_of_any_kind_of_whole_number() -> None:
    for ids in (1, np.int64(1), [1], (np.int32(1),), np.array([1]), np.array(1), torch.tensor([1])):
        assert gcd.Vocabulary.from_bytes([b"a", b""], ids).eos_ids == (1,)  # type: ignore[arg-type]
    assert gcd.Matcher(LIFTED, budget=np.int64(9)).remaining == 9  # type: ignore[arg-type]


def test_a_schema_may_be_a_text() -> None:
    alarm = (Path(__file__).parents[2] / "docs" / "alarm.json").read_bytes()
    for written in (alarm, alarm.decode()):
        assert gcd.json_schema(written).accepts('{"hour":7,"minute":0}')
    assert gcd.json_schema("true") == gcd.json_schema(True)


@pytest.mark.parametrize(
    "error",
    [
        gcd.ConstraintError("wrong"),
        gcd.UnsupportedSchemaError("not", "/a"),
        gcd.InfeasibleBudgetError(5, 3),
        gcd.EmptyLanguageError("empty"),
        StateLimitError(7),
        WorkLimitError(7),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_sent_between_processes(error: Exception) -> None:
    error.add_note("a note")
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize("name", REMOVED)
def test_removed_names_say_what_to_use(name: str) -> None:
    with pytest.raises(AttributeError, match=f"gcd.{name} was removed; use "):
        gcd.__getattr__(name)
