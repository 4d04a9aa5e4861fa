"""Lifting, compared with enumeration and with a plain lift on real vocabularies."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings

from gcd import Automaton, ConstraintError, EmptyLanguageError, Vocabulary, lift, regex
from tests.gcd.oracles import (
    byte_automata,
    check_lift,
    checked_inside_strategies,
    shared,
    strings,
    texts,
    vocabularies,
)

pytestmark = checked_inside_strategies


@settings(max_examples=100)
@given(byte_automata(), vocabularies())
@example(Automaton.from_strings(["a"]), Vocabulary.from_bytes([b"b", b""], [1]))
@example(Automaton.from_strings(["abc", "b"]), Vocabulary.from_bytes([b"a", b"b", b""], [2]))
def test_is_the_lift_by_definition(automaton: Automaton, vocabulary: Vocabulary) -> None:
    check_lift(automaton, vocabulary)


@pytest.mark.parametrize("num_states", [40, 700])
@pytest.mark.parametrize("ring", [True, False])
def test_walks_shared_among_states_change_nothing(num_states: int, ring: bool) -> None:
    """States with many transitions: all alike (a long string), or all different (random)."""
    rng = np.random.default_rng(num_states)
    table = np.full((num_states, 256), -1, np.int32)
    states = np.arange(num_states)
    table[:, 64:] = np.minimum(states + 1, num_states - 1)[:, None] if ring else states[:, None]
    table[:, ord("b")] = -1 if ring else rng.integers(-1, num_states, num_states)
    table[:, ord("c")] = np.where(states % 5 == 0, (states + 7) % num_states, -1)
    automaton = Automaton.from_transitions(table, rng.random(num_states) < 0.3)
    tokens = [bytes(rng.choice([*b"abcdef"], rng.integers(1, 24))) for _ in range(25)]
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"c", *tokens, b""], [len(tokens) + 3])
    check_lift(automaton, vocabulary)


# -- ending without EOS ---------------------------------------------------------------------


@settings(max_examples=40)
@given(byte_automata(), vocabularies(min_eos=0))
@example(Automaton.epsilon(), Vocabulary.from_bytes([b"a"], []))
@example(regex("[ab]*c"), Vocabulary.from_bytes([b"a", b"b", b"c", b"bc"], []))
def test_without_eos_the_language_is_the_same(automaton: Automaton, vocabulary: Vocabulary) -> None:
    truth = texts(automaton, vocabulary, 4)
    try:
        lifted = lift(automaton, vocabulary, eos="accept")
    except EmptyLanguageError:
        assert not truth
        return
    except ConstraintError:
        assert (automaton.accepting & (automaton.delta >= 0).any(axis=1)).any()
        return
    others = [i for i in range(vocabulary.size) if i not in vocabulary.eos_ids]
    assert {ids for ids in strings(others, 4) if lifted.accepts(ids)} == truth
    assert (lifted.accepting == (np.arange(lifted.num_states) == lifted.final)).all()
    assert set(lifted.allowed(lifted.final).tolist()) == set(vocabulary.eos_ids)
    if truth:
        fewest = min(map(len, truth))
        assert lifted.steps_to_accept[lifted.initial] == fewest
        first = {ids[0] for ids in truth if len(ids) == fewest > 0}
        assert set(lifted.allowed(lifted.initial, fewest).tolist()) == first


# -- a real vocabulary ----------------------------------------------------------------------


@cache
def qwen() -> Vocabulary:
    path = shared("data/vocabularies/qwen/qwen.tiktoken")
    return Vocabulary.from_ranks(path, [151643], size=151936)


@pytest.mark.parametrize(
    "pattern",
    [r'\{"name": "[^"\\\x00-\x1f]*", "n": -?(0|[1-9][0-9]*)\}', r"(Grüße|こんにちは)[!🙂]{1,3}"],
)
def test_tokens_of_a_real_vocabulary(pattern: str) -> None:
    vocabulary = qwen()
    some = [*range(256), *range(256, 151643, 301)]  # the first ones are all bytes
    tokens = [vocabulary.token_bytes[i] for i in some]
    fewer = Vocabulary.from_bytes([*tokens, b""], [len(tokens)])
    check_lift(regex(pattern), fewer)
    every, few = lift(regex(pattern), vocabulary), lift(regex(pattern), fewer)
    assert np.array_equal(every.delta[:, every.class_of[some]], few.delta[:, few.class_of[:-1]])
