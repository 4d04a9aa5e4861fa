"""Upper bounds on distances: their laws, and the spellings that achieve them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from gcd._automata.automaton import Automaton
from gcd._automata.kernels.graph import distances_to_accept
from gcd._languages.json_schema.schema import json_schema
from gcd._languages.text.regex import regex
from gcd._tokens import completions
from gcd._tokens.completions import token_bounds
from gcd._tokens.distances import UNREACHABLE
from gcd._tokens.lifting import lift
from gcd._tokens.vocabulary import Vocabulary
from tests.gcd.oracles import ALPHABET, byte_automata, checked_inside_strategies, vocabularies
from tests.small_vocabulary import SCHEMA, vocabulary

pytestmark = checked_inside_strategies


def _bounds(automaton: Automaton, vocabulary: Vocabulary) -> np.ndarray:
    found = token_bounds(
        automaton.delta, automaton.accepting, automaton.class_of_byte, vocabulary.trie
    )
    assert found is not None
    return found


def _targets(automaton: Automaton, vocabulary: Vocabulary, state: int) -> list[int]:
    """Return the states after one token."""
    after = [automaton.run(token, state) for token in vocabulary.token_bytes if token]
    return [target for target in after if target >= 0]


def _distances(automaton: Automaton, vocabulary: Vocabulary) -> list[int]:
    """Return exact distances of all byte states, by relaxation until nothing changes."""
    found = [1 if accepts else UNREACHABLE for accepts in automaton.accepting]
    while True:
        better = [
            min([d, *(found[t] + 1 for t in _targets(automaton, vocabulary, s))])
            for s, d in enumerate(found)
        ]
        if better == found:
            return found
        found = better


def _check_laws(automaton: Automaton, vocabulary: Vocabulary) -> None:
    bounds = _bounds(automaton, vocabulary).tolist()
    for state, distance in enumerate(_distances(automaton, vocabulary)):
        assert distance <= bounds[state]
        assert (distance < UNREACHABLE) == (bounds[state] < UNREACHABLE)
        if automaton.accepting[state]:
            assert bounds[state] == 1
        elif bounds[state] < UNREACHABLE:
            after = {bounds[t] for t in _targets(automaton, vocabulary, state)}
            assert bounds[state] - 1 in after, "some token comes one nearer to the end"


@settings(max_examples=200)
@given(byte_automata(), vocabularies())
def test_laws_with_missing_bytes(automaton: Automaton, words: Vocabulary) -> None:
    if not automaton.is_empty:
        _check_laws(automaton, words)


@settings(max_examples=100)
@given(byte_automata(max_states=8), vocabularies())
def test_bounds_count_a_spelling_of_a_shortest_completion(
    automaton: Automaton, words: Vocabulary
) -> None:
    if automaton.is_empty:
        return
    every = [bytes([i]) for i in range(256)]
    words = Vocabulary.from_bytes([*words.token_bytes, *every], words.eos_ids)
    _check_laws(automaton, words)
    tokens = set(words.token_bytes) - {b""}
    distance = distances_to_accept(automaton.delta, automaton.accepting)

    def completions_of(state: int) -> set[bytes]:
        if automaton.accepting[state]:
            return {b""}
        steps = [(bytes([b]), automaton.run(bytes([b]), state)) for b in (*ALPHABET, 200)]
        return {
            byte + rest
            for byte, after in steps
            if after >= 0 and distance[after] == distance[state] - 1
            for rest in completions_of(after)
        }

    def fewest(text: bytes) -> int:
        return min(
            (1 + fewest(text[len(token) :]) for token in tokens if text.startswith(token)),
            default=1,
        )

    for state, bound in enumerate(_bounds(automaton, words).tolist()):
        assert bound in {fewest(text) for text in completions_of(state)}


def test_bounds_are_mostly_exact_on_a_schema() -> None:
    automaton, words = json_schema(SCHEMA), vocabulary()
    lifted = lift(automaton, words)
    bounds = _bounds(automaton, words)
    assert lifted.num_states == automaton.num_states + 1
    assert (lifted.steps_to_accept[:-1] <= bounds).all()
    assert (lifted.steps_to_accept[:-1] == bounds).mean() > 0.6
    assert bounds[0] == lifted.fewest_tokens


def test_the_next_shortest_completion_is_counted_where_a_byte_is_missing() -> None:
    """The shortest string is `x`, which no token spells; then `ab` takes one token, `abc` two."""
    words = Vocabulary.from_bytes([b"ab", b"c", b"a", b""], [3])
    automaton = regex("x|abc?|abcc")
    assert _bounds(automaton, words)[0] == 2
    assert _bounds(regex("x|abc"), words)[0] == 3
    assert _bounds(regex("x"), words)[0] == UNREACHABLE


def test_states_inside_of_a_character_have_no_bound_without_tokens_that_begin_there() -> None:
    words = Vocabulary.from_bytes([b'"', "é".encode(), "€".encode(), b""], [3])
    automaton = json_schema({"type": "string", "minLength": 1, "maxLength": 3})
    bounds = _bounds(automaton, words)
    inside = automaton.run(b'"\xc3')
    assert bounds[automaton.run(b'"')] == 3  # a character, the quote, EOS
    assert bounds[inside] == UNREACHABLE
    assert bounds[automaton.initial] == lift(automaton, words).fewest_tokens == 4


def test_too_much_work_is_left_to_lifting(monkeypatch) -> None:
    words = Vocabulary.from_bytes([b"ab", b"ba", b""], [2])
    automaton = regex("(ab|ba){30}")
    arguments = (automaton.delta, automaton.accepting, automaton.class_of_byte, words.trie)
    assert token_bounds(*arguments) is not None
    monkeypatch.setattr(completions, "_MOST_VISITS", 10)
    assert token_bounds(*arguments) is None
