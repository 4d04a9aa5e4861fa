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


PIECES = ["cat", "Cat", "cats", "Cats", "category", "Category", "cat's", "cat-like", "don't", "don",
          "run", "Run", "runs", "CAT", "cats'", "A", "the", "7", " ", " ", " ", " ", "  ", ", ",
          '"', ".", "!", "-", "’", "(", ")", ";", "é"]  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from([None, 3, 5]))
@example(["Run", " ", "category", " ", "cat", "."], None)
@example(['"', "Cats", '"', " ", "don't", ", ", "category", "."], 3)
@example(["Category", " ", "cat", ",", '"', " ", "run", "."], None)
def test_texts_of_traps_are_judged_as_by_hand(pieces, max_words):
    text = "".join(pieces)
    assert LANGUAGES[max_words].accepts(text) == expected(text, GROUPS, max_words=max_words)
    # With one group, more texts are accepted.
    assert LANGUAGES[1].accepts(text) == expected(text, GROUPS[:1])


TRAPS = ["A cat.", "The category.", "The concat.", "The cat's ball.", "The cat-like dog.", "Cat.",
         "The cats' ball.", "cat.", "A Cat.", "CAT.", '"Cat," he said.', 'The "cat".', 'The "cat.',
         "The cat", "The cat. A dog.", "The  cat.", "The cat .", "The cat 3.5.",
         "The dog, the cat, and 3 birds!", "A category of cat."]  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "texts"),
    [
        ([["cat"]], TRAPS),
        ([["cat"], ["category"]], TRAPS),
        (
            [["paint", "paints"], ["paint", "painting"]],
            ["Paint.", "He paints.", "He paints, paint."],
        ),
        ([["Paris"], ["tv", "TV"]], ["Paris is on TV.", "Tv in Paris.", "The paris on TV."]),
    ],
)
def test_traps_of_words_and_marks(groups, texts):
    language = gcd.keywords(groups)
    assert [language.accepts(text) for text in texts] == [expected(t, groups) for t in texts]


def test_products_are_laws():
    one, two = [["cat", "cats"]], [["dog"], ["ran", "runs"]]
    whole = gcd.keywords(one + two)
    assert whole == gcd.keywords(one) & gcd.keywords(two)
    for order in permutations(one + two):
        assert gcd.keywords([list(reversed(group)) for group in order]) == whole
    short = gcd.keywords(one + two, max_words=4)
    assert short == whole & gcd.keywords(one, max_words=4)
    assert gcd.keywords([["cat"]]) | gcd.keywords([["cats"]]) == gcd.keywords(one)
    assert gcd.keywords([["cat"], ["cat"]]) == gcd.keywords([["cat"]])


VOCABULARY = gcd.Vocabulary.from_bytes(
    [bytes([b]) for b in range(256)]
    + [b" cat", b"cat", b"Cat", b" cat", b"s", b"egory", b" dog", b"s.", b" ran", b". ", b", the",
       b" A", b"s ran", b'"', b'" ', b"\xe2\x80", b" the the", b"e-", b""],
    eos_ids=[274],
)  # fmt: skip


ONE = gcd.keywords([["cat", "cats"], ["dog"], ["ran"]], max_words=5)
OTHER = gcd.regex("[A-Za-z, ]*cats?[A-Za-z ]*[.!]|The dog\\.")


@pytest.mark.parametrize(
    ("combine", "number"),
    [
        (lambda: gcd.keywords([["cat", "cats"], ["dog"], ["ran"]]), 4),
        (lambda: ONE, 5),
        *((lambda: ONE & OTHER, 6), (lambda: ONE | OTHER, 6), (lambda: ONE - OTHER, 6)),
        (lambda: ~ONE & ~OTHER, 7),
    ],
)
def test_factors_survive_the_algebra_and_lift_to_the_same(combine, number):
    language = combine()
    assert len(language.factors) == number
    plain = replace(language, factors=())
    assert language == plain
    one, other = gcd.lift(language, VOCABULARY), gcd.lift(plain, VOCABULARY)
    for name in ("class_of", "delta", "accepting", "steps_to_accept"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(
    ("word", "letters", "accepted", "refused"),
    [
        ("cat", "ascii", "A cat.", "Élan of a cat."),
        ("été", "latin", "Été, à Noël.", "L'été, à Łódź."),
        ("été", "latin", "L’hiver et l’an et été.", "Etè."),
        ("γάτα", "unicode", "Η γάτα.", "η γάτα."),
        ("γάτα", "unicode", "Γάτα.", "γάτα."),
        ("ß", "latin", "A ß.", "ß."),  # it has no capital letter
    ],
)
def test_other_letters(word, letters, accepted, refused):
    language = gcd.keywords([[word]], letters=letters)
    assert language.accepts(accepted)
    assert not language.accepts(refused)


@pytest.mark.parametrize(
    ("groups", "letters", "fewest"),
    [
        ([["a", "b"], ["b", "c"], ["c", "d"], ["d", "a"]], "ascii", 2),
        ([["Rose"], ["rose"], ["a"], ["b"]], "ascii", 3),  # "Rose" at the beginning is in both
        ([["ß"]], "latin", 2),
    ],
)
def test_the_fewest_words_are_those_of_the_shortest_covers(groups, letters, fewest):
    assert not gcd.keywords(groups, letters=letters, max_words=fewest).is_empty
    with pytest.raises(gcd.ConstraintError, match=f"max_words of at least {fewest} .* got"):
        gcd.keywords(groups, letters=letters, max_words=fewest - 1)


def test_too_many_groups_are_refused():
    nine, forty = ([[f"word{number}"] for number in range(count)] for count in (9, 40))
    with gcd.state_limit(2000), pytest.raises(gcd.StateLimitError, match="with 9 groups of key"):
        gcd.keywords(nine)
    for groups, most, said in ((nine, None, "with 9 groups of key"), (forty, 39, "40 groups")):
        with gcd.work_limit(10_000_000), pytest.raises(gcd.WorkLimitError, match=said):
            gcd.keywords(groups, max_words=most)
