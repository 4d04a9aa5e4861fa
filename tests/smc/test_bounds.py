"""Bounds on the evidence hold in every outcome, and match their definition."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

import smc
import smc._inference.answers
import smc._results.posterior
from gcd import TokenAutomaton, Vocabulary, lift
from smc import AutomatonPosition, Bounds, Observation
from smc._forward.reader import Extension, Prefixes
from smc._inference.bounds import Frontier
from smc._inference.particles import Particles, Watch
from smc.testing import ToyLM
from tests.smc import rules
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice, tiny_model
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


@pytest.mark.parametrize(
    ("name", "proposal", "budget", "options"),
    [
        ("few_words", "gcd", 3, {"particles": 2, **EVERY_STEP}),
        ("few_words", "gcd", 2, {"particles": 2, **EVERY_STEP, "execution": "static"}),
        ("few_words", "tilted", 2, {"particles": 2, **EVERY_STEP}),
        ("few_words", "lcd", 2, {"particles": 3, **EVERY_STEP}),
        ("few_words", "lm", 2, {"particles": 2}),
        ("a_star_b", "tilted_no_potential", 3, {"particles": 2}),
        ("a_star_b", "greedy_close", 4, {"particles": 1}),
        ("a_star_b", "gcd", 3, {"particles": 2, "execution": "static"}),
        ("forced", "gcd", 4, {"particles": 1, "forced_runs": False}),
        *(
            (name, proposal, 4, {"particles": N, "algorithm": "discrete"})
            for name in ("few_words", "a_star_b")
            for proposal in ("gcd", "lcd", "lm", "tilted")
            for N in (1, 2)
        ),
    ],
)
def test_bounds_hold_in_every_outcome(
    name: str, proposal: str, budget: int, options: dict[str, Any]
) -> None:
    chosen = PROPOSALS[proposal]()
    assert all_hold(TOY, CONSTRAINTS[name](), budget, proposal=chosen, **options)


@pytest.mark.parametrize("proposal", ["lm", "lcd", "gcd"])
def test_bounds_hold_where_particles_die(proposal: str) -> None:
    lm = SometimesImpossible(VOCABULARY, seed=2)
    options = {"proposal": PROPOSALS[proposal](), "particles": 2, **EVERY_STEP}
    assert all_hold(lm, CONSTRAINTS["few_words"](), 2, **options)


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
        assert found.bounds is not None
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


@pytest.mark.parametrize("rule", list(rules.RULES))
def test_bounds_are_their_definition(rule: str) -> None:
    """Recompute the bounds from observed prefixes, in all execution modes."""
    static = {"execution": "static"} if rule in ("lm", "lcd", "gcd") else {}
    # The other model for one half of the options, which are different ones for the next rule.
    half = [*rules.RULES].index(rule) % 2
    discrete = {"algorithm": "discrete"}
    for seed, options in enumerate(
        [
            {"particles": 6},
            {"particles": 6, **static},
            {"particles": 20, "temperature": 0.6},
            {"particles": 4, "forced_runs": False},
            {"particles": 3, **discrete, **static},
            {"particles": 12, "temperature": 1.7, **discrete},
        ]
    ):
        assert close_to_definition(USUAL, rule, seed, options)
        if seed % 2 == half:
            continue
        # Prefixes that turn out to be impossible have no slot in a discrete filter.
        is_close = close_to_definition(rules.TOY, rule, seed, options)
        assert is_close or "algorithm" in options


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_bounds_are_the_truth_once_everything_was_read(algorithm: str) -> None:
    for name in CONSTRAINTS:
        automaton = CONSTRAINTS[name]()
        (found,) = smc.sample(
            TOY, [PROMPT], automaton, max_tokens=4, particles=4000, proposal=smc.GCD(),
            algorithm=algorithm, temperature=2.5, max_rows=4000,
        )  # fmt: skip
        truth = math.log(sum(masses(TOY, PROMPT, automaton, 4, temperature=2.5).values()))
        assert found.bounds is not None
        assert found.bounds.log_lower == pytest.approx(truth, abs=1e-8)
        assert found.bounds.log_upper == pytest.approx(truth, abs=1e-8)
        assert found.bounds.certified == pytest.approx(1, abs=1e-8)
        assert found.enumerated or algorithm == "smc"


def test_a_pool_that_was_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruned answers are neither lost nor certain."""
    monkeypatch.setattr(smc._inference.answers, "MOST_ANSWERS", 2)
    automaton = CONSTRAINTS["few_words"]()
    target = masses(TOY, PROMPT, automaton, 4)
    for seed in range(10):
        (found,) = smc.sample(
            TOY, [PROMPT], automaton, max_tokens=4, particles=9, proposal=smc.GCD(),
            algorithm="discrete", seed=seed,
        )  # fmt: skip
        assert len(found.particles) == 2
        assert holds(found, target, VOCABULARY)


@pytest.mark.parametrize("texts", [("",), ("ab", "b")])
@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_a_language_that_ends_by_itself(texts: tuple[str, ...], algorithm: str) -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab"], [])
    automaton, lm = lift(choice(*texts), vocabulary, eos="accept"), ToyLM(vocabulary, seed=2)
    for proposal in (smc.GCD(), smc.LM()):
        assert all_hold(lm, automaton, 2, proposal=proposal, particles=2, algorithm=algorithm)


def test_bounds_hold_in_single_precision() -> None:
    """Compare with exact sums of the model's probabilities, large and small."""
    for seed in range(4):
        lm = ToyLM(rules.VOCABULARY, seed=seed, spread=12.0, dtype=torch.float32)
        for N in (1, 30):
            for algorithm in ("smc", "discrete"):
                options = {"particles": N, "algorithm": algorithm}
                close_to_definition(lm, "gcd", seed, options)  # asserts that they hold


def test_bounds_of_a_real_model_in_single_precision() -> None:
    """Log-probabilities in float32 are rounded, so the bounds are rounded outward."""
    model = smc.TransformersLM(tiny_model(), None, VOCABULARY)
    wide = smc.TransformersLM(tiny_model().double(), None, VOCABULARY)

    class Wide:
        """A model that computes one text at a time in double precision."""

        def log_p(self, tokens: Ids) -> torch.Tensor:
            return wide.prefill([tokens])[1][0]

    automaton = CONSTRAINTS["a_star_b"]()
    evidence = math.fsum(masses(Wide(), PROMPT, automaton, 6).values())
    for N in (1, 64):
        (found,) = smc.sample(
            model, [PROMPT], automaton, max_tokens=6, particles=N, proposal=smc.GCD(),
            algorithm="discrete",
        )  # fmt: skip
        assert found.bounds is not None
        assert found.bounds.log_lower <= math.log(evidence) + 1e-6
        assert math.log(evidence) <= found.bounds.log_upper + 1e-6
        assert found.bounds.log_lower <= found.bounds.log_upper
    assert found.enumerated
    assert found.bounds.certified == pytest.approx(1, abs=2e-5)


def test_there_are_no_bounds_without_an_automaton() -> None:
    class Elsewhere(smc.GCD):
        """A proposal whose state isn't a position in an automaton."""

        def start(self, batch: smc.Batch) -> Any:
            return _Position(super().start(batch))

        def guide(self, state: Any, log_p: torch.Tensor) -> Any:
            return super().guide(state.inner, log_p)

        def forced(self, state: Any) -> torch.Tensor:
            return super().forced(state.inner)

        def advance(self, state: Any, tokens: torch.Tensor) -> Any:
            return _Position(state.inner.advance(tokens))

        def take(self, state: Any, ancestors: torch.Tensor) -> Any:
            return _Position(state.inner.take(ancestors))

    (found,) = smc.sample(
        TOY, [PROMPT], CONSTRAINTS["few_words"](), max_tokens=4, particles=4, algorithm="smc",
        proposal=Elsewhere(),
    )  # fmt: skip
    assert (found.bounds, found.certified, found.intervals) == (None, None, None)
    assert found.budget is None


class _Position:
    def __init__(self, inner: AutomatonPosition) -> None:
        self.inner = inner
        self.states, self.ends = inner.states, inner.ends
        self.finished, self.running = inner.finished, inner.running

    @property
    def position(self) -> _Position:
        return self


def test_intervals() -> None:
    bounds = Bounds(math.log(0.25), math.log(0.5))
    assert bounds.certified == 0.5
    assert bounds.of_sequence(math.log(0.125)) == pytest.approx((0.25, 0.5))
    assert bounds.of_text(math.log(0.125)) == pytest.approx((0.25, 0.75))
    nothing = Bounds(-math.inf, math.log(0.5))
    assert nothing.certified == 0
    assert nothing.of_sequence(math.log(0.25)) == pytest.approx((0.5, 1.0))
    assert Bounds(-math.inf, -math.inf).certified == 1


# -- negative controls ---------------------------------------------------------------------------


def forgets_dead_prefixes(
    self: Frontier, prefixes: Prefixes[Any], before: Particles, row: torch.Tensor,
    token: torch.Tensor, runs: torch.Tensor, extension: Extension,
) -> Frontier:  # fmt: skip
    """Wrong: count only the prefixes from which some particle continues."""
    goes_on = torch.isin(before.row, row[runs & (extension.running | extension.finished)])
    before = before._replace(running=before.running & goes_on)
    return advanced(self, prefixes, before, row, token, runs, extension)


def forgets_answers(
    self: Frontier, prefixes: Prefixes[Any], before: Particles, row: torch.Tensor,
    token: torch.Tensor, runs: torch.Tensor, extension: Extension,
) -> Frontier:  # fmt: skip
    """Wrong: treat every drawn child as computed."""
    read = extension._replace(running=runs)
    return advanced(self, prefixes, before, row, token, runs, read)


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
    options = {"particles": 6, "execution": "static"}
    assert close_to_definition(USUAL, "gcd", 2, options)
    start = Frontier.start
    monkeypatch.setattr(Frontier, "start", lambda *given, **also: _alone(start(*given, **also)))
    assert not close_to_definition(USUAL, "gcd", 2, options)


def _alone(frontier: Frontier | None) -> Frontier | None:
    return None if frontier is None else frontier._replace(first=None)
