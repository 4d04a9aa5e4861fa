"""Canonical spellings, against the tokenizer itself by enumeration."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gcd import Automaton, TokenAutomaton, Vocabulary, choice, lift, literal, regex, tool_calls
from gcd._tokens import spellings as module
from tests.gcd.oracles import ALPHABET, accepted, byte_automata, checked_inside_strategies
from tests.gcd.tokens import bpe
from tests.gcd.tokens.bpe import CUTS, own, train, vocabulary_of

pytestmark = checked_inside_strategies

STORIES = Path(__file__).resolve().parents[2] / "models" / "stories260K"

ABC = tuple("abcabcaabbcabaacbaccabbaabcabcbcbacabcab"[i : i + 9] for i in range(0, 32, 3))
CALLS = (
    10 * "I'd can't I'm we're I've we'll it's ",
    "orderId = 'x', orderName = [1, 2.5, 30]\n  return it's \"quoted\"  \n\n",
    *(
        json.dumps([{"name": name, "arguments": {"orderId": number, "city": city, "on": True}}])
        for number, name in enumerate(["get_weather", "orderName", "search_flights"])
        for city in ["Rome", "it's", "New York"]
    ),
)


def only_way(automaton: TokenAutomaton, ids: tuple[int, ...]) -> list[bool]:
    """Return which tokens of a text, EOS included, are the only ones allowed."""
    found, state = [], automaton.initial
    for token in (*ids, automaton.vocabulary.eos_ids[0]):
        found.append(automaton.allowed(state).size == 1)
        state = automaton.step(state, token)
        assert state >= 0
    return found


@cache
def spellings(size: int) -> dict[bytes, tuple[tuple[int, ...], set[tuple[int, ...]]]]:
    """Return the tokenizer's own and all spellings of all texts of at most five letters."""
    vocabulary = vocabulary_of(train(ABC, size, "none"))
    tokens = [(i, t) for i, t in enumerate(vocabulary.token_bytes) if t and set(t) <= set(ALPHABET)]
    found: dict[bytes, set[tuple[int, ...]]] = {b"": {()}}
    for length in range(1, 6):
        for letters in itertools.product(ALPHABET, repeat=length):
            text = bytes(letters)
            found[text] = {
                (*ids, token)
                for token, raw in tokens
                if text.endswith(raw)
                for ids in found[text[: -len(raw)]]
            }
    return {text: (own(vocabulary, text.decode()), ways) for text, ways in found.items()}


@st.composite
def languages(draw: st.DrawFn) -> Automaton:
    """Languages over three letters, not empty."""
    language = draw(byte_automata()) & regex("[abc]*")
    assume(not language.is_empty)
    return language


@settings(max_examples=25)
@given(
    languages(),
    st.sampled_from([262, 270, 290]),
    st.none() | st.tuples(st.integers(0, 6), st.integers(1, 60)),
)
def test_literal_languages_have_the_tokenizers_own_spelling_and_no_other(
    language: Automaton, size: int, limits: tuple[int, int] | None
) -> None:
    """Without a pattern that splits text first, pairs decide exactly.

    With limits on what counts as literal, the texts are the same, and may have other spellings.
    """
    vocabulary = vocabulary_of(train(ABC, size, "none"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("MOST_LIVE", "MOST_PAIRS"), limits or (), strict=False):
            patch.setattr(module, name, value)
        narrow = lift(language, vocabulary, literals="canonical")
    narrow.check()
    _check_classes(narrow)
    for text, (own_one, ways) in spellings(size).items():
        accepted = {ids for ids in ways if narrow.accepts(ids)}
        if limits is None or not language.accepts(text):
            assert accepted == ({own_one} if language.accepts(text) else set())
        assert language.accepts(text) == (own_one in accepted)
    fewest = lift(language, vocabulary).fewest_tokens
    assert narrow.fewest_tokens >= fewest


def test_a_tokenizers_dropout_is_not_applied() -> None:
    """A tokenizer that drops merges at random in training has one canonical spelling."""
    plain = train(ABC, 290, "none")
    dropping = bpe.tokenizers.Tokenizer.from_str(plain.to_str())
    dropping.model.dropout = 0.9
    texts = ["abc", "abcab", "aabbcabcaacb"]
    expected = [own(vocabulary_of(plain), text) for text in texts]
    assert [own(vocabulary_of(dropping), text) for text in texts] == expected


def _check_classes(automaton: TokenAutomaton) -> None:
    """Assert that no two classes have the same column, and all of them have tokens."""
    assert np.unique(automaton.delta, axis=1).shape[1] == automaton.num_classes
    assert (automaton.tokens_per_class > 0).all()


TEXTS = [
    '{"orderId": 1, "orderName": "x"}',
    "it's", "\"'s", "x  y", " \n\n y", "\n x", "12345", "-3.50", "a,\n\nb", '"', '""', '","', "",
    "Zürich 東京 🙂", "f(a='it', b=[1, 2])", "orderIdorderName", "  return", "'t'sve", "a1b22c333",
]  # fmt: skip


@pytest.mark.parametrize("cut", CUTS)
@settings(max_examples=20)
@given(
    texts=st.lists(
        st.text(st.sampled_from("ab'sd12 \n\"{,.é東"), max_size=9), min_size=1, max_size=2
    )
)
@example(texts=TEXTS)
def test_the_tokenizers_own_spelling_of_any_text_is_kept(cut: str, texts: list[str]) -> None:
    vocabulary = vocabulary_of(train(CALLS, 400, cut))
    automaton = lift(choice(texts), vocabulary, literals="canonical")
    for text in texts:
        assert automaton.accepts(own(vocabulary, text)), text
    written = {vocabulary.decode(ids) for ids in accepted(automaton, 20)}
    assert written == {text.encode() for text in texts if len(own(vocabulary, text)) <= 20}


def test_a_tokenizer_of_sentence_pieces() -> None:
    """The tokenizer adds a space before a text, but answers, which follow prompts, have none."""
    tokenizer = bpe.tokenizers.Tokenizer.from_file(str(STORIES / "tokenizer.json"))
    vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_ids=[2])
    for text in (*TEXTS, "once upon a time", " there was", "Lily and Tom"):
        after_line = tokenizer.encode(f"\n{text}", add_special_tokens=False).ids
        ids = tuple(after_line[2:])  # a space and the line feed, which is part of no merge
        assert ids == own(vocabulary, text)
        automaton = lift(literal(text), vocabulary, literals="canonical")
        assert automaton.accepts(ids), text
        if text.isascii():
            assert accepted(automaton, 40) == {ids}


@pytest.mark.parametrize("cut", CUTS)
def test_a_member_name_is_forced_and_names_part_where_their_spellings_do(cut: str) -> None:
    vocabulary = vocabulary_of(train(CALLS, 420, cut))
    names = choice(['"orderId"', '"orderName"'])
    automaton = lift(names, vocabulary, literals="canonical")
    both = [own(vocabulary, f'"order{end}"') for end in ("Id", "Name")]
    assert accepted(automaton, 12) == set(both)
    parting = next(i for i, (a, b) in enumerate(zip(*both, strict=False)) if a != b)
    for ids in both:
        assert only_way(automaton, ids) == [i != parting for i in range(len(ids) + 1)]


@pytest.mark.parametrize(("style", "cut"), list(zip(["json", "python"] * 2, CUTS, strict=True)))
def test_calls_of_tools(style: str, cut: str) -> None:
    vocabulary = vocabulary_of(train(CALLS, 420, cut))
    tools = [
        {"name": name, "parameters": {"properties": members, "required": list(members)}}
        for name, members in (
            ("get_weather", {"city": {"type": "string"}, "n": {"type": "integer"}}),
            ("search_flights", {"price": {"type": "number"}}),
        )
    ]
    language = tool_calls(tools, style=style)
    every = lift(language, vocabulary)
    narrow = lift(language, vocabulary, literals="canonical")
    narrow.check()
    _check_classes(narrow)
    texts = {
        "json": [
            '[{"name": "get_weather", "arguments": {"city": "it\'s, \\"New\\" Zürich.", "n": -7}}'
            ', {"name": "search_flights", "arguments": {"price": 12.5}}]',
            '[{"name": "get_weather", "arguments": {"city": "", "n": 0}}]',
        ],
        "python": [
            "[get_weather(city='Rome', n=12), search_flights(price=-0.25)]",
            '[get_weather(city="", n=0)]',
        ],
    }[style]
    more = 0
    for text in texts:
        ids = own(vocabulary, text)
        assert language.accepts(text)
        assert narrow.accepts(ids), text
        one, other = only_way(narrow, ids), only_way(every, ids)
        assert all(a >= b for a, b in zip(one, other, strict=True))
        more += sum(one) - sum(other)
    assert more > 0


def test_answers_that_are_not_kept_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = np.random.default_rng(0).integers(256, 300, size=(6, 2, 40))
    fresh, other = (vocabulary_of(train(CALLS, 300, "gpt2")).segmentation for _ in range(2))
    assert fresh is not None
    assert other is not None
    expected = fresh.admits(*pairs.transpose(1, 0, 2).reshape(2, -1)).reshape(6, 40)
    assert 0 < expected.sum() < expected.size
    monkeypatch.setattr("gcd._tokens.canonical_pairs._MOST_PAIRS", 60)
    for place in (0, 1, 0, 2, 3, 2, 5, 4):
        assert np.array_equal(other.admits(*pairs[place]), expected[place])
    mixed = np.concatenate([pairs[4], pairs[1]], axis=1)
    assert np.array_equal(other.admits(*mixed), np.concatenate([expected[4], expected[1]]))


def test_languages_of_bytes_that_are_no_text_stay_writable() -> None:
    vocabulary = vocabulary_of(train(ABC, 290, "none"))
    for raw in (b"\xff", b"abc\xff\xfeabc", b"\xe6\x9d", b"ab\xe6\x9d\xb1ab"):
        automaton = lift(literal(raw), vocabulary, literals="canonical")
        assert {vocabulary.decode(ids) for ids in accepted(automaton, 12)} == {raw}


def test_without_an_end_token_a_text_ends_by_itself() -> None:
    tokenizer = train(CALLS, 420, "gpt2")
    vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_ids=[])
    automaton = lift(choice(["orderId\n", "orderName\n"]), vocabulary, eos="accept",
                     literals="canonical")  # fmt: skip
    assert accepted(automaton, 9) == {own(vocabulary, "orderId\n"), own(vocabulary, "orderName\n")}
