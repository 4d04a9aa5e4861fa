"""With canonical spellings the target is exactly p_lm over the tokenizer's own spellings."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest

import smc
from gcd import choice, lift
from smc.testing import ToyLM, target, walk
from tests.gcd.tokens.bpe import train, vocabulary_of

TEXTS = ("orderId", "orderName", "order", "name")
TOKENIZER = train(("orderId orderName order name", "order order orderI orderN name"), 266, "none")
VOCABULARY = vocabulary_of(TOKENIZER)
AUTOMATON = lift(choice(TEXTS), VOCABULARY, literals="canonical")
EVERY = lift(choice(TEXTS), VOCABULARY)
LM = ToyLM(VOCABULARY, seed=4, spread=1.5)
PROMPT = (1, 2)


def by_hand(budget: int) -> dict[tuple[int, ...], float]:
    """Compute p_lm of the tokenizer's spelling of each text within the budget, token by token."""
    found = {}
    for text in TEXTS:
        ids = (*TOKENIZER.encode(text).ids, *VOCABULARY.eos_ids)
        if len(ids) <= budget:
            p = 1.0
            for place, token in enumerate(ids):
                p *= float(LM.log_p((*PROMPT, *ids[:place]))[token].exp())
            found[ids] = p
    return found


@pytest.mark.parametrize("budget", [2, 4, 6, 9])
def test_the_target_is_over_the_tokenizers_own_spellings(budget: int) -> None:
    assert target(LM, PROMPT, AUTOMATON, budget) == pytest.approx(by_hand(budget), rel=1e-12)
    every = target(LM, PROMPT, EVERY, budget)
    assert {ids: every[ids] for ids in by_hand(budget)} == pytest.approx(by_hand(budget))
    assert len(every) > len(by_hand(budget)) or budget < 4


@pytest.mark.parametrize("proposal", [smc.GCD(), smc.LCD()])
def test_the_samplers_weights_sum_to_it(proposal: smc.Proposal) -> None:
    budget = 6

    def run(draw: smc.Draw, ids: list[int]) -> list[smc.Posterior]:
        return smc.sample(
            LM, [PROMPT] * len(ids), AUTOMATON, budget=budget, particles=2, proposal=proposal,
            example_ids=ids, draw=draw, max_rows=1 << 20,
        )  # fmt: skip

    mass: dict[bytes, float] = defaultdict(float)
    total = 0.0
    for probability, posterior in walk(run):
        total += probability
        assert posterior.log_evidence is not None
        weight = probability * math.exp(posterior.log_evidence)
        for answer, share in zip(posterior.answers, posterior.probabilities, strict=True):
            mass[answer] += weight * share
    assert total == pytest.approx(1, rel=1e-12)
    expected = {VOCABULARY.decode(ids): p for ids, p in by_hand(budget).items()}
    assert dict(mass) == pytest.approx(expected, rel=1e-9)
