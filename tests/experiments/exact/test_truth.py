"""Cached distributions against the model's own, the truth against enumeration, and the laws of
samplers against the walk over all choices; restriction changes nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse, stats

import gcd
import smc
from experiments.exact import measures
from experiments.exact.cached import CachedLM, Restriction
from experiments.exact.measures import Runs
from experiments.exact.truth import Level, count_prefixes, levels_of, solve, total_variation
from hmm._model import HMM
from smc.testing import ToyLM, target, walk
from tests.smc.calls import sample_with

# Two ids that say the same, tokens no constraint here has a use for, ids without bytes, two ends.
VOCABULARY = gcd.Vocabulary.from_bytes(
    [b"a", b"b", b"ab", b"x", b"c", b"", b"", b"a", b"yz", b"", b"bc"], [5, 9]
)
LM = ToyLM(VOCABULARY, seed=3, spread=1.5)
PROMPT = (0, 3)
CONSTRAINTS = {
    "words": gcd.choice(["a", "ab", "abc", "bbc"]),
    "classes": gcd.regex("[abc]{1,3}c"),
    "loop": gcd.regex("a*b"),
    "everything": gcd.regex("[abcxyz]{0,2}"),
}
HMM_ = HMM.random(
    4, VOCABULARY.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)


def restricted(name: str) -> tuple[gcd.TokenAutomaton, Restriction]:
    constraint = gcd.lift(CONSTRAINTS[name], VOCABULARY)
    return constraint, Restriction.of(constraint)


def built(name: str, budget: int, **options) -> tuple[Restriction, CachedLM, list[Level]]:
    """A cached model with all prefixes within a budget, computed at once."""
    _, restriction = restricted(name)
    lm = CachedLM(LM, PROMPT, restriction, **options)
    levels = levels_of(lm, restriction.automaton, budget)
    lm.compute(torch.arange(lm.num_nodes))
    return restriction, lm, levels


def prefixes(constraint: gcd.TokenAutomaton, budget: int) -> set[tuple[int, ...]]:
    """All token prefixes that can be completed within the budget, by plain enumeration."""
    found: set[tuple[int, ...]] = set()

    def visit(state: int, tokens: tuple[int, ...]) -> None:
        if state < 0 or constraint.steps_to_accept[state] > budget - len(tokens):
            return
        if state == constraint.final:
            return
        found.add(tokens)
        for token in range(VOCABULARY.size):
            visit(constraint.step(state, token), (*tokens, token))

    visit(constraint.initial, ())
    return found


def paths(restriction: Restriction, levels: list[Level]) -> dict[int, tuple[int, ...]]:
    """The tokens of each node in the whole vocabulary."""
    found: dict[int, tuple[int, ...]] = {0: ()}
    for level, after in pairwise(levels):
        for row, token, node in zip(*level.going, after.nodes, strict=True):
            above = found[int(level.nodes[row])]
            found[int(node)] = (*above, int(restriction.ids[token]))
    return found


@pytest.mark.parametrize("name", list(CONSTRAINTS))
@pytest.mark.parametrize("budget", [2, 5])
def test_the_tree_is_all_prefixes(name, budget):
    constraint, _ = restricted(name)
    restriction, lm, levels = built(name, budget)
    expected = prefixes(constraint, budget)
    found = paths(restriction, levels)
    assert count_prefixes(constraint, budget) == lm.num_nodes == len(expected)
    assert set(found.values()) == expected
    for level in levels:
        for row, token, text in zip(*level.ended, level.texts, strict=True):
            ids = found[int(level.nodes[row])]
            assert VOCABULARY.decode(ids) == text
            assert int(restriction.ids[token]) in VOCABULARY.eos_ids
            assert constraint.accepts(ids)


@settings(max_examples=30)
@given(
    texts=st.lists(st.text("abcx", min_size=0, max_size=5), min_size=1, max_size=6, unique=True),
    extra=st.integers(0, 6),
)
@example(texts=[""], extra=0)
def test_counting_needs_no_tree(texts, extra):
    constraint = gcd.lift(gcd.choice(texts), VOCABULARY)
    budget = constraint.fewest_tokens + extra
    assert count_prefixes(constraint, budget) == len(prefixes(constraint, budget))


def test_ample_budgets_and_trees_too_large_to_build_are_counted():
    words, _ = restricted("words")
    assert count_prefixes(words, 10**9) == count_prefixes(words, 4) > count_prefixes(words, 3)
    large = gcd.lift(gcd.regex("(a|b|ab|c){60}"), VOCABULARY)
    # At most 3 + 2 ways a token, so nothing close to this is ever enumerated.
    assert count_prefixes(large, 62) > 1e20


PROPOSALS = (
    lambda hmm: smc.LCD(),
    lambda hmm: smc.GCD(),
    lambda hmm: smc.PGCD(hmm),
    lambda hmm: smc.PGCD(hmm, lookahead="conditional", exact_top_k=2, defense=0.0),
    lambda hmm: smc.PGCD(hmm, lookahead="joint", exact_top_k=0),
    lambda hmm: smc.PGCD(hmm, exact_top_k=None),
)


@pytest.mark.parametrize(
    ("name", "number", "algorithm"),
    [  # each pair of values
        (name, number, ("smc", "discrete")[(i + number) % 2])
        for i, name in enumerate(CONSTRAINTS)
        for number in range(len(PROPOSALS))
    ],
)
def test_restricted_runs_are_those_of_the_whole_vocabulary(name, number, algorithm):
    """Equal seeds draw equal tokens."""
    constraint, restriction = restricted(name)
    proposal = PROPOSALS[number]
    given = {"max_tokens": 4, "particles": 3, "seed": 5, "forced_runs": False}
    given["algorithm"] = algorithm
    cached = CachedLM(LM, PROMPT, restriction)
    own = proposal(restriction.hmm(HMM_))
    found = sample_with(cached, [[0]] * 4, restriction.automaton, proposal=own, **given)
    whole = sample_with(LM, [PROMPT] * 4, constraint, proposal=proposal(HMM_), **given)
    for one, other in zip(found, whole, strict=True):
        assert one.answers == other.answers
        assert one.probabilities == pytest.approx(other.probabilities)
        assert one.log_evidence == pytest.approx(other.log_evidence)
        assert one.ess == pytest.approx(other.ess)
        assert one.enumerated == other.enumerated
        assert one.diagnostics.tokens - 1 == other.diagnostics.tokens - len(PROMPT)


@pytest.mark.parametrize(("max_rows", "temperature"), [(1, 0.5), (2, 1.0), (100, 0.5)])
def test_the_distributions_are_the_model_s(max_rows, temperature):
    restriction, lm, levels = built("classes", 4, max_rows=max_rows, temperature=temperature)
    for node, path in paths(restriction, levels).items():
        log_p = (LM.log_p(PROMPT + path) / temperature).log_softmax(dim=0)
        [row] = lm.log_p(torch.tensor([node]))
        torch.testing.assert_close(row[:-1], log_p[restriction.ids])
        rest = np.setdiff1d(np.arange(VOCABULARY.size), restriction.ids)
        torch.testing.assert_close(row[-1], log_p[rest].logsumexp(dim=0))


def test_each_distribution_is_computed_once():
    class Counting(ToyLM):
        prompts = 0

        def prefill(self, prompts):
            self.prompts += len(prompts)
            return super().prefill(prompts)

    model = Counting(VOCABULARY, seed=3)
    _, restriction = restricted("words")
    lm = CachedLM(model, PROMPT, restriction)
    given = {"max_tokens": 3, "particles": 8, "proposal": smc.LCD(), "algorithm": "smc"}
    [*_, first] = sample_with(lm, [[0]] * 20, restriction.automaton, **given)
    size, asked = lm.num_nodes, model.prompts
    [*_, again] = sample_with(lm, [[0]] * 20, restriction.automaton, **given)
    assert again.particles == first.particles
    assert (lm.num_nodes, model.prompts) == (size, asked)


def test_what_was_computed_is_kept(tmp_path):
    restriction, lm, _ = built("words", 3)
    nodes = torch.arange(lm.num_nodes)
    again = CachedLM(ToyLM(VOCABULARY, seed=4), PROMPT, restriction)
    levels_of(again, restriction.automaton, 3)
    assert again.load(nodes, lm.values(nodes))
    torch.testing.assert_close(again.log_p(nodes), lm.log_p(nodes), rtol=0, atol=0)
    other = CachedLM(LM, PROMPT, restriction)
    levels_of(other, restriction.automaton, 4)
    assert not other.load(torch.arange(other.num_nodes), lm.values(nodes))  # another tree's


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        (torch.nan, FloatingPointError, "NaN"),
        (-torch.inf, ValueError, "answer with positive probability"),
    ],
)
def test_a_model_without_probabilities_or_any_answer_is_refused(said, error, message):
    class Broken(ToyLM):
        def log_p(self, tokens):
            return torch.full_like(super().log_p(tokens), said)

    _, restriction = restricted("words")
    lm = CachedLM(Broken(VOCABULARY), PROMPT, restriction)
    with pytest.raises(error, match=message):
        solve(lm, levels_of(lm, restriction.automaton, 3))


def estimate(*arguments) -> SimpleNamespace:
    return SimpleNamespace(**measures.estimate(*arguments))


def truth(constraint, budget: int, temperature: float = 1.0) -> dict[bytes, float]:
    mass: dict[bytes, float] = defaultdict(float)
    found = target(LM, PROMPT, constraint, budget, temperature=temperature)
    for ids, probability in found.items():
        mass[VOCABULARY.decode(ids)] += probability
    return dict(mass)


@pytest.mark.parametrize("name", list(CONSTRAINTS))
@pytest.mark.parametrize(("budget", "temperature"), [(2, 0.6), (3, 1.0), (5, 0.6)])
def test_evidence_and_posterior(name, budget, temperature):
    constraint, _ = restricted(name)
    _, lm, levels = built(name, budget, temperature=temperature)
    expected = truth(constraint, budget, temperature)
    found = solve(lm, levels)
    total = sum(expected.values())
    assert found.log_evidence == pytest.approx(math.log(total), abs=1e-10)
    assert dict(zip(found.texts, found.posterior, strict=True)) == pytest.approx(
        {text: mass / total for text, mass in expected.items()}, abs=1e-10
    )
    order = sorted(found.texts, reverse=True)
    assert solve(lm, levels, order).posterior == pytest.approx(found.posterior[::-1])


@pytest.mark.parametrize(("method", "proposal"), [("lcd", smc.LCD()), ("gcd", smc.GCD())])
@pytest.mark.parametrize("name", ["words", "loop"])
def test_the_law_of_one_sample_is_the_sampler_s(method, proposal, name):
    constraint, _ = restricted(name)
    _, lm, levels = built(name, 3)
    found = solve(lm, levels)
    mass: dict[bytes, float] = defaultdict(float)
    options = {"max_tokens": 3, "particles": 1, "proposal": proposal, "algorithm": "smc"}

    def run(draw: smc.Draw, ids: list[int]) -> list[smc.Posterior]:
        own = {"example_ids": ids, "max_rows": 1 << 20, "draw": draw}
        return sample_with(LM, [PROMPT] * len(ids), constraint, **options, **own)

    for probability, posterior in walk(run):
        for answer in posterior.answers:
            mass[answer] += probability
    assert dict(zip(found.texts, found.laws[method], strict=True)) == pytest.approx(
        {text: mass[text] for text in found.texts}, abs=1e-10
    )


def test_impossible_answers_and_prefixes_have_probability_zero():
    """Also for a token behind which the model gives every allowed token probability zero."""

    class Partial(ToyLM):
        def log_p(self, tokens):
            found = super().log_p(tokens)
            if tokens[len(PROMPT) :] == (2,):  # after "ab" there is only an x
                found[torch.arange(VOCABULARY.size) != 3] = -torch.inf
            return found

    _, restriction = restricted("words")
    lm = CachedLM(Partial(VOCABULARY, seed=3), PROMPT, restriction)
    found = solve(lm, levels_of(lm, restriction.automaton, 2))
    assert dict(zip(found.texts, found.posterior, strict=True))[b"ab"] == 0
    assert 0 < found.laws["gcd"].sum() < 1


def test_no_answer_is_an_outcome():
    posterior = np.array([0.5, 0.5])
    assert total_variation(np.zeros(2), posterior) == 1
    assert total_variation(posterior, posterior) == 0
    assert total_variation(posterior / 2, posterior) == pytest.approx(0.5)


def runs_of(rows: np.ndarray, dead: np.ndarray) -> Runs:
    evidence = np.where(dead, -np.inf, 0.0)
    read, enumerated = np.full(len(dead), 3), np.zeros(len(dead), bool)
    return Runs(sparse.csr_matrix(rows), evidence, read, enumerated)


def test_dead_runs_count_against_a_method():
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    dead = np.array([False, False, True, True])
    found = estimate(runs_of(rows, dead), 1, np.array([0.5, 0.5]), 0.0)
    assert found.dead == 0.5
    assert found.tv == pytest.approx(0.5)
    assert found.evidence_bias == pytest.approx(-0.5)
    assert found.read == 3
    assert not found.enumerated


def test_the_floor_agrees_with_exact_draws():
    """Runs that are single exact draws have no bias; what is seen is the floor."""
    generator = np.random.default_rng(0)
    posterior = generator.dirichlet(np.ones(20))
    seen, floors, covered = [], [], 0
    for _ in range(40):
        rows = np.eye(20)[generator.choice(20, 500, p=posterior)]
        found = estimate(runs_of(rows, np.zeros(500, bool)), 1, posterior, 0.0)
        seen.append(found.tv)
        floors.append(found.tv_floor)
        covered += found.tv_low <= found.tv_floor
    assert np.mean(seen) == pytest.approx(np.mean(floors), rel=0.1)
    deviations = [stats.binom(500, p).expect(lambda k, p=p: abs(k / 500 - p)) for p in posterior]
    assert np.mean(seen) == pytest.approx(sum(deviations) / 2, rel=0.1)
    assert covered >= 35
