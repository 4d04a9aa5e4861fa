"""Constraints served before they are lifted: their masks, and the switch to the exact form."""

from __future__ import annotations

import gc
import logging
import random
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gcd
from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError, EmptyLanguageError, UndecidedBudgetError
from gcd._languages.json_schema.schema import json_schema
from gcd._languages.text.regex import regex
from gcd._serving import background
from gcd._serving.background import BackgroundLift
from gcd._serving.batch import MatcherBatch
from gcd._serving.lazy import LazyAutomaton
from gcd._serving.matcher import Matcher
from gcd._serving.scores import ScoresProcessor
from gcd._serving.served import ServedAutomaton
from gcd._serving.token_lists import LazyReader
from gcd._tokens.distances import UNREACHABLE
from gcd._tokens.lifting import lift, lift_numbered
from gcd._tokens.vocabulary import Vocabulary
from tests.gcd.oracles import byte_automata, checked_inside_strategies, vocabularies
from tests.small_vocabulary import SCHEMA, vocabulary

pytestmark = checked_inside_strategies

WORDS = vocabulary()
SCHEMAS: list[Any] = [
    SCHEMA,
    {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 9}},
    {"type": "object", "properties": {"é": {"enum": ["naïve", "name", 1]}}, "required": ["é"]},
    {"type": "string", "pattern": "^(aa|a)*b{0,40}$"},
]
LANGUAGES = [json_schema(schema) for schema in SCHEMAS]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[BackgroundLift]:
    """Collect lifts, so that the test decides when they run."""
    lifts: list[BackgroundLift] = []
    monkeypatch.setattr("gcd._serving.lazy.submit", lifts.append)
    monkeypatch.setattr("gcd._serving.lazy.MAX_WAIT", 0.01)
    return lifts


def _ids(row: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


# -- masks ----------------------------------------------------------------------------------


def _check_rows(language: Automaton, words: Vocabulary, cache_bytes: int) -> None:
    """Compare the masks of all states and budgets with the definition and with the lifted ones."""
    try:
        lifted, number = lift_numbered(language, words, 1 << 30)
    except AssertionError:  # the tokens can spell no string
        with pytest.raises(EmptyLanguageError, match="can be written with the tokens"):
            LazyAutomaton(language, words, exact="never")
        return
    exact = ServedAutomaton(lifted)
    shared = LazyAutomaton(language, words, exact="never", cache_bytes=cache_bytes)
    bounds = [shared.steps_to_accept(s) for s in range(shared.num_states)]
    longest = max(b for b in bounds if b < UNREACHABLE)
    for state in range(language.num_states):
        after = {
            v: language.run(token, state) if token else -1
            for v, token in enumerate(words.token_bytes)
        }
        for remaining in (*range(min(longest, 12) + 2), longest + 1, None):
            left = UNREACHABLE if remaining is None else remaining
            allowed = {v for v, t in after.items() if t >= 0 and bounds[t] < left}
            if language.accepting[state] and left > 0:
                allowed |= set(words.eos_ids)
            row = shared.row(state, remaining)
            assert set(_ids(row)) == allowed
            if bounds[state] <= left and bounds[state] < UNREACHABLE:
                assert allowed, "the mask is not empty"
            if number[state] >= 0:
                full = exact.row(int(number[state]), remaining)
                assert not (row & ~full).any(), "a subset of the exact mask"
                if remaining is None:
                    assert (row == full).all()
    assert _ids(shared.row(shared.final)) == list(words.eos_ids)
    assert not shared.row(-1).any()


@settings(max_examples=150)
@given(byte_automata(), vocabularies(), st.sampled_from([0, 300, 1 << 20]))
def test_rows_of_random_automata(language: Automaton, words: Vocabulary, cache_bytes: int) -> None:
    if not language.is_empty:
        _check_rows(language, words, cache_bytes)


@pytest.mark.parametrize("language", LANGUAGES)
def test_rows_of_schemas(language: Automaton) -> None:
    _check_rows(language, WORDS, 1 << 20)


def test_rows_over_half_characters_and_without_bytes() -> None:
    """Only whole-character tokens, and tokens that begin and end inside characters."""
    language = json_schema({"type": "string", "minLength": 1, "maxLength": 4})
    whole = [b'"', b"a", "é".encode(), "€é".encode(), b'a"', b"\\", b"n", b"", b""]
    halves = [*whole[:-1], b"\xc3", b"\xa9", b"\xa9\xe2", b"\xac\xc3", b"\xe2\x82", b""]
    for tokens in (whole, halves):
        _check_rows(language, Vocabulary.from_bytes(tokens, [len(tokens) - 2, len(tokens) - 1]), 99)


def test_bodies_of_strings_are_shared() -> None:
    """States inside a string share their row; only tokens that leave it have a separate one."""
    letters = [bytes([a, b]) for a in range(97, 123) for b in range(97, 123)]
    words = Vocabulary.from_bytes([*(bytes([i]) for i in range(256)), *letters, b""], [256 + 676])
    names = {f"{name}": {"type": "string"} for name in "abcdefgh"}
    language = json_schema({"type": "object", "properties": names, "required": list(names)})
    shared = LazyAutomaton(language, words, exact="never")
    text, states = b"{", []
    for name in names:
        text += b'"%b":"' % name.encode()
        states.append(language.run(text))
        text += b'",'
    shared.row(states[0])
    one = shared._table.num_bytes
    for state in states[1:]:
        shared.row(state)
    assert shared._table.num_bytes <= len(states) * one < 4 * len(states) * len(letters)


def test_few_bytes_keep_few_rows() -> None:
    language = LANGUAGES[0]
    shared = LazyAutomaton(language, WORDS, exact="never", cache_bytes=5000)
    for state in range(language.num_states):
        shared.row(state)
        assert shared._table.num_rows == 1 or shared._table.num_bytes <= 5000
    assert shared._table.num_rows < language.num_states
    shared.forget()
    assert shared._table.num_rows == shared._table.num_bytes == 0


# -- sequences ------------------------------------------------------------------------------


def _position(matcher: Matcher, rng: random.Random, patience: int = 400) -> list[int]:
    """Append random allowed tokens until the end; fail if a mask is empty."""
    tokens: list[int] = []
    while not matcher.is_finished:
        ids = _ids(matcher.mask())
        assert ids, "an answer is never stranded"
        ends = [v for v in ids if v in matcher.automaton.vocabulary.eos_ids]
        token = ends[0] if ends and len(tokens) > patience else rng.choice(ids)
        assert matcher.advance(token)
        tokens.append(token)
    return tokens


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_answer_is_finished_within_the_tightest_budgets(language: Automaton) -> None:
    rng = random.Random(1)
    shared = LazyAutomaton(language, WORDS, exact="never")
    fewest = shared.steps_to_accept(shared.initial)
    for extra in range(11):
        for _ in range(10):
            matcher = Matcher(shared, budget=fewest + extra)
            tokens = _position(matcher, rng)
            assert len(tokens) <= fewest + extra
            assert language.accepts(WORDS.decode(tokens[:-1]))
            assert not matcher.is_exact


@settings(max_examples=100)
@given(byte_automata(), vocabularies(), st.integers(0, 8), st.integers(0, 3), st.randoms())
def test_the_lifted_form_takes_over_after_any_token(
    language: Automaton, words: Vocabulary, when: int, extra: int, rng: random.Random
) -> None:
    assume(not language.is_empty)
    try:
        shared = LazyAutomaton(language, words, exact="never")
    except EmptyLanguageError:
        assume(False)
        raise
    budget = shared.steps_to_accept(shared.initial) + extra
    matcher, reference = (
        Matcher(shared, budget=budget),
        Matcher(lift(language, words), budget=budget),
    )
    start = matcher.copy()
    tokens: list[int] = []
    while not matcher.is_finished:
        if len(tokens) == when:
            shared._lift.run()
            assert shared.exact is not None
        before = matcher.is_exact
        row, full = matcher.mask(), reference.mask()
        assert row.any()
        assert not (row & ~full).any()
        if before:
            assert (row == full).all()
            assert matcher.state == reference.state
        token = rng.choice(_ids(row))
        assert matcher.advance(token) == reference.advance(token)
        assert matcher.is_exact == (len(tokens) >= when)
        tokens.append(token)
    assert reference.is_finished
    assert matcher.remaining == reference.remaining
    if matcher.is_exact:
        for count in range(1, len(tokens) + 1):  # previous states are mapped as well
            back, other = matcher.copy(), reference.copy()
            back.rollback(count)
            other.rollback(count)
            assert back.state == other.state
            assert (back.mask() == other.mask()).all()
        matcher.reset()
        assert (matcher.mask() == Matcher(lift(language, words), budget=budget).mask()).all()
        assert not start.is_exact, "it has taken no token since"
        assert start.advance(tokens[0])
        assert start.is_exact


def test_a_mask_that_was_asked_for_stays_until_the_next_token(held: list[BackgroundLift]) -> None:
    matcher = Matcher(LazyAutomaton(LANGUAGES[0], WORDS), budget=30)
    first = matcher.mask()
    held[0].run()
    assert not matcher.is_exact
    assert (matcher.mask() == first).all()
    matcher.rollback(0)
    assert not matcher.is_exact
    assert matcher.advance(_ids(first)[0])
    assert matcher.is_exact
    assert isinstance(matcher.automaton, ServedAutomaton)


def test_drafts_forced_runs_and_batches(held: list[BackgroundLift]) -> None:
    language = LANGUAGES[2]
    shared = LazyAutomaton(language, WORDS)
    exact = lift(language, WORDS)
    lazy, reference = Matcher(shared), Matcher(exact)
    assert lazy.forced() == reference.forced()
    assert lazy.num_allowed == reference.num_allowed
    draft = [*'{"é":"na'.encode(), 0, 1]
    rows, truth = (np.zeros((len(draft) + 1, shared.num_words), np.int32) for _ in range(2))
    assert lazy.fill_draft_masks(draft, rows) == reference.fill_draft_masks(draft, truth)
    assert (rows == truth).all()
    assert lazy.validate(draft) == len(draft) - 2

    batch = MatcherBatch([Matcher(shared), Matcher(exact), Matcher(shared, budget=20)])
    masks = np.empty((3, shared.num_words), np.int32)
    for i, token in enumerate('{"é":"naïve"}'.encode()):
        if i == 4:
            held[0].run()
        batch.fill_masks(masks)
        assert (masks[0] == masks[1]).all()
        assert batch.advance([token] * 3).all()
        assert batch[0].is_exact == batch[2].is_exact == (i >= 4)


def test_processors_of_scores() -> None:
    language, scores = LANGUAGES[2], np.zeros(WORDS.size)
    ScoresProcessor(language, 20, vocabulary=WORDS)([0], scores)
    assert np.flatnonzero(scores == 0).tolist() == _ids(Matcher(lift(language, WORDS)).mask())


def test_masks_after_lists_of_tokens_that_engines_change(held: list[BackgroundLift]) -> None:
    language, out = regex("a*b|ca"), np.empty(9, np.int32)
    reader = LazyReader(Matcher(LazyAutomaton(language, WORDS), budget=9))
    reference = lift(language, WORDS)
    tokens: list[int] = []

    def check(state: int) -> None:
        reader.fill_mask(tokens, out)
        expected = reference.allowed(state, 9 - len(tokens)) if state >= 0 else WORDS.eos_ids
        assert _ids(out) == list(expected)

    check(reference.initial)
    for changed in ([97], [97, -1], [97, 97, 98], [99], [99, 98], [97, 97]):
        tokens[:] = changed
        if changed == [99]:
            held[0].run()
        check(reference.run(tokens) if -1 not in tokens else -1)


def test_tokens_that_are_used_somewhere(held: list[BackgroundLift]) -> None:
    shared = LazyAutomaton(regex("a*bc"), WORDS)
    used = {v for v in range(256) if shared.uses(v)}
    assert used == set(b"abc")
    assert not shared.uses(WORDS.eos_ids[0])


# -- choice of the form -----------------------------------------------------------------------


def test_one_form_for_each_language_vocabulary_and_option(held: list[BackgroundLift]) -> None:
    language = regex("a{3,9}")
    lazy = Matcher(language, WORDS).automaton
    assert Matcher(language, WORDS).automaton is lazy
    assert Matcher(lazy).automaton is lazy
    assert len(held) == 1
    assert Matcher(language, WORDS, exact="never").automaton is not lazy
    assert Matcher(language, WORDS, exact="wait").is_exact
    held[0].run()
    assert Matcher(language, WORDS).is_exact
    assert Matcher(lazy).is_exact
    with pytest.raises(ConstraintError, match="expected no vocabulary for"):
        Matcher(lazy, WORDS)


def test_segments_are_lifted() -> None:
    parts = [gcd.Segment(regex("[ab]*"), until=";"), gcd.Segment(regex("b+"))]
    matcher = Matcher(gcd.segments(parts), WORDS, budget=9)
    assert matcher.is_exact
    assert matcher.validate(list(b"ab;b")) == 4


def test_a_budget_that_the_bound_does_not_decide_waits_for_the_lift() -> None:
    """The bound spells the shortest string in bytes, but a longer one has fewer tokens."""
    words = Vocabulary.from_bytes([b"a", b"b", b"c", b"bbbbb", b""], [4])
    language = regex("aaaa|bbbbb")
    bound = LazyAutomaton(language, words, exact="never").steps_to_accept(0)
    assert bound == 5
    matcher = Matcher(language, words, budget=2)
    assert matcher.is_exact
    assert _ids(matcher.mask()) == [3]
    with pytest.raises(gcd.InfeasibleBudgetError, match="needs at least 2 tokens"):
        Matcher(language, words, budget=1)


def test_an_undecidable_budget_is_refused_with_the_bound(
    held: list[BackgroundLift],
) -> None:
    words = Vocabulary.from_bytes([b"a", b"b", b"bbbbb", b""], [3])
    language = regex("aaaa|bbbbb")
    with pytest.raises(UndecidedBudgetError, match=r"at least 5 .*got 2; .*more than 0\.01 sec"):
        Matcher(language, words, budget=2)
    with pytest.raises(UndecidedBudgetError, match='exact="never"') as caught:
        Matcher(language, words, budget=2, exact="never")
    assert (caught.value.needed, caught.value.budget) == (5, 2)
    small = LazyAutomaton(language, words, max_bytes=0)
    held[-1].run()
    assert small.exact is None
    with pytest.raises(UndecidedBudgetError, match="expected a table of at most 0 MiB"):
        Matcher(small, budget=4)
    assert not Matcher(small, budget=5).is_exact, "it stays as it is"


def test_texts_longer_than_the_language_is_known_for_are_refused(
    held: list[BackgroundLift],
) -> None:
    language = json_schema({"type": "string", "maxLength": 5}, max_bytes=40)
    assert language.max_bytes == 40
    with pytest.raises(gcd.OverlongBudgetError, match="at most 40 bytes"):
        Matcher(language, WORDS)
    assert Matcher(language, WORDS, budget=5).validate(list(b'"a"')) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"exact": "soon"}, "expected exact to be one of"),
        ({"cache_bytes": -1}, "cache_bytes of at least 0"),
        ({"vocabulary": Vocabulary.from_bytes([b"a"], [])}, "with EOS ids, got none"),
        ({"language": Automaton.empty()}, "got an empty language"),
        ({"language": regex("z")}, "can be written with the tokens"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    given = {"language": regex("a"), "vocabulary": Vocabulary.from_bytes([b"a", b""], [1])}
    with pytest.raises(ConstraintError, match=message):
        LazyAutomaton(**{**given, **arguments})


# -- threads --------------------------------------------------------------------------------


def test_a_lift_in_the_background_takes_over() -> None:
    shared = LazyAutomaton(LANGUAGES[1], WORDS)
    assert shared.wait(600.0)
    assert shared._lift.is_done
    matcher = Matcher(shared, budget=9)
    assert matcher.is_exact
    assert "lifted" in repr(shared)


def test_a_lift_that_dies_leaves_the_lazy_form(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, held: list[BackgroundLift]
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(background, "lift_numbered", fail)
    shared = LazyAutomaton(LANGUAGES[0], WORDS)
    matcher = Matcher(shared, budget=40)
    with caplog.at_level(logging.WARNING):
        held[0].run()
    assert "keeping the lazy form: MemoryError: no memory" in caplog.text
    _position(matcher, random.Random(0))
    assert not matcher.is_exact
    with pytest.raises(UndecidedBudgetError, match="MemoryError"):
        Matcher(shared, budget=1)


def test_a_constraint_that_is_dropped_is_not_lifted(
    monkeypatch: pytest.MonkeyPatch, held: list[BackgroundLift]
) -> None:
    shared = LazyAutomaton(LANGUAGES[0], WORDS)
    gone = weakref.ref(shared)
    del shared
    gc.collect()
    assert gone() is None, "nothing else holds it"
    monkeypatch.setattr(background, "lift_numbered", lambda *_: pytest.fail("it is lifted"))
    held[0].run()
    assert not held[0].is_done


def test_a_lift_that_runs_stops_when_its_constraint_is_dropped(
    monkeypatch: pytest.MonkeyPatch, held: list[BackgroundLift]
) -> None:
    shared = [LazyAutomaton(LANGUAGES[0], WORDS)]

    def drop(*arguments: Any) -> Any:
        shared.clear()
        return lift_numbered(*arguments)

    monkeypatch.setattr(background, "lift_numbered", drop)
    monkeypatch.setattr(background, "ServedAutomaton", lambda *_: pytest.fail("it goes on"))
    held[0].run()
    assert held[0].reason is None


def test_lifts_go_on_in_a_forked_process(held: list[BackgroundLift]) -> None:
    threads = background._Threads()
    shared = LazyAutomaton(LANGUAGES[0], WORDS)
    lift_of = shared._lift
    threads._threads = background.MAX_THREADS  # as if one thread was lost in the fork
    threads.submit(lift_of)
    assert not lift_of.wait(0.01)
    threads.restart()
    assert lift_of.wait(600.0)
    assert shared.exact is not None
