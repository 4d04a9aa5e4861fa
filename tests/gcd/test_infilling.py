"""Infilling: the language of texts, and the positions where a prompt may be cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

import gcd

# Overlapping tokens.
EXTRA = ["ab", "ba", "abb", "bab", "bbb", "aba"]


def vocabulary_of(extra: Sequence[str]) -> gcd.Vocabulary:
    """Make a vocabulary of the letters a and b, more tokens, a special id, and EOS."""
    tokens = [b"a", b"b", *(each.encode() for each in extra), b"", b""]
    return gcd.Vocabulary.from_bytes(tokens, len(tokens) - 1)


def spellings(text: bytes, vocabulary: gcd.Vocabulary) -> Iterator[tuple[int, ...]]:
    """Yield all token sequences with these bytes, by plain enumeration."""
    if not text:
        yield ()
    for token, spelled in enumerate(vocabulary.token_bytes):
        if spelled and text.startswith(spelled):
            for rest in spellings(text[len(spelled) :], vocabulary):
                yield (token, *rest)


def ends(ids: Sequence[int], vocabulary: gcd.Vocabulary) -> list[int]:
    """Return the ends of the tokens in bytes, with 0 first."""
    return [len(vocabulary.decode(ids[:count])) for count in range(len(ids) + 1)]


WORDS = st.text("ab", min_size=1, max_size=3)


@given(
    st.lists(st.sampled_from(EXTRA), unique=True),
    st.text("ab", max_size=4),
    st.text("ab", max_size=3),
    st.text("ab", max_size=2),
    st.lists(st.text("ab", max_size=2), min_size=1, max_size=3, unique=True),
    st.data(),
)
def test_the_cut_is_the_last_that_no_spelling_straddles(extra, context, before, after, words, data):
    vocabulary = vocabulary_of(extra)
    middle, text = gcd.choice(words), (context + before).encode()
    own = data.draw(st.sampled_from(list(spellings(text, vocabulary))))
    special = vocabulary.size - 2
    front = data.draw(st.sampled_from([(), (special,), (0, special)]))
    prompt, rest = gcd.infill(before, after, middle).heal([*front, *own], vocabulary)

    assert prompt == (*front, *own)[: len(prompt)]
    assert len(prompt) >= len(front)
    kept = vocabulary.decode(prompt[len(front) :])
    assert kept + rest.before == text
    wholes = [text + word.encode() + after.encode() for word in words]
    ways = [ends(way, vocabulary) for whole in wholes for way in spellings(whole, vocabulary)]
    assert all(len(kept) in way for way in ways)
    for later in ends(own, vocabulary)[len(prompt) - len(front) + 1 :]:
        assert not all(later in way for way in ways)
    assert rest.language == gcd.choice([whole.removeprefix(kept) for whole in wholes])


@given(WORDS, WORDS, st.lists(WORDS, min_size=1, max_size=4, unique=True))
def test_what_is_in_the_middle_is_found_again(before, after, words):
    hole = gcd.infill(before, after, gcd.choice(words))
    found = {hole.middle_of(text) for text in hole.language}
    assert found == {word.encode() for word in words}
    assert hole.middle_of(before + words[0] + after) == words[0].encode()


def test_where_text_and_special_tokens_meet():
    vocabulary = gcd.Vocabulary.from_bytes(
        [b"http", b":", b"//", b"://", b" ", b"s", b"<eos>", b""], 6
    )
    hole = gcd.infill("http:", "", gcd.regex(r"//s*"))
    assert hole.heal([7, 0, 1], vocabulary)[0] == (7, 0)
    assert hole.heal([7, 0, 1], vocabulary)[1].before == b":"
    # No token straddles the end if the middle cannot continue it.
    assert gcd.infill("http:", "", gcd.regex("s+")).heal([7, 0, 1], vocabulary)[0] == (7, 0, 1)
    # Nor at a special token; the whole prompt is returned if all of it may change.
    assert gcd.infill("", "", gcd.regex("//s")).heal([0, 1, 7], vocabulary)[0] == (0, 1, 7)
    assert gcd.infill(":", "", gcd.regex("//s")).heal([1], vocabulary)[0] == ()


def test_free_text_and_a_middle_that_is_known_up_to_a_length():
    hole = gcd.infill("é", b"\xff")
    assert hole.language.accepts("é".encode() + "ü?".encode() + b"\xff")
    assert not hole.language.accepts("é".encode() + b"\xfe\xff")
    middle = gcd.grammar('start: "(" start ")" | "x"', max_depth=4, max_bytes=7)
    whole = gcd.infill("begin ", " end", middle).language
    assert whole.max_bytes == len("begin ") + 7 + len(" end")
    assert whole.accepts("begin (((x))) end")
    assert not whole.accepts("begin ((((x)))) end")
