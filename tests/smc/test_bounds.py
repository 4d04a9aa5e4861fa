"""Bounds, reported errors and the effect of the budget match their definitions.

That bounds hold in every outcome is tested in `test_walk`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import smc
import smc._inference.answers
import smc._results.posterior
from gcd import TokenAutomaton, lift
from gcd._tokens.distances import UNREACHABLE
from smc import AutomatonPosition, Bounds, Observation
from smc._inference.bounds import Frontier
from smc._inference.particles import Watch
from smc._results import reliability
from smc._results.reliability import Ancestry, cohorts_of_founders, cohorts_of_selections
from smc.testing import ToyLM
from tests.gcd.oracles import checked_inside_strategies, token_automata
from tests.smc import rules
from tests.smc.calls import sample_with
from tests.smc.matrix import covering
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice
from tests.smc.walks import (
    EVERY_STEP,
    PROMPT,
    PROPOSALS,
    TOY,
    Ids,
    SometimesImpossible,
    holds,
    masses,
    outcomes,
)


def all_hold(lm: ToyLM, automaton: TokenAutomaton, budget: int, **options: Any) -> bool:
    """Return whether the bounds hold in every outcome."""
    target = masses(lm, PROMPT, automaton, budget)
    found = list(outcomes(automaton, budget, lm=lm, **options))
    assert sum(probability for probability, _ in found) == pytest.approx(1)
    return all(holds(posterior, target, automaton.vocabulary) for _, posterior in found)


# -- against the definition ----------------------------------------------------------------------


def observed(count: int) -> tuple[list[set[Ids]], Callable[[Sequence[int]], Watch]]:
    """Return the computed prefixes of each example, and an observer that records them."""
    read: list[set[Ids]] = [{()} for _ in range(count)]

    def watch(names: Sequence[int], seen: Observation) -> None:
        for step in (seen.after, seen):
            running = seen.row >= 0 if step is seen else seen.after.running
            for b, ids, runs in zip(
                step.example.tolist(), step.tokens.tolist(), running.tolist(), strict=True
            ):
                whole = tuple(i for i in ids if i >= 0)
                # Forced tokens were computed together with the choice before them.
                last = len(whole) if runs else len(whole) - 1
                read[names[b]] |= {whole[:t] for t in range(last + 1)}

    return read, lambda names: partial(watch, names)


def close_to_definition(lm: ToyLM, rule: str, seed: int, options: dict[str, Any]) -> bool:
    """Return whether the bounds of several examples match the definition; assert that they hold."""
    read, observe = observed(len(rules.PROMPTS))
    posteriors = sample_with(
        lm, rules.PROMPTS, rules.automata(), max_tokens=rules.BUDGETS, seed=seed,
        proposal=rules.RULES[rule].proposal, observe=observe, **{"algorithm": "smc", **options},
    )  # fmt: skip
    close = True
    for b, found in enumerate(posteriors):
        place = lm, rules.PROMPTS[b], rules.automata()[b], rules.BUDGETS[b]
        target = masses(*place, temperature=options.get("temperature", 1.0))
        assert holds(found, target, rules.VOCABULARY)
        done = {each.ids for each in found.particles if each.finished}
        read[b] |= {ids[:t] for ids in done for t in range(len(ids))}
        each = masses(*place, temperature=options.get("temperature", 1.0), read=read[b])
        lower, upper = (math.exp(found.bounds.log_lower), math.exp(found.bounds.log_upper))
        close &= lower == pytest.approx(math.fsum(each[ids] for ids in done), rel=1e-7, abs=0)
        close &= upper == pytest.approx(math.fsum(each.values()), rel=1e-7, abs=0)
    return close


USUAL = ToyLM(rules.VOCABULARY, seed=9, spread=2.0)


# Enumeration is cached for each model and temperature.
MODELS = {"usual": (USUAL, 0.6), "impossible tokens": (rules.TOY, 1.0)}
ROWS = covering(
    rule=[*rules.RULES], model=[*MODELS], algorithm=["smc", "discrete"], particles=[3, 6, 12],
    forced_runs=[True, False], execution=["eager", "static"],
)  # fmt: skip


@pytest.mark.parametrize("rule", rules.RULES)
def test_bounds_are_their_definition(rule: str) -> None:
    """Recompute the bounds from observed prefixes, in all execution modes."""
    for seed, row in enumerate(row for row in ROWS if row["rule"] == rule):
        lm, temperature = MODELS[row["model"]]
        options = {name: row[name] for name in ("algorithm", "particles", "forced_runs")}
        if rule in ("lm", "lcd", "gcd"):
            options["execution"] = row["execution"]
        is_close = close_to_definition(lm, rule, seed, {**options, "temperature": temperature})
        # Prefixes that turn out to be impossible have no slot in a discrete filter.
        assert is_close or (lm is rules.TOY and row["algorithm"] == "discrete")


def test_bounds_hold_in_single_precision() -> None:
    """Compare with exact sums of the model's probabilities, large and small."""
    for seed in range(2):
        lm = ToyLM(rules.VOCABULARY, seed=seed, spread=12.0, dtype=torch.float32)
        for N in (1, 30):
            for algorithm in ("smc", "discrete"):
                options = {"particles": N, "algorithm": algorithm}
                close_to_definition(lm, "gcd", seed, options)  # asserts that they hold


class Hidden:
    """The state of a proposal whose position in an automaton isn't known."""

    def __init__(self, inner: AutomatonPosition) -> None:
        self.inner, self.position = inner, self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def advance(self, tokens: torch.Tensor) -> Hidden:
        return Hidden(self.inner.advance(tokens))

    def take(self, ancestors: torch.Tensor) -> Hidden:
        return Hidden(self.inner.take(ancestors))


class Elsewhere(smc.GCD):
    def start(self, batch: smc.Batch) -> Any:
        return Hidden(super().start(batch))


@pytest.mark.usefixtures("unchecked_annotations")
def test_there_are_no_bounds_without_an_automaton() -> None:
    (found,) = smc.sample(
        TOY, [PROMPT], CONSTRAINTS["few_words"](), max_tokens=4, particles=4, algorithm="smc",
        proposal=Elsewhere(),
    )  # fmt: skip
    assert (found.bounds, found.certified, found.intervals) == (None, None, None)
    assert found.budget is None


def test_intervals() -> None:
    bounds = Bounds(math.log(0.25), math.log(0.5))
    assert bounds.certified == 0.5
    assert bounds.of_sequence(math.log(0.125)) == pytest.approx((0.25, 0.5))
    assert bounds.of_text(math.log(0.125)) == pytest.approx((0.25, 0.75))
    nothing = Bounds(-math.inf, math.log(0.5))
    assert nothing.certified == 0
    assert nothing.of_sequence(math.log(0.25)) == pytest.approx((0.5, 1.0))
    assert Bounds(-math.inf, -math.inf).certified == 1


# -- the effect of the budget ---------------------------------------------------------------------


def test_small_masses_are_not_lost() -> None:
    """Remove a token of probability e^-60 beside others that sum to one."""

    class Sharp(ToyLM):
        def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
            log_p = torch.full((VOCABULARY.size,), -60.0, dtype=torch.float64)
            log_p[1] = 0.0
            return log_p.log_softmax(dim=0)

    (found,) = sample_with(
        Sharp(VOCABULARY), [PROMPT], lift(choice("b", "aaaa"), VOCABULARY), max_tokens=3,
        particles=4, proposal=smc.GCD(), forced_runs=False, algorithm="smc",
    )  # fmt: skip
    assert smc.sufficient_budget(found) == 5
    # "a" at the beginning; there is no spelling by "ab", nor an end before "b".
    assert found.budget.log_removed == pytest.approx(-60, abs=1e-9)


@checked_inside_strategies
@settings(max_examples=40)
@given(token_automata())
def test_the_reach_of_a_state_is_its_farthest_next_token(automaton: TokenAutomaton) -> None:
    for state in range(automaton.num_states):
        after = automaton.delta[state]
        steps = automaton.steps_to_accept[after[after >= 0]]
        assert automaton.reach[state] == steps.max() < UNREACHABLE


# -- negative controls ---------------------------------------------------------------------------


def forgets_dead_prefixes(
    self: Frontier, prefixes: Any, before: Any, row: Any, token: Any, runs: Any, extension: Any
) -> Frontier:
    """Wrong: count only the prefixes from which some particle continues."""
    goes_on = torch.isin(before.row, row[runs & (extension.running | extension.finished)])
    before = before._replace(running=before.running & goes_on)
    return advanced(self, prefixes, before, row, token, runs, extension)


def forgets_answers(self: Frontier, *given: Any) -> Frontier:
    """Wrong: treat every drawn child as computed."""
    *others, runs, extension = given
    return advanced(self, *others, runs, extension._replace(running=runs))


advanced = Frontier.advance


@pytest.mark.parametrize("wrong", [forgets_dead_prefixes, forgets_answers])
def test_negative_control_of_what_is_open(
    wrong: Callable[..., Frontier], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Frontier, "advance", wrong)
    options = {"proposal": smc.GCD(), "particles": 2, **EVERY_STEP}
    assert not all_hold(TOY, CONSTRAINTS["few_words"](), 2, **options)


def test_negative_control_of_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token sequence of two particles counts once."""

    def twice(samples: Sequence[smc.Sample]) -> dict[bytes, float]:
        mass: dict[bytes, float] = defaultdict(float)
        for each in samples:
            mass[each.answer] += math.exp(each.log_p)
        return {answer: math.log(p) for answer, p in mass.items()}

    monkeypatch.setattr(smc._results.posterior, "_log_p_found", twice)
    options = {"proposal": smc.GCD(), "particles": 2}
    assert not all_hold(TOY, CONSTRAINTS["few_words"](), 3, **options)


def test_negative_control_of_equal_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In static shapes a prefix has a row for each particle, and counts once."""
    options = {"particles": 6, "execution": "static", "temperature": 0.6}
    assert close_to_definition(USUAL, "gcd", 2, options)
    start = Frontier.start
    monkeypatch.setattr(Frontier, "start", lambda *given, **also: _alone(start(*given, **also)))
    assert not close_to_definition(USUAL, "gcd", 2, options)


def _alone(frontier: Frontier | None) -> Frontier | None:
    return None if frontier is None else frontier._replace(first=None)


# -- reported errors, over all random choices ---------------------------------------------------


def variances(
    name: str, proposal: str, budget: int, lm: ToyLM = TOY, **options: Any
) -> tuple[float, float]:
    """The variance of the evidence over all walks, and the mean of the reported variances."""
    automaton = CONSTRAINTS[name]()
    found = outcomes(automaton, budget, lm=lm, proposal=PROPOSALS[proposal](), **options)
    evidence = math.fsum(masses(lm, PROMPT, automaton, budget).values())
    true, stated = 0.0, 0.0
    for probability, posterior in found:
        estimate = math.exp(posterior.log_evidence)
        true += probability * (estimate - evidence) ** 2
        if posterior.dead:
            continue
        error = estimate * posterior.reliability.log_evidence_error
        stated += probability * error**2
        low, high = posterior.log_evidence_interval
        assert posterior.bounds.log_lower <= low <= high <= posterior.bounds.log_upper
        inner, outer = posterior.confidence_intervals, posterior.intervals
        for (low, high), (least, most) in zip(inner, outer, strict=True):
            assert least <= low <= high <= most
    return true, stated


DEAD = SometimesImpossible(VOCABULARY, seed=2)
DISCRETE = {"algorithm": "discrete"}
# Without resampling the variance is unbiased; after dependent choices it is conservative.
VARIANCES: list[tuple[str, str, int, dict[str, Any], float]] = [
    *(
        ("few_words", proposal, 2, {"particles": N, "ess_threshold": 0.0}, 1)
        for proposal, N in (("gcd", 3), ("lcd", 2), ("lm", 2), ("tilted", 3))
    ),
    *(
        ("few_words", proposal, 2, {"particles": 2, "ess_threshold": 0.0, "lm": DEAD}, 1)
        for proposal in ("lm", "lcd")
    ),
    ("few_words", "gcd", 3, {"particles": 2, **EVERY_STEP}, 2),
    ("a_star_b", "gcd", 4, {"particles": 2, **EVERY_STEP}, 2),
    ("few_words", "lcd", 3, {"particles": 1, **DISCRETE}, 2),
    ("few_words", "gcd", 3, {"particles": 2, **DISCRETE}, 2),
    ("a_star_b", "gcd", 4, {"particles": 1, **DISCRETE}, 2),
    ("a_star_b", "lcd", 4, {"particles": 2, **DISCRETE}, 2),
    ("a_star_b", "gcd", 4, {"particles": 3, **DISCRETE, "execution": "static"}, 2),
    ("few_words", "lm", 2, {"particles": 2, **DISCRETE, "lm": DEAD}, math.inf),
    ("few_words", "lcd", 2, {"particles": 2, **DISCRETE, "lm": DEAD}, math.inf),
]


@pytest.mark.parametrize(("name", "proposal", "budget", "options", "most"), VARIANCES)
def test_the_variance_is_unbiased_or_conservative(
    name: str, proposal: str, budget: int, options: dict[str, Any], most: float
) -> None:
    """Dead prefixes count, too; intervals lie in those that hold in every outcome."""
    true, stated = variances(name, proposal, budget, **options)
    assert true > 1e-9
    assert true * (1 - 1e-6) <= stated <= most * true * (1 + 1e-6)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.floats(0, 1)), min_size=1),
    st.integers(4, 6),
)
def test_spread_is_its_formula(rows: list[tuple[int, int, float]], particles: int) -> None:
    founder, text, weight = (np.array(column) for column in zip(*rows, strict=True))
    if weight.sum() < 1e-3:
        return
    share = weight / weight.sum()
    probabilities = np.bincount(text, share, minlength=3)
    cohorts = cohorts_of_founders(founder, particles)
    found = Ancestry(share, text, tuple(cohorts)).spread(np.arange(3), 3)
    units = np.zeros((particles, 4))
    for i, y, part in zip(founder, text, share, strict=True):
        units[i, 0] += part
        units[i, 1 + y] += part
    units[:, 1:] -= probabilities * units[:, :1]
    expected = units.var(axis=0, ddof=1) * particles
    assert found.evidence == pytest.approx(expected[0], abs=1e-9)
    assert found.probabilities == pytest.approx(expected[1:], abs=1e-9)
    terms = (units[:, 0] - units[:, 0].mean()) ** 2
    if terms.sum() > 1e-6:
        effective = terms.sum() ** 2 / (terms**2).sum()
        assert found.degrees == pytest.approx(max(1.0, effective), rel=1e-6)


def test_the_quantile_has_the_effective_degrees_of_freedom() -> None:
    (found,) = smc.sample(
        TOY, [PROMPT], CONSTRAINTS["few_words"](), max_tokens=3, particles=8, proposal=smc.GCD()
    )
    even, uneven = (replace(found.reliability, degrees=nu) for nu in (8.0, 1.0))
    assert even.quantile == pytest.approx(1.8595, abs=1e-4)  # tables of Student's t
    assert uneven.quantile == pytest.approx(6.3138, abs=1e-4)


def test_candidates_are_distinguished_by_their_selection() -> None:
    # Two steps; the second sequence has a forced token between its selections.
    tokens = np.array([[1, 2, 0, -1], [1, 5, 3, 0], [4, 0, -1, -1]])
    no = 1.0
    log_pi = np.array([[0.0, -0.5, no, no], [0.0, no, -0.5, no], [-0.25, no, no, no]], dtype=float)
    first, second = cohorts_of_selections(tokens, log_pi, np.array([2, 3]), np.array([0.5, 1.2]))
    assert first.unit.tolist() == [-1, -1, 0]
    assert (first.units, first.total) == (2, 0.5)
    assert first.factor == pytest.approx([-math.expm1(-0.25)])
    assert sorted(second.unit.tolist()) == [-1, 0, 1]
    assert second.unit[2] == -1
    assert second.factor == pytest.approx([-math.expm1(-0.5)] * 2)


# -- labels --------------------------------------------------------------------------------------


def sample(**options: Any) -> smc.Posterior:
    automaton = CONSTRAINTS["few_words"]()
    (found,) = sample_with(
        TOY, [PROMPT], automaton, max_tokens=3, **{"algorithm": "smc", **options}
    )
    return found


class Banned(smc.GCD):
    """GCD with g = 0 for one token, or with the same g in another form for None."""

    def __init__(self, token: int | None, log_g: float = 0.0) -> None:
        super().__init__()
        self.token, self.log_g_of_token = token, log_g

    def guide(self, state: AutomatonPosition, log_p: torch.Tensor) -> smc.Factors:
        log_g = torch.zeros(log_p.shape, dtype=torch.float64)
        if self.token is not None:
            log_g[:, self.token] = self.log_g_of_token
        allowed = state.mask.mask(state.states, state.remaining)
        return smc.Factors.dense(log_g.masked_fill(~allowed, -math.inf))


@pytest.mark.parametrize("name", ["few_words", "a_star_b", "forced"])
def test_a_proposal_that_excludes_allowed_tokens_enumerates_nothing(name: str) -> None:
    automaton = CONSTRAINTS[name]()
    evidence = math.fsum(masses(TOY, PROMPT, automaton, 4).values())
    outcomes_of = []
    for token in (None, *range(VOCABULARY.size)):
        for log_g in (-2.0, -math.inf):
            (found,) = sample_with(
                TOY, [PROMPT], automaton, max_tokens=4, particles=200, floor=0,
                count_finished=False, algorithm="discrete", proposal=Banned(token, log_g),
            )  # fmt: skip
            is_exact = math.isclose(math.exp(found.log_evidence or 0.0), evidence, rel_tol=1e-9)
            assert found.enumerated == is_exact
            if is_exact:
                assert found.reliability.label == "certified"
                assert found.reliability.log_evidence_error == 0
                assert set(found.reliability.probability_errors) == {0.0}
                assert found.reliability.ess == 200
            outcomes_of.append((log_g == -math.inf, is_exact))
    assert {(True, False), (True, True), (False, True)} == {*outcomes_of}


def agreeing(label: str, certified: float, **options: Any) -> smc.Posterior:
    """Particles that agree, under a label and bounds."""
    found = sample(proposal=smc.GCD(), particles=1)
    assert found.reliability.probability_errors == (1 - found.certified,)  # the largest possible
    text, p = found.answers[:1], found.particles[0].log_p
    bounds = smc.Bounds(p, p - math.log(certified))
    labeled = replace(found.reliability, label=label, probability_errors=(1 - certified,), ess=9.0)
    return replace(
        found, answers=text, bounds=bounds, reliability=labeled, log_evidence=p + 0.01, **options
    )


@pytest.mark.parametrize("label", reliability.LABELS)
def test_agreement_of_particles_proves_nothing(label: str) -> None:
    found = agreeing(label, 0.25)
    assert found.probabilities == (1.0,)
    assert found.confidence_intervals == found.intervals
    assert found.intervals == (pytest.approx((0.25, 1.0)),)
    assert found.log_evidence_interval == (found.bounds.log_lower, found.bounds.log_upper)
    assert "[0.250, 1.000]" in repr(found)
    unbounded = replace(found, bounds=None)
    assert unbounded.confidence_intervals is unbounded.intervals is None
    assert unbounded.log_evidence_interval is None
    assert "no log evidence" in repr(replace(unbounded, log_evidence=None))
    assert "[" not in repr(unbounded)
    exact = replace(unbounded, enumerated=True)
    assert exact.confidence_intervals == ((1.0, 1.0),)


def test_an_estimate_outside_of_its_bounds_has_only_the_bounds() -> None:
    found = agreeing("estimated", 0.25)
    pair = replace(
        found, answers=(*found.answers, b"x"), probabilities=(0.9, 0.1),
        reliability=replace(found.reliability, probability_errors=(0.01, 0.01)),
    )  # fmt: skip
    low, high = pair.confidence_intervals[0]
    assert 0.25 < low < 0.9 < high < 1
    assert pair.intervals[1][0] == pytest.approx(0.0)
    wrong = replace(pair, probabilities=(0.1, 0.9))
    assert wrong.confidence_intervals[0] == pair.intervals[0]


def test_repr_has_three_lines_at_most() -> None:
    lines = repr(sample(proposal=smc.GCD(), particles=64)).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("Posterior (")
    assert "+-" in lines[0]


def test_every_label_states_the_remedy() -> None:
    for label, number, *flags in product(reliability.LABELS, [1, 16], *[[True, False]] * 4):
        names = ("drawn", "bounded", "stopped", "computed")
        options = dict(zip(names, flags, strict=True))
        advice = reliability._advise(label, number, **options)
        assert advice.endswith(".")
        assert options["drawn"] or "algorithm=" not in advice


def test_only_the_filter_is_called_estimated() -> None:
    """SMC's stated errors didn't cover known posteriors as often as they should."""
    assert reliability.label_of(50.0, 0.5, 0.9, 64, drawn=False) == "estimated"
    assert reliability.label_of(50.0, 0.5, 0.9, 64, drawn=True) == "unknown"
    assert reliability.label_of(50.0, 0.95, 0.9, 64, drawn=True) == "certified"
    assert reliability.label_of(4.0, 0.5, 0.9, 64, drawn=True) == "collapsed"
    assert reliability.label_of(4.0, 0.5, 0.9, 4, drawn=False) == "unknown"
