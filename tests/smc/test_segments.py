"""Sampling segments: the weights sum to p_lm of the definition over all random choices.

The targets are enumerated from the definition of segments, not from the automaton.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cache

import pytest

import gcd
import smc
from gcd import Segment
from tests.gcd.tokens.splits import truth
from tests.smc.calls import sample_with
from tests.smc.toys import VOCABULARY
from tests.smc.walks import PROMPT, TOY, assert_exact, random_hmm

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


# Particles that compete don't depend on the proposal.
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(
    ("proposal", "options"),
    [
        ("gcd", {"particles": 2, "resampling": "systematic"}),
        *((proposal, {"particles": 1, "forced_runs": False}) for proposal in PROPOSALS),
        *((proposal, {"particles": 2, "algorithm": "discrete"}) for proposal in PROPOSALS),
    ],
    ids=str,
)
def test_weights_sum_to_the_target(name: str, proposal: str, options: dict) -> None:
    automaton = gcd.lift(gcd.segments(PLANS[name]), VOCABULARY)
    expected = target(name)
    assert len(expected) > 1
    made = PROPOSALS[proposal]()
    assert_exact(automaton, BUDGET[name], expected=expected, proposal=made, **options)


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
@pytest.mark.parametrize("proposal", ["gcd", "pgcd"])
def test_every_answer_is_complete_and_can_be_split(algorithm: str, proposal: str) -> None:
    """LCD runs out of tokens in the first segment; the others always finish the second."""
    plan = gcd.segments([Segment(gcd.regex("[ab]*"), until=4, tokens=5), *PLANS["special"][1:]])
    automaton = gcd.lift(plan, VOCABULARY)
    budget = automaton.fewest_tokens + 3
    options = {"max_tokens": budget, "particles": 8, "algorithm": algorithm}
    (posterior,) = sample_with(
        TOY, [PROMPT], automaton, proposal=PROPOSALS[proposal](), **{"algorithm": "smc", **options}
    )
    assert posterior.valid
    assert posterior.complete
    for sample in posterior.particles:
        thought, answer = plan.split(sample.ids, VOCABULARY)
        assert sample.answer == thought + answer
        assert answer in (b"b", b"ab")
    (local,) = sample_with(
        TOY, [PROMPT], automaton, proposal=smc.LCD(), **{"algorithm": "smc", **options}
    )
    assert local.diagnostics.share_finished < 1 or algorithm == "discrete"
