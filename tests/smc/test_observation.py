"""Observations match the steps, and observation changes no result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import smc
from gcd import TokenAutomaton
from smc import Observation
from smc._inference.particles import Watch
from smc.testing import ToyLM, target
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, timeless

LM = ToyLM(VOCABULARY, seed=5, spread=1.5)
PROMPTS = [[0], [1, 2], [2]]
BUDGETS = [6, 4, 5]


def constraints() -> list[TokenAutomaton]:
    return [CONSTRAINTS[name]() for name in ("a_star_b", "few_words", "a_star_b")]


def watched(only: set[int] | None = None, **options: Any):
    """The posteriors, and the observations by batch."""
    batches: list[tuple[list[int], list[Observation]]] = []

    def observe(names: Sequence[int]) -> Watch | None:
        if only is not None and not only & set(names):
            return None
        batches.append((list(names), []))
        return batches[-1][1].append

    found = sample_with(
        LM,
        PROMPTS,
        constraints(),
        max_tokens=BUDGETS,
        proposal=smc.GCD(),
        observe=observe,
        **{"algorithm": "smc", **options},
    )
    return found, batches


def mass_within(
    automaton: TokenAutomaton, tokens: list[int], prompt: list[int], left: int
) -> float:
    """Log of the model's probability of the tokens that GCD allows, token by token."""
    state = automaton.initial
    for token in tokens:
        state = automaton.step(state, token)
    p = LM.log_p((*prompt, *tokens)).exp().tolist()
    after = [automaton.step(state, v) for v in range(VOCABULARY.size)]
    steps = automaton.steps_to_accept
    allowed = [p[v] for v, s in enumerate(after) if s >= 0 and steps[s] <= left - 1]
    return torch.tensor(sum(allowed), dtype=torch.float64).log().item()


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_looking_on_changes_nothing(algorithm):
    options = {"algorithm": algorithm, "particles": 4, "max_rows": 8}
    found, batches = watched(**options)
    unseen = sample_with(
        LM,
        PROMPTS,
        constraints(),
        max_tokens=BUDGETS,
        proposal=smc.GCD(),
        **{"algorithm": "smc", **options},
    )
    assert [*map(timeless, found)] == [*map(timeless, unseen)]
    assert sorted(name for names, _ in batches for name in names) == [0, 1, 2]
    assert all(steps for _, steps in batches)
    only, some = watched({2}, **options)
    assert [*map(timeless, only)] == [*map(timeless, found)]
    assert [names for names, _ in some] == [names for names, _ in batches if 2 in names]


@pytest.mark.parametrize("strata", ["none", "state"])
@pytest.mark.parametrize("threshold", [0.0, 0.9, 1.0])
def test_weights_and_ancestors_are_those_of_the_definition(strata, threshold):
    """For GCD: weights gain Z at each step, and resampling equalizes them."""
    posteriors, batches = watched(particles=5, strata=strata, ess_threshold=threshold)
    [(names, steps)] = batches
    automata = constraints()
    P = 5 * len(names)
    tokens: list[list[int]] = [[] for _ in range(P)]
    weight = torch.zeros(P, dtype=torch.float64)
    moved = False
    for seen in steps:
        assert seen.example.tolist() == [p // 5 for p in range(P)]
        for p in range(P):
            gain = 0.0
            if seen.row[p] >= 0:
                name = names[p // 5]
                prompt, left = PROMPTS[name], BUDGETS[name] - len(tokens[p])
                gain = mass_within(automata[name], tokens[p], prompt, left)
                own = seen.prefixes.log_p[seen.row[p]]
                assert torch.equal(own, LM.log_p((*prompt, *tokens[p])))
            assert seen.log_weight[p].item() == pytest.approx(weight[p].item() + gain)
        after = seen.after
        moved |= after.ancestor.tolist() != list(range(P))
        assert (after.ancestor // 5).tolist() == after.example.tolist()
        before = seen.log_weight.view(-1, 5).logsumexp(1)
        torch.testing.assert_close(after.log_weight.view(-1, 5).logsumexp(1), before)
        now = [ids[:n] for ids, n in zip(after.tokens.tolist(), after.length.tolist(), strict=True)]
        for p, a in enumerate(after.ancestor.tolist()):
            assert now[p][: len(tokens[a])] == tokens[a]
            assert len(now[p]) - len(tokens[a]) == int(seen.row[a] >= 0)
        tokens, weight = now, after.log_weight
    assert moved or threshold < 1 or strata == "state"
    assert not moved or threshold > 0
    for place, name in enumerate(names):
        own = posteriors[name].particles
        mine = slice(5 * place, 5 * place + 5)
        assert [list(sample.ids) for sample in own] == tokens[mine]
        assert [sample.log_weight for sample in own] == weight[mine].tolist()
        assert seen.after.finished[mine].all()


def test_the_filter_shows_answers_as_they_end():
    """With enough slots, the answers are the target itself."""
    found, [(names, steps)] = watched(
        algorithm="discrete", particles=10_000, count_finished=False, floor=0.0, max_rows=30_000
    )
    for place, name in enumerate(names):
        ended = {}
        for seen in steps:
            part = seen.ended
            for q in (part.example == place).nonzero().flatten().tolist():
                ids = tuple(part.tokens[q, : part.length[q]].tolist())
                assert ids not in ended
                ended[ids] = part.log_weight[q].exp().item()
                # The ancestor is the beginning of the text, without the step's tokens.
                a = int(part.ancestor[q])
                before = tuple(seen.tokens[a, : seen.length[a]].tolist())
                assert len(before) < len(ids)
                assert ids[: len(before)] == before
        exact = target(LM, PROMPTS[name], constraints()[name], BUDGETS[name])
        assert ended == pytest.approx(exact)
        assert found[name].enumerated
