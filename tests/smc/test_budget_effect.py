"""The effect of the budget is estimated without bias, and exact after full enumeration."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings

import smc
from gcd import TokenAutomaton, Vocabulary, lift, regex
from gcd._tokens.distances import UNREACHABLE
from smc.testing import ToyLM
from tests.gcd.oracles import checked_inside_strategies, token_automata
from tests.smc import rules
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice
from tests.smc.walks import EVERY_STEP, PROMPT, PROPOSALS, TOY, outcomes

pytestmark = checked_inside_strategies


def truth(
    lm: ToyLM, prompt: tuple[int, ...], automaton: TokenAutomaton, budget: int
) -> tuple[float, int]:
    """Removed mass, and the sufficient budget, over all prefixes."""
    mass, sufficient = 0.0, 0
    waiting: list[tuple[int, tuple[int, ...], float]] = [(automaton.initial, (), 1.0)]
    while waiting:
        state, ids, p = waiting.pop()
        if state == automaton.final or p == 0:
            continue
        for token, share in enumerate(lm.log_p((*prompt, *ids)).exp().tolist()):
            after = automaton.step(state, token)
            if after < 0:
                continue
            needed = len(ids) + 1 + int(automaton.steps_to_accept[after])
            sufficient = max(sufficient, needed)
            if needed <= budget:
                waiting.append((after, (*ids, token), p * share))
            elif share > 0:
                mass += p * share
    return mass, sufficient


@pytest.mark.parametrize(
    ("name", "proposal", "budget", "options"),
    [
        *(("few_words", proposal, 3, {"particles": 2, **EVERY_STEP})
          for proposal in ("gcd", "tilted", "tilted_no_potential")),
        ("few_words", "gcd", 3, {"particles": 2, "execution": "static", **EVERY_STEP}),
        ("a_star_b", "gcd", 4, {"particles": 2}),
        ("a_star_b", "gcd", 4, {"particles": 2, "forced_runs": False}),
        ("a_star_b", "lcd", 3, {"particles": 2}),
        ("a_star_b", "lm", 3, {"particles": 1}),
        *(("a_star_b", proposal, 4, {"particles": N, "algorithm": "discrete"})
          for N in (1, 2) for proposal in ("gcd", "tilted")),
        ("few_words", "gcd", 3, {"particles": 1, "algorithm": "discrete", "execution": "static"}),
    ],
)  # fmt: skip
def test_the_estimate_is_unbiased(
    name: str, proposal: str, budget: int, options: dict[str, Any]
) -> None:
    """Average over all walks; each position of a forced run counts."""
    automaton = CONSTRAINTS[name]()
    mass, sufficient = truth(TOY, PROMPT, automaton, budget)
    estimate = 0.0
    for probability, found in outcomes(
        automaton, budget, proposal=PROPOSALS[proposal](), **options
    ):
        effect = found.budget
        assert effect is not None
        assert smc.sufficient_budget(found) <= sufficient
        assert (effect.log_removed > -math.inf) == (effect.removed > 0)
        estimate += probability * math.exp(effect.log_removed)
    assert estimate == pytest.approx(mass, abs=1e-10)
    assert mass > 0


@pytest.mark.parametrize("forced_runs", [True, False])
def test_it_is_the_truth_once_everything_was_read(forced_runs: bool) -> None:
    """Use constraints with forced runs at the beginning, in the middle and at the end."""
    lm = ToyLM(rules.VOCABULARY, seed=9)
    every = {"proposal": smc.GCD(), "algorithm": "discrete", "floor": 0.0}
    every |= {"particles": 2000, "max_rows": 2000, "forced_runs": forced_runs}
    for prompt, automaton, budget in zip(
        rules.PROMPTS, rules.automata(), rules.BUDGETS, strict=True
    ):
        for n in {max(budget - fewer, automaton.fewest_tokens) for fewer in (0, 2)}:
            (found,) = sample_with(
                lm, [prompt], automaton, max_tokens=n, **{"algorithm": "smc", **every}
            )
            mass, sufficient = truth(lm, prompt, automaton, n)
            effect = found.budget
            assert found.enumerated
            assert effect is not None
            assert found.log_evidence is not None
            assert math.exp(effect.log_removed) == pytest.approx(mass, abs=1e-12)
            share = mass / (mass + math.exp(found.log_evidence))
            assert effect.removed == pytest.approx(share, abs=1e-10)
            assert smc.sufficient_budget(found) == sufficient


def test_small_masses_are_not_lost() -> None:
    """Remove a token of probability e^-60 beside others that sum to one."""

    class Sharp(ToyLM):
        def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
            log_p = torch.full((VOCABULARY.size,), -60.0, dtype=torch.float64)
            log_p[1] = 0.0
            return log_p.log_softmax(dim=0)

    (found,) = sample_with(
        Sharp(VOCABULARY),
        [PROMPT],
        lift(choice("b", "aaaa"), VOCABULARY),
        max_tokens=3,
        particles=4,
        proposal=smc.GCD(),
        forced_runs=False,
        algorithm="smc",
    )
    assert found.budget is not None
    assert smc.sufficient_budget(found) == 5
    # "a" at the beginning; there is no spelling by "ab", nor an end before "b".
    assert found.budget.log_removed == pytest.approx(-60, abs=1e-9)


def test_a_language_that_ends_by_itself() -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"b"], [])
    automaton = lift(regex("a{0,6}b"), vocabulary, eos="accept")
    lm = ToyLM(vocabulary, seed=2)
    (found,) = sample_with(
        lm, [(0,)], automaton, max_tokens=4, particles=30, proposal=smc.GCD(), algorithm="discrete",
        floor=0.0,
    )  # fmt: skip
    assert found.budget is not None
    mass, sufficient = truth(lm, (0,), automaton, 4)
    assert math.exp(found.budget.log_removed) == pytest.approx(mass, abs=1e-12)
    assert smc.sufficient_budget(found) == sufficient


@settings(max_examples=40)
@given(token_automata())
def test_the_reach_of_a_state_is_its_farthest_next_token(automaton: TokenAutomaton) -> None:
    for state in range(automaton.num_states):
        after = automaton.delta[state]
        steps = automaton.steps_to_accept[after[after >= 0]]
        assert automaton.reach[state] == steps.max() < UNREACHABLE
