"""Targets over particular spellings: segments and canonical spellings.

The targets are enumerated from the definition of the spellings, not from the automaton.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cache
from typing import Any

import pytest

import gcd
import smc
from gcd import Segment, choice, lift
from smc.testing import ToyLM
from tests.gcd.tokens.bpe import train
from tests.gcd.tokens.bpe import vocabulary_of as bpe_vocabulary
from tests.gcd.tokens.splits import truth
from tests.smc.matrix import covering
from tests.smc.toys import VOCABULARY
from tests.smc.walks import PROMPT, TOY, assert_exact, outcomes, random_hmm, sums

# -- segments ------------------------------------------------------------------------------------

# The token `ab` straddles the end of the first segment; 4 is a special token.
PLANS = {
    "straddling": [
        Segment(gcd.regex("b?"), until="a", tokens=2),
        Segment(gcd.regex("b+"), tokens=3),
    ],
    "special": [Segment(gcd.regex("a*"), until=4, tokens=2), Segment(gcd.regex("b|ab"))],
    "choice": [Segment(gcd.choice(["a", "ba"]), tokens=1), Segment(gcd.regex("a?b"), tokens=3)],
    "forced": [Segment(gcd.regex("a?"), until="ba", tokens=3), Segment(gcd.literal("ab"))],
}
BUDGET = {"straddling": 4, "special": 4, "choice": 4, "forced": 5}
PROPOSALS = {
    "lcd": smc.LCD,
    "gcd": smc.GCD,
    "pgcd": lambda: smc.PGCD(random_hmm(seed=7), exact_top_k=1),
}


@cache
def target(name: str) -> dict[bytes, float]:
    """Compute p_lm of every answer within the budget, including EOS, summed over spellings."""
    mass: dict[bytes, float] = defaultdict(float)
    for ids in truth(gcd.segments(PLANS[name]), VOCABULARY, BUDGET[name] - 1):
        for eos in VOCABULARY.eos_ids:
            log_p = [
                float(TOY.log_p((*PROMPT, *ids[:place]))[token])
                for place, token in enumerate((*ids, eos))
            ]
            mass[VOCABULARY.decode(ids)] += math.exp(math.fsum(log_p))
    return dict(mass)


OPTIONS: dict[str, dict[str, Any]] = {
    "one": {"particles": 1, "forced_runs": False},
    "discrete": {"particles": 2, "algorithm": "discrete"},
}
# Particles that compete don't depend on the proposal.
ROWS = [
    *((name, "gcd", {"particles": 2, "resampling": "systematic"}) for name in ("choice", "forced")),
    *(
        (row["name"], row["proposal"], OPTIONS[row["options"]])
        for row in covering(name=[*PLANS], proposal=[*PROPOSALS], options=[*OPTIONS])
    ),
]


@pytest.mark.parametrize(("name", "proposal", "options"), ROWS)
def test_weights_sum_to_the_target(name: str, proposal: str, options: dict) -> None:
    automaton = gcd.lift(gcd.segments(PLANS[name]), VOCABULARY)
    expected = target(name)
    assert len(expected) > 1
    made = PROPOSALS[proposal]()
    assert_exact(automaton, BUDGET[name], expected=expected, proposal=made, **options)


# -- canonical spellings -------------------------------------------------------------------------

TEXTS = ("orderId", "orderName", "order", "name")
TOKENIZER = train(("orderId orderName order name", "order order orderI orderN name"), 266, "none")
BPE = bpe_vocabulary(TOKENIZER)
AUTOMATON = lift(choice(TEXTS), BPE, literals="canonical")
BPE_LM = ToyLM(BPE, seed=4, spread=1.5)


def by_hand(budget: int) -> dict[tuple[int, ...], float]:
    """Compute p_lm of the tokenizer's spelling of each text within the budget, token by token."""
    found = {}
    for text in TEXTS:
        ids = (*TOKENIZER.encode(text).ids, *BPE.eos_ids)
        if len(ids) <= budget:
            p = 1.0
            for place, token in enumerate(ids):
                p *= float(BPE_LM.log_p((*PROMPT, *ids[:place]))[token].exp())
            found[ids] = p
    return found


@pytest.mark.parametrize("proposal", [smc.GCD(), smc.LCD()])
def test_the_samplers_weights_sum_to_it(proposal: smc.Proposal) -> None:
    budget = 6
    given = {"lm": BPE_LM, "particles": 2, "proposal": proposal, "algorithm": "auto"}
    mass, _, total, _ = sums(outcomes(AUTOMATON, budget, **given))
    assert total == pytest.approx(1, rel=1e-12)
    expected = {BPE.decode(ids): p for ids, p in by_hand(budget).items()}
    assert mass == pytest.approx(expected, rel=1e-9)
