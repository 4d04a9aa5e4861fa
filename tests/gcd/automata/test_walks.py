"""Random walks return strings of the language, within the limit, and end as expected."""

from __future__ import annotations

import random

import pytest

import gcd
from gcd import Automaton
from tests.gcd.random_walks import RandomWalks


def test_every_string_of_a_finite_language_is_met() -> None:
    texts = {b"a", b"ab", b"abc", b"x", b""}
    walks = RandomWalks(gcd.choice(sorted(texts)))
    rng = random.Random(0)
    assert {walks.draw(rng, patience=10) for _ in range(300)} == texts


def test_a_walk_turns_home_when_its_patience_ends() -> None:
    language = gcd.regex("(ab)*c(de)?")
    walks = RandomWalks(language)
    rng = random.Random(0)
    strings = [walks.draw(rng, patience=9) for _ in range(200)]
    assert all(map(language.accepts, strings))
    # From any state `c` is at most two bytes away.
    assert max(map(len, strings)) <= 9 + 2
    assert {walks.draw(rng, patience=0) for _ in range(20)} == {b"c"}


def test_the_one_byte_that_closes_is_as_likely_as_all_that_go_on() -> None:
    walks = RandomWalks(gcd.regex('"[ !#-~]*"'))
    rng = random.Random(0)
    empty = sum(walks.draw(rng, patience=50) == b'""' for _ in range(400))
    assert empty > 100  # with a uniform choice of bytes it would be about four


def test_an_empty_language_has_no_walk() -> None:
    with pytest.raises(gcd.EmptyLanguageError):
        RandomWalks(Automaton.empty())
