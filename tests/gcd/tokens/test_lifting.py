"""Lifting, compared with enumeration and with a plain lift on real vocabularies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings

from gcd import (
    Automaton,
    ConstraintError,
    EmptyLanguageError,
    TokenAutomaton,
    Vocabulary,
    lift,
    regex,
)
from tests.gcd.oracles import (
    byte_automata,
    checked_inside_strategies,
    naive_lift,
    shared,
    strings,
    texts,
    vocabularies,
    walk,
)

pytestmark = checked_inside_strategies


def _lift_or_skip(automaton: Automaton, vocabulary: Vocabulary) -> TokenAutomaton:
    try:
        return lift(automaton, vocabulary)
    except EmptyLanguageError:
        assume(False)
        raise


@settings(max_examples=80)
@given(byte_automata(), vocabularies())
def test_accepts_exactly_the_token_strings_whose_bytes_are_in_the_language(
    automaton: Automaton, vocabulary: Vocabulary
) -> None:
    truth = texts(automaton, vocabulary, 4)
    try:
        lifted = lift(automaton, vocabulary)
    except EmptyLanguageError:
        assert not truth
        return
    others = [i for i in range(vocabulary.size) if i not in vocabulary.eos_ids]
    assert {ids for ids in strings(others, 4) if lifted.accepts(ids)} == truth


@settings(max_examples=150)
@given(byte_automata(), vocabularies())
@example(Automaton.from_strings(["a"]), Vocabulary.from_bytes([b"b", b""], [1]))
@example(Automaton.from_strings(["abc", "b"]), Vocabulary.from_bytes([b"a", b"b", b""], [2]))
def test_is_the_lift_by_definition(automaton: Automaton, vocabulary: Vocabulary) -> None:
    _check_is_the_lift_by_definition(automaton, vocabulary)


def _check_is_the_lift_by_definition(automaton: Automaton, vocabulary: Vocabulary) -> None:
    kept, step = naive_lift(automaton, vocabulary)
    if 0 not in kept:
        with pytest.raises(EmptyLanguageError):
            lift(automaton, vocabulary)
        return
    lifted = lift(automaton, vocabulary)
    lifted.check()
    number = {state: index for index, state in enumerate(kept)}
    assert lifted.initial == number[0]
    assert lifted.final == lifted.num_states - 1 == len(kept)
    assert lifted.accepting.tolist() == [*automaton.accepting[kept].tolist(), True]
    for state, token, after in walk(lifted):
        if token in vocabulary.eos_ids:
            assert after == (lifted.final if lifted.accepting[state] else -1)
        elif state == lifted.final:
            assert after == -1
        else:
            assert after == number.get(step.get((kept[state], token), -1), -1)


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
    _check_is_the_lift_by_definition(automaton, vocabulary)


@settings(max_examples=100)
@given(byte_automata(), vocabularies())
def test_two_tokens_share_a_class_exactly_if_their_columns_are_equal(
    automaton: Automaton, vocabulary: Vocabulary
) -> None:
    lifted = _lift_or_skip(automaton, vocabulary)
    usual = [i for i in range(vocabulary.size) if i not in vocabulary.eos_ids]
    columns = {i: tuple(lifted.step(s, i) for s in range(lifted.num_states)) for i in usual}
    for i in usual:
        for j in usual:
            assert (lifted.class_of[i] == lifted.class_of[j]) == (columns[i] == columns[j])
    # Numbered by their first token, EOS last: the same input gives the same numbers.
    seen = list(dict.fromkeys(lifted.class_of[usual].tolist()))
    assert seen == list(range(lifted.eos_class))
    assert {int(lifted.class_of[i]) for i in vocabulary.eos_ids} == {lifted.num_classes - 1}


@settings(max_examples=60)
@given(byte_automata(max_states=4), vocabularies(max_tokens=4))
def test_allowed_tokens_are_those_with_a_completion_in_budget(
    automaton: Automaton, vocabulary: Vocabulary
) -> None:
    lifted = _lift_or_skip(automaton, vocabulary)
    longest = 4
    complete = texts(automaton, vocabulary, longest)
    for prefix in strings({i for ids in complete for i in ids}, 2):
        state = lifted.run(prefix)
        if state < 0:
            continue
        for remaining in range(longest + 2 - len(prefix)):
            truth = {
                ids[len(prefix)]
                for ids in complete
                if ids[: len(prefix)] == prefix
                and len(prefix) < len(ids) < len(prefix) + remaining  # and one more for EOS
            }
            if remaining > 0 and prefix in complete:
                truth |= set(vocabulary.eos_ids)
            assert set(lifted.allowed(state, remaining).tolist()) == truth


def test_unusable_ids_share_one_class_without_a_way() -> None:
    vocabulary = Vocabulary.from_bytes([b"", b"a", b"z", b"", b"b"], [3], size=8)
    lifted = lift(Automaton.literal("ab"), vocabulary)
    unusable = {int(lifted.class_of[i]) for i in (0, 2, 5, 6, 7)}
    assert len(unusable) == 1
    assert (lifted.delta[:, unusable.pop()] == -1).all()


def test_states_that_only_parts_of_tokens_reach_are_left_out() -> None:
    vocabulary = Vocabulary.from_bytes([b"ab", b"abcd", b"cd", b"a", b""], [4])
    lifted = lift(Automaton.literal("abcd"), vocabulary)
    # After "a" alone no token continues; the byte states after "", "ab", "abcd" remain.
    assert lifted.num_states == 4
    assert lifted.allowed(lifted.initial).tolist() == [0, 1]
    assert lifted.class_of[3] != lifted.class_of[0]


def test_distances_count_eos() -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"aa", b""], [2])
    lifted = lift(regex("a{5}"), vocabulary)
    assert lifted.steps_to_accept[lifted.initial] == 4
    assert lifted.steps_to_accept[lifted.final] == 0
    assert lifted.allowed(lifted.initial, remaining=4).tolist() == [0, 1]
    assert lifted.allowed(lifted.run([0]), remaining=3).tolist() == [1]


def test_arrays_cannot_be_written() -> None:
    lifted = lift(Automaton.literal("a"), Vocabulary.from_bytes([b"a", b""], [1]))
    for array in (lifted.delta, lifted.class_of, lifted.accepting, lifted.steps_to_accept):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_step_refuses_ids_outside_the_vocabulary() -> None:
    lifted = lift(Automaton.literal("a"), Vocabulary.from_bytes([b"a", b""], [1]))
    assert lifted.step(-1, 0) == -1
    for token in (2, -1):
        with pytest.raises(ValueError, match=rf"expected a token id in 0\.\.1, got {token}"):
            lifted.step(0, token)


# -- refusals -------------------------------------------------------------------------------


def test_the_empty_language_is_refused() -> None:
    with pytest.raises(EmptyLanguageError, match=r"got an empty language"):
        lift(Automaton.empty(), Vocabulary.from_bytes([b"a", b""], [1]))


def test_a_language_that_the_tokens_cannot_write_names_the_missing_byte() -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b""], [2])
    with pytest.raises(EmptyLanguageError, match=r"no token has the byte 0x78 \('x'\)"):
        lift(Automaton.literal("axb"), vocabulary)
    with pytest.raises(EmptyLanguageError, match=r"can be written with the tokens$"):
        lift(Automaton.literal("ab"), Vocabulary.from_bytes([b"a", b"bb", b""], [2]))


def test_a_vocabulary_without_eos_is_refused() -> None:
    with pytest.raises(ConstraintError, match=r'with EOS ids, got none.*eos="accept"'):
        lift(Automaton.literal("a"), Vocabulary.from_bytes([b"a"], []))
    with pytest.raises(ConstraintError, match=r"to be one of"):
        lift(Automaton.literal("a"), Vocabulary.from_bytes([b"a"], []), eos="never")


# -- ending without EOS ---------------------------------------------------------------------


def test_without_eos_a_text_ends_on_entering_an_accepting_state() -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"\n", b"b\n"], [])
    lifted = lift(regex("a+b*\n"), vocabulary, eos="accept")
    assert lifted.steps_to_accept[lifted.initial] == 2
    assert lifted.run([0, 2]) == lifted.run([0, 1, 3]) == lifted.final
    assert lifted.accepts([0, 3])
    assert not lifted.accepts([0, 1])
    assert lifted.allowed(lifted.final).size == 0
    assert lifted.allowed(lifted.initial, remaining=2).tolist() == [0]
    assert lifted.allowed(lifted.run([0]), remaining=1).tolist() == [2, 3]


def test_without_eos_the_empty_text_is_complete_at_once() -> None:
    lifted = lift(Automaton.epsilon(), Vocabulary.from_bytes([b"a"], []), eos="accept")
    assert lifted.initial == lifted.final == 0
    assert lifted.steps_to_accept.tolist() == [0]


def test_without_eos_no_string_may_begin_another() -> None:
    with pytest.raises(ConstraintError, match=r"is a prefix of another, got b'a'"):
        lift(regex("a+b?"), Vocabulary.from_bytes([b"a", b"b"], []), eos="accept")


@settings(max_examples=60)
@given(byte_automata(), vocabularies(min_eos=0))
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


# -- a real vocabulary ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        r'\{"name": "[^"\\\x00-\x1f]*", "n": -?(0|[1-9][0-9]*)\}',
        r"(Grüße|こんにちは)[!🙂]{1,3}",
        r"[a-z]{1,12}( [a-z]{1,12}){0,3}",
    ],
)
def test_on_a_real_vocabulary_every_column_is_that_of_its_bytes(pattern: str) -> None:
    path = shared("data/vocabularies/qwen/qwen.tiktoken")
    vocabulary = Vocabulary.from_ranks(path, [151643], size=151936)
    automaton = regex(pattern)
    lifted = lift(automaton, vocabulary)
    kept, _ = _kept_states(automaton, lifted)
    rng = np.random.default_rng(0)
    live = np.flatnonzero((lifted.delta[:, lifted.class_of] >= 0).any(axis=0))
    ids = np.unique(np.concatenate([rng.choice(vocabulary.size, 500), rng.choice(live, 500)]))
    number = {state: index for index, state in enumerate(kept)}
    for token in ids:
        if token in vocabulary.eos_ids:
            continue
        text = vocabulary.token_bytes[token]
        for state in rng.choice(len(kept), min(8, len(kept)), replace=False):
            after = automaton.run(text, kept[state]) if text else -1
            assert lifted.step(int(state), int(token)) == number.get(after, -1)


def _kept_states(automaton: Automaton, lifted: TokenAutomaton) -> tuple[list[int], dict[int, int]]:
    """Return the byte states of the lifted states, found by spelling a path to each.

    Only for real vocabularies, whose single-byte tokens make every byte state reachable and
    co-accessible.
    """
    spelled = {lifted.initial: b""}
    queue = [lifted.initial]
    first = {c: int(np.argmax(lifted.class_of == c)) for c in range(lifted.eos_class)}
    for state in queue:
        for c, after in enumerate(lifted.delta[state, : lifted.eos_class].tolist()):
            if after >= 0 and after not in spelled:
                spelled[after] = spelled[state] + lifted.vocabulary.token_bytes[first[c]]
                queue.append(after)
    by_state = {state: automaton.run(text) for state, text in spelled.items()}
    return [by_state[s] for s in range(lifted.final)], by_state
