"""The distribution of speculative decoding in serving engines: that of local masks, for any draft.

An engine drafts some tokens, and verifies them in one forward pass against its masked probabilities
q. A drafted token is accepted with probability q. Otherwise another token is drawn from q without
it, and the rest of the draft is discarded. There are no weights.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping

import pytest

import smc
from gcd import TokenAutomaton
from gcd._tokens.token_automaton import UNREACHABLE
from smc.testing import target
from tests.smc.cases import Anything
from tests.smc.toys import CONSTRAINTS, VOCABULARY
from tests.smc.walks import PROMPT, TOY, assert_exact, outcomes

Ids = tuple[int, ...]
BUDGET = 4


def masked(automaton: TokenAutomaton, ids: Ids, within_budget: bool) -> dict[int, float]:
    """The engine's probabilities of the next token: the model's under a local mask."""
    state = automaton.initial
    for token in ids:
        state = automaton.step(state, token)
    left = BUDGET - len(ids) if within_budget else UNREACHABLE
    after = {token: automaton.step(state, token) for token in range(VOCABULARY.size)}
    allowed = [
        token for token, to in after.items() if to >= 0 and automaton.steps_to_accept[to] < left
    ]
    p = TOY.log_p(PROMPT + ids).exp().tolist()
    total = sum(p[token] for token in allowed)
    return {token: p[token] / total for token in allowed}


def law_of_speculation(
    automaton: TokenAutomaton, within_budget: bool, draws: random.Random
) -> dict[Ids, float]:
    """The probability of every answer over all outcomes; -1 marks truncation by the budget."""
    law: dict[Ids, float] = defaultdict(float)

    def go_on(ids: Ids, draft: Ids, probability: float) -> None:
        state = automaton.initial
        for token in ids:
            state = automaton.step(state, token)
        if state == automaton.final or len(ids) == BUDGET:
            law[ids if state == automaton.final else (*ids, -1)] += probability
            return
        q = masked(automaton, ids, within_budget)
        if not draft:
            draft = tuple(draws.choices(range(VOCABULARY.size), k=draws.randrange(1, 4)))
        accepted = q.get(draft[0], 0.0)
        if accepted:
            go_on((*ids, draft[0]), draft[1:], probability * accepted)
        for token, p in q.items():
            if token != draft[0]:  # the rest of q, of mass 1 - accepted, drawn after rejection
                go_on((*ids, token), (), probability * (1 - accepted) * (p / (1 - accepted)))

    go_on((), (), 1.0)
    return law


def law_of_one_particle(automaton: TokenAutomaton, proposal: smc.Proposal) -> dict[Ids, float]:
    """The probability of every answer of one particle without weights."""
    law: dict[Ids, float] = defaultdict(float)
    given = {"particles": 1, "proposal": proposal, "forced_runs": False}
    for probability, posterior in outcomes(automaton, BUDGET, **given):
        (sample,) = posterior.particles
        law[sample.ids if sample.finished else (*sample.ids, -1)] += probability
    return law


def distance(law: Mapping[Ids, float], other: Mapping[Ids, float]) -> float:
    """Total variation."""
    return sum(abs(law.get(x, 0.0) - other.get(x, 0.0)) for x in {*law, *other}) / 2


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize(("proposal", "within"), [(smc.LCD(), False), (smc.GCD(), True)])
def test_speculation_has_the_law_of_its_mask(
    name: str, proposal: smc.Proposal, within: bool
) -> None:
    automaton = CONSTRAINTS[name]()
    law = law_of_speculation(automaton, within, random.Random(3))
    assert sum(law.values()) == pytest.approx(1)
    assert distance(law, law_of_one_particle(automaton, proposal)) == pytest.approx(0, abs=1e-12)
    exact = target(TOY, PROMPT, automaton, BUDGET)
    evidence = sum(exact.values())
    away = distance(law, {x: p / evidence for x, p in exact.items()})
    assert (away > 0.02) == (name != "forced")


@pytest.mark.parametrize("options", [{"resampling": "systematic"}, {"algorithm": "discrete"}])
def test_reading_ahead_has_the_law_of_the_target(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use wrong drafts, too."""
    monkeypatch.setattr("smc._forward.read_ahead.look_up", Anything(3))
    assert_exact(CONSTRAINTS["a_star_b"](), 3, proposal=smc.GCD(), read_ahead=2, **options)
