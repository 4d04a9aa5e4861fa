"""`ScoresProcessor`, compared with a matcher that receives every token."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import gcd
from tests.gcd.oracles import ids_of_mask
from tests.small_vocabulary import vocabulary

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def automaton():
    return gcd.lift(gcd.regex('{"name":"(a|b)*"}'), vocabulary())


@pytest.mark.parametrize("kind", ["numpy", "torch", "returned"])
def test_masks_are_those_of_a_matcher_and_answers_end_in_time(automaton, kind):
    size, rng = automaton.vocabulary.size, random.Random(0)
    for budget in (7, 9, 30):
        array = (lambda given: given) if kind == "returned" else None
        process = gcd.ScoresProcessor(automaton, budget, array=array)
        matcher, answer = gcd.Matcher(automaton, budget=budget), []
        while answer[-1:] != list(automaton.vocabulary.eos_ids):
            scores = np.zeros((1, size), np.float32)
            given = torch.from_numpy(scores) if kind == "torch" else scores
            found = process(np.array(PROMPT + answer), given)
            assert (found is given) is (kind != "returned")
            finite = np.flatnonzero(np.isfinite(np.asarray(found)[0])).tolist()
            assert finite == ids_of_mask(matcher.mask(), size)
            if answer and rng.random() < 0.3:  # the runtime rolls a token back
                answer.pop()
                matcher.rollback(1)
                continue
            answer.append(rng.choice(finite))
            assert matcher.advance(answer[-1])
        assert len(answer) <= budget


def test_what_does_not_continue_the_answer_is_refused(automaton):
    process = gcd.ScoresProcessor(automaton, 20)
    scores = np.zeros(automaton.vocabulary.size, np.float32)
    process(PROMPT, scores)
    with pytest.raises(gcd.ConstraintError, match="that the mask allows after"):
        process([*PROMPT, ord("x")], scores)
    with pytest.raises(gcd.ConstraintError, match="a processor for each answer"):
        process(PROMPT[:1], scores)
    with pytest.raises(gcd.ConstraintError, match="got shape"):
        process(PROMPT, scores[:-1])
    scores.flags.writeable = False
    with pytest.raises(gcd.ConstraintError, match="pass array="):
        process(PROMPT, scores)


def test_a_prompt_may_hold_the_beginning_of_the_answer(automaton):
    begin = list(b'{"name')
    process = gcd.ScoresProcessor(automaton, 20, prompt_length=len(PROMPT))
    scores = np.zeros(automaton.vocabulary.size, np.float32)
    process(PROMPT + begin, scores)
    matcher = gcd.Matcher(automaton, budget=20)
    assert all(matcher.advance(token) for token in begin)
    assert np.flatnonzero(np.isfinite(scores)).tolist() == ids_of_mask(matcher.mask(), scores.size)
