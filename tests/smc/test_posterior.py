"""The posterior as a distribution over answers."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest

import smc
from gcd import Automaton, Vocabulary, lift
from smc import GCD, Diagnostics, Posterior, Sample, sample
from smc._results.posterior import posterior
from smc.testing import ToyLM, target
from tests.smc.toys import VOCABULARY, choice

NOTHING = Diagnostics((), (), (), (), 1, 1, 1, 1.0, 0.0)
WORDS = lift(choice("ab", "b", "ba"), VOCABULARY)


def one(ids: list[int], weight: float, finished: bool = True, p: float = 1.0) -> Sample:
    log = math.log(weight) if weight else -math.inf
    return Sample(tuple(ids), VOCABULARY.decode(ids), log, finished, math.log(p))


def make(*samples: Sample) -> Posterior:
    return posterior(
        samples,
        WORDS,
        log_evidence=-1.0,
        ess=2.0,
        enumerated=False,
        diagnostics=NOTHING,
    )


def test_spellings_of_one_answer_are_one_answer() -> None:
    p = make(
        one([0, 1, 3], 1),  # a b
        one([2, 5], 2),  # ab, and another EOS
        one([1, 3], 4),  # b
        one([1, 0, 3], 1),  # ba
        one([0], 0, finished=False),
    )
    assert p.texts == ("b", "ab", "ba")
    assert p.answers == (b"b", b"ab", b"ba")
    assert p.probabilities == pytest.approx((4 / 8, 3 / 8, 1 / 8))
    assert (p.complete, p.valid, p.dead, p.exact) == (True, True, False, True)
    assert p.majority == "b"
    assert len(p.particles) == 5


def test_one_answer_in_three_ways() -> None:
    p = make(one([1, 3], 4), one([2, 3], 3), one([1, 0, 3], 3))
    assert p.expectation(len) == pytest.approx(0.4 * 1 + 0.6 * 2)


def test_the_best_text_is_the_model_s_own() -> None:
    p = make(
        one([1, 3], 5, p=0.1),  # b
        one([0, 1, 3], 1, p=0.2),  # a b
        one([0, 1, 3], 1, p=0.2),  # the same tokens
        one([2, 5], 1, p=0.09),  # ab, another spelling
        one([1, 0, 3], 1, p=0.28),  # ba
        one([1, 0, 5], 0, False, p=0.9),  # dead
    )
    assert (p.majority, p.best) == ("b", "ab")
    assert make(one([1, 3], 1, p=0.1), one([2, 3], 2, p=0.1)).best == "ab"
    assert make(one([1, 3], 0, False, p=0.4)).best is None


@pytest.mark.parametrize("algorithm", [smc.SMC(ess_threshold=0), "discrete"], ids=str)
def test_the_best_of_a_whole_language_is_found(algorithm: Any) -> None:
    lm = ToyLM(VOCABULARY, seed=1)
    [p] = sample(lm, [[0]], WORDS, max_tokens=4, particles=64, proposal=GCD(), algorithm=algorithm)
    mass: dict[bytes, float] = defaultdict(float)
    for ids, probability in target(lm, [0], WORDS, 4).items():
        mass[VOCABULARY.decode(ids)] += probability
    assert p.best == max(mass, key=lambda text: mass[text]).decode()


def test_equal_probabilities_are_ordered_by_their_bytes() -> None:
    samples = [one([1, 0, 3], 1), one([2, 3], 1), one([1, 3], 1)]
    assert make(*samples).texts == make(*reversed(samples)).texts == ("ab", "b", "ba")


def test_weights_far_from_one() -> None:
    ids = [[1, 3], [2, 3]]
    for shift in (-4000.0, 4000.0):
        p = make(*(Sample(tuple(i), VOCABULARY.decode(i), shift, True, 0.0) for i in ids))
        assert p.probabilities == (0.5, 0.5)


def test_validity_is_checked_by_the_automaton_itself() -> None:
    assert not make(one([0, 3], 1)).valid
    assert not make(one([1], 1, finished=False)).complete


def test_sampling_follows_the_probabilities_and_repeats() -> None:
    p = make(one([1, 3], 6), one([2, 3], 3), one([1, 0, 3], 1))
    texts = p.sample(4000, seed=1)
    assert texts == p.sample(4000, seed=1)
    assert texts[:10] == p.sample(10, seed=1)
    assert texts != p.sample(4000, seed=2)
    for text, probability in zip(p.texts, p.probabilities, strict=True):
        assert texts.count(text) / 4000 == pytest.approx(probability, abs=0.03)
    assert p.sample(0) == []


def test_bytes_that_are_not_text() -> None:
    vocabulary = Vocabulary.from_bytes([b"\xc3", b"\xa9", b""], [2])
    automaton = lift(Automaton.any_bytes(), vocabulary)
    whole = Sample((0, 1, 2), vocabulary.decode([0, 1, 2]), 0.0, True, 0.0)
    half = Sample((0, 2), vocabulary.decode([0, 2]), -1.0, True, 0.0)
    p = posterior(
        [whole, half],
        automaton,
        log_evidence=0.0,
        ess=2.0,
        enumerated=False,
        diagnostics=NOTHING,
    )
    assert p.texts == ("é", "\ufffd")
    assert p.answers == ("é".encode(), b"\xc3")
