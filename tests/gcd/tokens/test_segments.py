"""Segments, compared with enumeration of all sequences of tokens and all their splits."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcd
from gcd import (
    Automaton,
    ConstraintError,
    EmptyLanguageError,
    InfeasibleBudgetError,
    Segment,
    Segments,
    StateLimitError,
    WorkLimitError,
    segments,
)
from tests.gcd.oracles import (
    ALPHABET,
    accepted,
    byte_automata,
    checked_inside_strategies,
    strings,
    vocabularies,
)
from tests.gcd.tokens.bpe import own, train, vocabulary_of
from tests.gcd.tokens.splits import cuts, marked, truth

pytestmark = checked_inside_strategies

STORIES = Path(__file__).resolve().parents[2] / "models" / "stories260K"

# Tokens that straddle the end of a segment, two special tokens (6 and 7), and EOS (8).
TOKENS = [b"a", b"<", b">", b">{", b"{", b"}", b"", b"", b""]
VOCABULARY = gcd.Vocabulary.from_bytes(TOKENS, [8])
FREE, BRACES = gcd.regex("[a<>]*"), gcd.regex(r"\{a*\}")


PLANS = {
    "free": [Segment(FREE, until="<>", tokens=3), Segment(BRACES)],
    "both": [Segment(FREE, until="<>", tokens=4), Segment(BRACES, tokens=3)],
    "last": [Segment(FREE, until="<>"), Segment(BRACES, tokens=2)],
    "special": [Segment(FREE, until=6, tokens=2), Segment(BRACES, until=6, tokens=4)],
    "two specials": [Segment(FREE, until=6, tokens=2), Segment(FREE, until=7), Segment(FREE)],
    "braces": [Segment(BRACES, tokens=2), Segment(FREE, until=7, tokens=3)],
    "empty": [
        Segment(gcd.literal(""), tokens=1),
        Segment(FREE, until=">", tokens=2),
        Segment(gcd.literal("")),
        Segment(gcd.regex(r"\{?"), tokens=2),
    ],
    "three": [
        Segment(FREE, until="<", tokens=1),
        Segment(gcd.literal(">"), tokens=1),
        Segment(BRACES),
    ],
    "overlap": [Segment(FREE, until="<<", tokens=3), Segment(gcd.regex("[<]*"))],
}


@pytest.mark.parametrize("name", PLANS)
def test_accepts_texts_that_split_into_segments_within_their_limits(name: str) -> None:
    """EOS belongs to the last segment, whose limit it may exceed."""
    plan = segments(PLANS[name])
    automaton = gcd.lift(plan, VOCABULARY)
    automaton.check()
    most = 5 if name in ("free", "both", "last") else 4  # as few as show every limit
    expected = truth(plan, VOCABULARY, most)
    assert expected
    assert accepted(automaton, most) == expected
    assert automaton.fewest_tokens == min(len(ids) for ids in expected) + 1
    for ids in strings(range(8), 3):
        if ids in expected:
            plan.split([*ids, 8, 8, 0], VOCABULARY)  # padded
        else:
            with pytest.raises(ConstraintError, match="segments within their limits"):
                plan.split([*ids, 8], VOCABULARY)


def first_texts(language: Automaton) -> Automaton:
    """Return the texts of a language that don't begin with another one."""
    return language - (language + Automaton.byte_set(range(256)) + Automaton.any_bytes())


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Segment], gcd.Vocabulary]:
    """Draw up to three random segments, possibly without any text, and a vocabulary."""
    vocabulary = draw(vocabularies(max_tokens=5))
    usual = [i for i, t in enumerate(vocabulary.token_bytes) if not t]
    special = [i for i in usual if i not in vocabulary.eos_ids]
    ends = st.text(ALPHABET.decode(), min_size=1, max_size=2)
    until = st.one_of(st.none(), ends, *([st.sampled_from(special)] if special else []))
    limit = st.one_of(st.none(), st.integers(1, 4))
    language = byte_automata(max_states=3)
    language = st.one_of(language, language.map(first_texts))
    count = draw(st.integers(1, 3))
    return [
        Segment(draw(language), until=draw(until), tokens=draw(limit)) for _ in range(count)
    ], vocabulary


def has_ambiguous_end(part: Segment) -> bool:
    """Return whether a text of the part is a prefix of another, among those of up to six bytes."""
    texts = {bytes(t) for size in range(7) for t in itertools.product(ALPHABET, repeat=size)}
    texts = {text for text in texts if part.language.accepts(text)}
    return any(text[:size] in texts for text in texts for size in range(len(text)))


@settings(max_examples=60)
@given(plans())
def test_random_segments(drawn: tuple[list[Segment], gcd.Vocabulary]) -> None:
    parts, vocabulary = drawn
    try:
        plan = segments(parts)
    except EmptyLanguageError:
        assert any(part.text.is_empty for part in parts)
        assert not truth(Segments(tuple(parts)), vocabulary, 3)
        return
    except ConstraintError:
        assert any(has_ambiguous_end(part) for part in parts[:-1] if part.until is None)
        return
    assert not any(has_ambiguous_end(part) for part in parts[:-1] if part.until is None)
    expected = truth(plan, vocabulary, 4)
    try:
        automaton = gcd.lift(plan, vocabulary)
    except ConstraintError:
        assert not expected
        return
    automaton.check()
    assert accepted(automaton, 4) == expected
    for ids in expected:
        texts = plan.split([*ids, vocabulary.eos_ids[0]], vocabulary)
        (first,) = cuts(plan.parts, ids, vocabulary)
        symbols, _ = marked(ids, vocabulary)
        for part, text, begin, end in zip(parts, texts, [0, *first], first, strict=False):
            own = bytes(symbol for symbol in symbols[begin:end] if symbol < 1000)
            assert own == text + part.ending
    for token in set(range(vocabulary.size)) - set(vocabulary.eos_ids):
        if (token,) not in expected:
            with pytest.raises(ConstraintError):
                plan.split([token], vocabulary)


def test_unlimited_segments_with_clear_ends_take_the_states_of_the_concatenation() -> None:
    plan = segments([Segment(FREE, until="<>"), Segment(BRACES)])
    whole = gcd.lift(plan.parts[0].text + BRACES, VOCABULARY)
    assert gcd.lift(plan, VOCABULARY).num_states == whole.num_states


def test_a_special_token_is_explained() -> None:
    automaton = gcd.lift(segments([Segment(FREE, until=6), Segment(BRACES)]), VOCABULARY)
    assert gcd.why_refused(automaton, [0], 6) is None
    assert "no bytes" in str(gcd.why_refused(automaton, [0], 7))
    assert "continues with token 6" in str(gcd.why_refused(automaton, [6], 6))


# -- real tokenizers ------------------------------------------------------------------------


@cache
def stories() -> gcd.Vocabulary:
    transformers = pytest.importorskip("transformers")
    return gcd.Vocabulary.from_tokenizer(transformers.AutoTokenizer.from_pretrained(STORIES))


def random_answer(automaton: gcd.TokenAutomaton, budget: int, rng: random.Random) -> list[int]:
    """Draw allowed tokens until the end, or the end of the budget."""
    matcher = gcd.Matcher(automaton, budget=budget)
    ids: list[int] = []
    while not matcher.is_finished:
        ids.append(rng.choice(automaton.allowed(matcher.state, matcher.remaining).tolist()))
        assert matcher.advance(ids[-1])
    return ids


@pytest.mark.parametrize("until", ["</think>", 1])
def test_structure_has_room_whatever_was_thought(until: str | int) -> None:
    """Random tokens fill the first segment until its limit ends it, and then JSON follows."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    plan = segments(
        [Segment(gcd.anything(), until=until, tokens=12), Segment(gcd.json_schema(schema))]
    )
    vocabulary = stories()
    automaton = gcd.lift(plan, vocabulary)
    budget = 24
    for seed in range(3):
        ids = random_answer(automaton, budget, random.Random(seed))
        assert len(ids) <= budget
        thought, answer = plan.split(ids, vocabulary)
        assert isinstance(json.loads(answer)["n"], int)
        assert vocabulary.decode(ids) == thought + plan.parts[0].ending + answer
        assert len(list(cuts(plan.parts, tuple(ids[:-1]), vocabulary))) == 1
    tightest = automaton.fewest_tokens
    assert len(random_answer(automaton, tightest, random.Random(0))) == tightest
    with pytest.raises(InfeasibleBudgetError, match=f"at least {tightest} tokens"):
        gcd.BudgetMask(automaton, tightest - 1)


def test_canonical_spellings_are_kept_and_the_limit_counts_them() -> None:
    """An answer in the tokenizer's own spelling is allowed exactly if it satisfies the limits."""
    text = "a thought<end>{name: order}"
    vocabulary = vocabulary_of(train((text, "a thought about order<end>"), 290))
    ids, end = own(vocabulary, text), own(vocabulary, "<end>")
    begins = [len(vocabulary.decode(ids[:count])) for count in range(len(ids))]
    before = sum(place < len("a thought<end>") for place in begins)
    structure = gcd.regex(r"\{name: [a-z]+\}")
    for limit in (before - 1, before):
        plan = segments([Segment(gcd.anything(), until="<end>", tokens=limit), Segment(structure)])
        every = gcd.lift(plan, vocabulary)
        canonical = gcd.lift(plan, vocabulary, literals="canonical")
        assert canonical.accepts(ids) == (limit == before) == every.accepts(ids)
        pieces = [vocabulary.token_bytes.index(bytes([byte])) for byte in b"{name: order}"]
        other = [*end, *pieces]
        assert every.accepts(other)
        assert not canonical.accepts(other)


# -- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_the_error_has_the_fewest_tokens_of_a_segment(name: str) -> None:
    """The segments before satisfy their limits; those after it have none."""
    for index, part in enumerate(PLANS[name]):

        def limited(tokens: int | None, index: int = index) -> Segments:
            parts = [
                part if place < index else replace(part, tokens=None if place > index else tokens)
                for place, part in enumerate(PLANS[name])
            ]
            return segments(parts)

        most = 3 if name == "two specials" else 4  # the plan with the most sequences
        needed = most + 1
        for ids in truth(limited(None), VOCABULARY, most):
            begins = marked(ids, VOCABULARY)[1]
            (ends,) = cuts(limited(None).parts, ids, VOCABULARY)
            begin, end = [0, *ends][index : index + 2]
            needed = min(needed, sum(begins[begin:end]) + (index == len(PLANS[name]) - 1))
        gcd.lift(limited(max(needed, 1)), VOCABULARY)
        for tokens in range(1, needed):
            with pytest.raises(InfeasibleBudgetError, match=f"segment {index + 1} of") as error:
                gcd.lift(limited(tokens), VOCABULARY)
            assert (error.value.needed, error.value.budget) == (needed, tokens)


def test_what_cannot_be_written_or_counted_is_refused() -> None:
    with pytest.raises(EmptyLanguageError, match="no token has the byte 0x7A"):
        gcd.lift(segments([Segment(FREE, until="z", tokens=4), Segment(BRACES)]), VOCABULARY)
    plan = segments([Segment(FREE, until="<>", tokens=400), Segment(BRACES)])
    with gcd.state_limit(300), pytest.raises(StateLimitError, match="lower `tokens`"):
        gcd.lift(plan, VOCABULARY)
    # After n tokens of one or two bytes, there are n + 1 states.
    plan = segments([Segment(gcd.regex("[>{]{0,2000}"), until=6, tokens=640), Segment(BRACES)])
    with gcd.work_limit(10**6), pytest.raises(WorkLimitError, match="lower `tokens`"):
        gcd.lift(plan, VOCABULARY)
    with pytest.raises(ConstraintError, match="EOS id"):
        gcd.lift(plan, VOCABULARY, eos="accept")


def test_the_smallest_horizon_of_a_segment_holds_for_all() -> None:
    known = gcd.grammar('start: "(" start ")" | "a"', max_depth=4, max_bytes=7)
    plan = segments([Segment(FREE, until="<>"), Segment(known)])
    assert gcd.lift(plan, stories()).max_bytes == known.max_bytes == 7
