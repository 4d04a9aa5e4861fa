"""With canonical spellings the target is exactly p_lm over the tokenizer's own spellings."""

from __future__ import annotations

import pytest

import smc
from gcd import choice, lift
from smc.testing import ToyLM, target
from tests.gcd.tokens.bpe import train, vocabulary_of
from tests.smc.walks import outcomes, sums

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
    given = {"lm": LM, "prompt": PROMPT, "particles": 2, "proposal": proposal, "algorithm": "auto"}
    mass, _, total, _ = sums(outcomes(AUTOMATON, budget, **given))
    assert total == pytest.approx(1, rel=1e-12)
    expected = {VOCABULARY.decode(ids): p for ids, p in by_hand(budget).items()}
    assert mass == pytest.approx(expected, rel=1e-9)
