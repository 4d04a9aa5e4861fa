"""The law of every sampler: over all random choices, probability times weight sums to the target.

Every outcome of the random choices is visited, so a sampler with any bias fails. A row of the
matrix combines a proposal, an algorithm, a constraint and other options. Every two values of
different axes meet in some row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import smc
from gcd import TokenAutomaton, Vocabulary, lift
from smc import AutomatonPosition
from smc._inference import answers
from smc._inference import discrete_filter as discrete
from smc._inference.resampling import SCHEMES, Scheme
from smc._inference.selection import Selection
from smc._vocabulary import passes
from smc.testing import ToyLM
from tests.smc.cases import LANGUAGES, PLAIN, Anything, Uneven, automaton_of
from tests.smc.matrix import covering
from tests.smc.toys import CONSTRAINTS, VOCABULARY, a_star_b, choice, few_words, many_words
from tests.smc.walks import (
    EVERY_STEP,
    PROMPT,
    PROPOSALS,
    Outcomes,
    SometimesImpossible,
    Tilted,
    half_a_slice,
    heaviest,
    holds,
    masses,
    never,
    outcomes,
    removed_by_budget,
    sums,
    truth,
    walk_sums,
)

# Checking shapes in these repeated calls takes a third of the time.
pytestmark = pytest.mark.usefixtures("unchecked_annotations")


def bare(*texts: str) -> TokenAutomaton:
    """These texts without an EOS token."""
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab"], [])
    return lift(choice(*texts), vocabulary, eos="accept")


IMPOSSIBLE: dict[str, Callable[[Vocabulary], list[int]]] = {
    "nothing": lambda vocabulary: [],
    "b": lambda vocabulary: [1],
    "the end": lambda vocabulary: [*vocabulary.eos_ids],
    "nearly all": lambda vocabulary: [*range(vocabulary.size)][:-1],
}
OTHERS = {**PROPOSALS, "uneven": Uneven}
PGCD = {
    "lookahead": ["conditional", "joint", "in_time", 0.3],
    "impossible": [*IMPOSSIBLE],
    "exact_top_k": [0, 2, None],
    "defense": [0.0, 0.1],
    "potential": [True, False],
}
MATRIX: dict[str, dict[str, Any]] = {
    "algorithm": {
        "one": {"particles": 1},
        "systematic": {"particles": 2, **EVERY_STEP},
        "adaptive": {"particles": 2, "ess_threshold": 0.7, "strata": "none"},
        "strata": {"particles": 2, "ess_threshold": 1.0},
        "discrete": {"particles": 1, "algorithm": "discrete"},
        "discrete 2": {"particles": 2, "algorithm": "discrete"},
        "no floor": {"particles": 1, "algorithm": "discrete", "floor": 0.0},
        "kept floor": {"particles": 2, "algorithm": "discrete", "kept": 1, "floor": 0.1},
        "plain": {"particles": 1, "algorithm": "discrete", **PLAIN},
        "plain floor": {"particles": 1, "algorithm": "discrete", **PLAIN, "floor": 0.2},
        "plain kept": {"particles": 2, "algorithm": "discrete", **PLAIN, "kept": 1},
    },
    "constraint": {
        "a_star_b": a_star_b,
        "few_words": few_words,
        "many_words": many_words,
        "ends by itself": lambda: bare("ab", "bb", "bab", "aab"),
        **{name: partial(automaton_of, name) for name in LANGUAGES if name != "all_forced"},
    },
    "run": {
        "eager": {},
        "static": {"execution": "static"},
        "token by token": {"forced_runs": False},
        "ahead": {"read_ahead": 2},
    },
    "temperature": {"1": 1.0, "0.5": 0.5, "2": 2.0},
    "loops": {"by size": None, "compiled": 0},
}
AXES = {axis: [*values] for axis, values in MATRIX.items()}
ROWS = covering(proposal=[*OTHERS], **AXES)
ROWS += covering(*ROWS, **PGCD, **AXES)


def proposal_of(row: dict[str, Any], vocabulary: Vocabulary) -> smc.Proposal:
    """Return the row's proposal; without a name, P-GCD for an HMM with impossible tokens."""
    if "proposal" in row:
        return OTHERS[row["proposal"]]()
    hmm = never(IMPOSSIBLE[row["impossible"]](vocabulary), seed=7, size=vocabulary.size)
    options = {name: row[name] for name in ("lookahead", "exact_top_k", "defense")}
    made = smc.PGCD(hmm, **options)
    made.potential = row["potential"]
    return made


def assert_law(
    automaton: TokenAutomaton,
    budget: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    lm: ToyLM | None = None,
    temperature: float = 1.0,
    **options: Any,
) -> None:
    """Compare the sums over all outcomes with enumeration; bounds hold in each of them."""
    monkeypatch.setattr("smc._forward.read_ahead.look_up", Anything(3))  # with wrong drafts, too
    lm = lm or ToyLM(automaton.vocabulary, seed=1, spread=1.5)
    target = masses(lm, PROMPT, automaton, budget, temperature=temperature)
    expected, sufficient = removed_by_budget(lm, PROMPT, automaton, budget, temperature=temperature)
    removed = 0.0

    def look(found: Outcomes) -> Outcomes:
        nonlocal removed
        for probability, posterior in found:
            assert holds(posterior, target, automaton.vocabulary)
            assert smc.sufficient_budget(posterior) <= sufficient
            if posterior.enumerated:
                assert smc.sufficient_budget(posterior) == sufficient
                share = expected / (expected + math.fsum(target.values()))
                assert posterior.budget.removed == pytest.approx(share, abs=1e-10)
            removed += probability * math.exp(posterior.budget.log_removed)
            yield probability, posterior

    found = outcomes(automaton, budget, lm=lm, temperature=temperature, **options)
    mass, evidence, total, _ = sums(look(found))
    assert total == pytest.approx(1, abs=1e-10)
    assert evidence == pytest.approx(math.fsum(target.values()), abs=1e-10)
    assert mass == pytest.approx(truth(automaton, budget, temperature, lm), abs=1e-10)
    assert removed == pytest.approx(expected, abs=1e-10)


# Schemes see weights and strata, but not proposals.
@pytest.mark.parametrize(
    ("proposal", "name", "budget", "options"),
    [
        *(
            ("gcd", name, budget, {"algorithm": algorithm, "execution": execution})
            for name, budget in (("empty", 1), ("forced", 3), ("all_forced", 6))
            for algorithm, execution in (("smc", "eager"), ("discrete", "static"))
        ),
        ("lcd", "few_words", 2, {"particles": 3}),
        ("gcd", "a_star_b", 3, {"particles": 3, "strata": "state"}),
        ("tilted", "few_words", 3, {"resampling": "multinomial"}),
        ("tilted_no_potential", "a_star_b", 3, {"resampling": "multinomial", "strata": "state"}),
        ("gcd", "a_star_b", 3, {"resampling": "multinomial", "strata": "state",
                                "ess_threshold": 0.8}),
        ("gcd", "many_words", 3, {"algorithm": "discrete", "particles": 5}),
    ],
)  # fmt: skip
def test_the_law_of_other_rows(
    proposal: str, name: str, budget: int, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Particles alone in their state, complete and dead particles stay unchanged."""
    others = {"empty": lambda: bare(""), "many_words": many_words}
    automaton = {**CONSTRAINTS, **others}.get(name, lambda: automaton_of(name))()
    given = {} if "algorithm" in options else EVERY_STEP
    given = {"particles": 2, **given, **options, "proposal": PROPOSALS[proposal]()}
    assert_law(automaton, budget, monkeypatch, **given)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ", ".join(map(str, row.values())))
def test_weights_sum_to_the_target(row: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {axis: MATRIX[axis][row[axis]] for axis in MATRIX}
    if chosen["loops"] is not None:  # these vocabularies are too small for them by default
        monkeypatch.setattr(passes, "NARROW", 0)
    automaton = chosen["constraint"]()
    slack = 2 if "algorithm" in chosen["algorithm"] else 1
    if row.get("proposal") == "lm":  # it has thousands of outcomes, unless answers are short
        automaton, slack = automaton if automaton.fewest_tokens < 3 else few_words(), 0
    assert_law(
        automaton, automaton.fewest_tokens + slack, monkeypatch,
        proposal=proposal_of(row, automaton.vocabulary), temperature=chosen["temperature"],
        **chosen["algorithm"], **chosen["run"],
    )  # fmt: skip


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_particles_left_without_a_token_die(proposal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = SometimesImpossible(VOCABULARY, seed=2)
    for given in (MATRIX["algorithm"]["systematic"], MATRIX["algorithm"]["discrete 2"]):
        assert_law(
            CONSTRAINTS["few_words"](), 2, monkeypatch, lm=lm, proposal=PROPOSALS[proposal](),
            **given,
        )  # fmt: skip


def test_a_pool_that_is_too_large_is_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_ANSWERS", 2)
    for name in ("discrete 2", "plain", "no floor"):
        given = {"proposal": smc.GCD(), **MATRIX["algorithm"][name]}
        assert_law(CONSTRAINTS["few_words"](), 3, monkeypatch, **given)


# -- negative controls ---------------------------------------------------------------------------


class ForgetsItsPotential(Tilted):
    """Wrong: weigh as if g had been one."""

    def guide(self, state: AutomatonPosition, log_p: torch.Tensor) -> smc.Factors:
        factors = super().guide(state, log_p)
        mask = factors.log_g > -torch.inf
        log_z = torch.logsumexp(log_p.masked_fill(~mask, -torch.inf), dim=1)
        return factors._replace(log_z=log_z)


@pytest.mark.parametrize("wrong", [heaviest, half_a_slice])
@pytest.mark.parametrize("strata", ["none", "state"])
def test_negative_control_of_resampling(
    wrong: Scheme, strata: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above must reject wrong implementations."""
    monkeypatch.setitem(SCHEMES, "wrong", wrong)
    name, budget = ("few_words", 3) if strata == "none" else ("a_star_b", 5)
    expected = truth(CONSTRAINTS[name](), budget)
    mass, _, _, _ = walk_sums(
        CONSTRAINTS[name](), budget, proposal=smc.GCD() if strata == "state" else smc.LCD(),
        resampling="wrong", strata=strata,
    )  # fmt: skip
    assert max(abs(mass.get(x, 0.0) - p) for x, p in expected.items()) > 1e-4


def test_negative_control_of_weights() -> None:
    expected = truth(CONSTRAINTS["few_words"](), 3)
    mass, _, _, _ = walk_sums(
        CONSTRAINTS["few_words"](), 3, proposal=ForgetsItsPotential(potential=True),
        resampling="systematic",
    )  # fmt: skip
    assert max(abs(mass[x] - p) for x, p in expected.items()) > 1e-3


def test_negative_control_of_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights without the division by pi, and pi of another threshold, are detected."""
    whole = discrete.select
    expected = truth(many_words(), 4)

    def undivided(*given: Any, **options: Any) -> Selection:
        found = whole(*given, **options)
        return found._replace(log_pi=torch.zeros_like(found.log_pi))

    def rounded(*given: Any, **options: Any) -> Selection:
        found = whole(*given, **options)
        return found._replace(log_pi=found.log_pi * 1.05)

    for wrong in (undivided, rounded):
        monkeypatch.setattr(discrete, "select", wrong)
        mass, *_ = walk_sums(many_words(), 4, proposal=smc.GCD(), algorithm="discrete")
        assert max(abs(mass.get(x, 0.0) - p) for x, p in expected.items()) > 1e-3
