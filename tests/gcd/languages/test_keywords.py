"""Sentences with keywords, compared with a checker that splits texts without automata."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gcd
from gcd._languages.required_words import PUNCTUATION

GROUPS = [["cat", "cats"], ["category"], ["don't", "run"]]
LANGUAGES = {
    1: gcd.keywords(GROUPS[:1]),
    **{max_words: gcd.keywords(GROUPS, max_words=max_words) for max_words in (None, 3, 5)},
}
ALL_MARKS = PUNCTUATION + "()"


def is_sentence(text: str, *, max_words: int | None = None, marks: str = PUNCTUATION) -> bool:
    """Return whether a text is one well-formed ASCII sentence, checking word by word."""
    if not text or text[-1] not in ".!?" or any(stop in text[:-1] for stop in ".!?"):
        return False
    pieces = text[:-1].split(" ")
    closes = {a: b for a, b in (('""', "()")) if a in marks}
    open_until = ""
    for number, piece in enumerate(pieces):
        if piece[:1] in closes and piece and not open_until:
            open_until, piece = closes[piece[0]], piece[1:]
        # After the word: marks, and the end of a quotation.
        behind = re.search(r"[^\w'’\-]*$", piece).group()
        word = piece[: len(piece) - len(behind)]
        if open_until and open_until in behind:
            behind, open_until = behind.replace(open_until, "", 1), ""
        if len(behind) > 1 or any(mark not in ",;:" or mark not in marks for mark in behind):
            return False
        if behind and number == len(pieces) - 1:
            return False
        joined = re.split(r"['’-]", re.sub(r"['’]$", "", word))
        if not all(part and part.isascii() and part.isalnum() for part in joined):
            return False
        if any(mark in word and mark not in marks for mark in "'’-"):
            return False
        if number == 0 and not (word[0].isupper() or word[0].isdigit()):
            return False
    return not open_until and (max_words is None or len(pieces) <= max_words)


def has_all(text: str, groups: list[list[str]]) -> bool:
    """Return whether a sentence has a word of each group, ignoring the first word's capital."""
    first, *others = (piece.strip(',;:".!?()') for piece in text.split(" "))
    return all(
        first in [word[0].upper() + word[1:] for word in group] or set(group) & set(others)
        for group in groups
    )


def expected(text: str, groups: list[list[str]], **options) -> bool:
    return is_sentence(text, **options) and has_all(text, groups)


@pytest.mark.parametrize(
    ("alphabet", "longest", "groups", "max_words"),
    [
        ("Aab ,.'", 5, [["a"], ["b", "ab"]], None),
        ("Aab .\"'", 5, [["a"], ["a'a", "b"]], 2),
        ('Aa .,"', 6, [["a", "aa"]], None),
        ("Aa .!-", 6, [["a-a"], ["a"]], 3),
        ('A .()"', 6, [["a"]], None),
        ("B1 .", 8, [["b"], ["1"]], 3),
    ],
)
def test_every_short_string_is_judged_as_by_hand(alphabet, longest, groups, max_words):
    language = gcd.keywords(groups, max_words=max_words, punctuation=ALL_MARKS)
    found = language & gcd.regex(f"[{re.escape(alphabet)}]{{0,{longest}}}")
    assert found.num_states > 1
    by_hand = {
        "".join(text).encode()
        for length in range(longest + 1)
        for text in product(alphabet, repeat=length)
        if expected("".join(text), groups, max_words=max_words, marks=ALL_MARKS)
    }
    assert set(found) == by_hand
    assert by_hand


PIECES = ["cat", "Cat", "cats", "category", "Category", "cat's", "cat-like", "don't", "don", "run",
          "Run", "runs", "CAT", "cats'", "A", "the", "7", " ", " ", " ", " ", "  ", ", ", '"', ".",
          "!", "-", "’", "(", ")", ";", "é"]  # fmt: skip


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from([None, 3, 5]))
@example(["Run", " ", "category", " ", "cat", "."], None)
@example(['"', "Cats", '"', " ", "don't", ", ", "category", "."], 3)
@example(["Category", " ", "cat", ",", '"', " ", "run", "."], None)
def test_texts_of_traps_are_judged_as_by_hand(pieces, max_words):
    text = "".join(pieces)
    assert LANGUAGES[max_words].accepts(text) == expected(text, GROUPS, max_words=max_words)
    # With one group, more texts are accepted.
    assert LANGUAGES[1].accepts(text) == expected(text, GROUPS[:1])


words = st.sampled_from(["Cats", "cat", "cats", "Category", "category", "run", "don't", "the", "A"])


@settings(max_examples=200)
@given(st.lists(words, min_size=1, max_size=9))
def test_sentences_of_words_are_judged_as_by_hand(chosen):
    text = " ".join(chosen) + "."
    assert LANGUAGES[None].accepts(text) == expected(text, GROUPS)


TRAPS = ["A cat.", "The category.", "The concat.", "The cat's ball.", "The cat-like dog.", "Cat.",
         "The cats' ball.", "cat.", "A Cat.", "CAT.", '"Cat," he said.', 'The "cat".', 'The "cat.',
         "The cat", "The cat. A dog.", "The  cat.", "The cat .", "The cat 3.5.",
         "The dog, the cat, and 3 birds!", "A category of cat."]  # fmt: skip


@pytest.mark.parametrize("groups", [[["cat"]], [["cat"], ["category"]]])
def test_traps_of_words_and_marks(groups):
    language = gcd.keywords(groups)
    assert [language.accepts(text) for text in TRAPS] == [expected(t, groups) for t in TRAPS]


def test_one_word_may_serve_several_groups():
    language = gcd.keywords([["paint", "paints"], ["paint", "painting"]])
    assert language.accepts("Paint.")
    assert not language.accepts("He paints.")
    assert gcd.keywords([["paint"], ["paint"]]) == gcd.keywords([["paint"]])


def test_what_is_given_with_a_capital_counts_as_given():
    language = gcd.keywords([["Paris"], ["tv", "TV"]])
    assert language.accepts("Paris is on TV.")
    assert language.accepts("Tv in Paris.")
    assert not language.accepts("The paris on TV.")


def test_products_are_laws():
    one, two = [["cat", "cats"]], [["dog"], ["ran", "runs"]]
    whole = gcd.keywords(one + two)
    assert whole == gcd.keywords(one) & gcd.keywords(two)
    for order in permutations(one + two):
        assert gcd.keywords([list(reversed(group)) for group in order]) == whole
    short = gcd.keywords(one + two, max_words=4)
    assert short & whole == short
    assert short - whole == gcd.Automaton.empty()
    assert short == whole & gcd.keywords(one, max_words=4)
    assert gcd.keywords([["cat"]]) | gcd.keywords([["cats"]]) == gcd.keywords(one)
    assert (short | gcd.keywords(one, max_words=4)) == gcd.keywords(one, max_words=4)


def test_states_are_as_many_as_there_are_ways_to_go_on():
    """Two prefixes share a state exactly if the same short strings complete them."""
    language = gcd.keywords([["a"], ["b"]], max_words=2, punctuation="")
    alphabet = "Aab ."
    endings = ["".join(e) for n in range(6) for e in product(alphabet, repeat=n)]
    prefixes = ["".join(p) for n in range(5) for p in product(alphabet, repeat=n)]
    state_of = {p: language.run(p) for p in prefixes}
    completions: dict[int, set[frozenset[str]]] = {}
    for prefix in prefixes:
        if state_of[prefix] >= 0:
            good = frozenset(e for e in endings if expected(
                prefix + e, [["a"], ["b"]], max_words=2, marks=""))  # fmt: skip
            completions.setdefault(state_of[prefix], set()).add(good)
    assert all(len(each) == 1 for each in completions.values())
    assert len({good for (good,) in completions.values()}) == len(completions)


VOCABULARY = gcd.Vocabulary.from_bytes(
    [bytes([b]) for b in range(256)]
    + [b" cat", b"cat", b"Cat", b" cat", b"s", b"egory", b" dog", b"s.", b" ran", b". ", b", the",
       b" A", b"s ran", b'"', b'" ', b"\xe2\x80", b" the the", b"e-", b""],
    eos_ids=[274],
)  # fmt: skip


@pytest.mark.parametrize("max_words", [None, 5])
def test_lifting_by_factors_agrees_with_lifting(max_words):
    language = gcd.keywords([["cat", "cats"], ["dog"], ["ran"]], max_words=max_words)
    assert len(language.factors) == 4 + (max_words is not None)
    lifted = gcd.lift(language, VOCABULARY)
    plain = gcd.lift(replace(language, factors=()), VOCABULARY)
    for name in ("class_of", "delta", "accepting", "steps_to_accept"):
        assert np.array_equal(getattr(lifted, name), getattr(plain, name))


@pytest.mark.parametrize("combine", [
    lambda a, b: a & b, lambda a, b: a | b, lambda a, b: a - b, lambda a, b: ~a & ~b,
])  # fmt: skip
def test_factors_survive_the_algebra(combine):
    one = gcd.keywords([["cat"]], max_words=4)
    language = combine(one, gcd.regex("[A-Za-z, ]*cats?[A-Za-z ]*[.!]|The dog\\."))
    assert language.factors
    plain = replace(language, factors=())
    assert language == plain
    one, other = gcd.lift(language, VOCABULARY), gcd.lift(plain, VOCABULARY)
    assert np.array_equal(one.class_of, other.class_of)
    assert np.array_equal(one.delta, other.delta)


def test_other_letters():
    assert not gcd.keywords([["cat"]]).accepts("Élan of a cat.")
    latin = gcd.keywords([["été"]], letters="latin")
    assert latin.accepts("Été, à Noël.")
    assert not latin.accepts("L'été, à Łódź.")
    assert latin.accepts("L’hiver et l’an et été.")
    greek = gcd.keywords([["γάτα"]], letters="unicode")
    assert greek.accepts("Η γάτα.")
    assert greek.accepts("Γάτα.")
    assert not greek.accepts("η γάτα.")
    assert gcd.keywords([["ß"]], letters="latin").accepts("A ß.")  # it has no capital letter
    with pytest.raises(gcd.ConstraintError, match="max_words of at least 2"):
        gcd.keywords([["ß"]], letters="latin", max_words=1)


def test_the_fewest_words_are_those_of_the_shortest_covers():
    groups = [["a", "b"], ["b", "c"], ["c", "d"], ["d", "a"]]
    with pytest.raises(gcd.ConstraintError, match=r"max_words of at least 2 .* got 1"):
        gcd.keywords(groups, max_words=1)
    assert gcd.keywords(groups, max_words=2).accepts("B d.")
    # Only at the beginning is "Rose" in both.
    with pytest.raises(gcd.ConstraintError, match="max_words of at least 3"):
        gcd.keywords([["Rose"], ["rose"], ["a"], ["b"]], max_words=2)
    assert gcd.keywords([["Rose"], ["rose"]], max_words=1).accepts("Rose.")


def test_too_many_groups_are_refused():
    groups = [[f"word{number}"] for number in range(9)]
    with gcd.state_limit(2000), pytest.raises(gcd.StateLimitError, match="with 9 groups of key"):
        gcd.keywords(groups)
    with (
        gcd.work_limit(10_000_000),
        pytest.raises(gcd.WorkLimitError, match="with 9 groups of key"),
    ):
        gcd.keywords(groups)
    with gcd.work_limit(10_000_000), pytest.raises(gcd.WorkLimitError, match="40 groups"):
        gcd.keywords([[f"word{number}"] for number in range(40)], max_words=39)
