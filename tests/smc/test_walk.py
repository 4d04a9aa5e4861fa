"""Exactness of the sampler: weight times probability, over all random choices, is the target."""

from __future__ import annotations

import pytest
import torch

import smc
from gcd import Vocabulary, lift
from smc import AutomatonPosition
from smc._inference.resampling import SCHEMES, Scheme, Uniform
from smc.testing import ToyLM
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice
from tests.smc.walks import PROPOSALS, SometimesImpossible, Tilted, assert_exact, truth, walk_sums

# Schemes see weights and strata, not proposals. With independent ancestors there are most walks:
# each proposal has them once, half of the proposals with strata.
PAIRS = [(p, "systematic") for p in PROPOSALS if p != "lm"]
PLAIN = [(p, "multinomial") for p in ("lcd", "tilted")]
STRATA = [(p, "multinomial") for p in ("gcd", "greedy_close", "tilted_no_potential")]


@pytest.mark.parametrize(("proposal", "resampling"), [*PAIRS, *PLAIN])
def test_every_proposal_with_every_scheme(proposal: str, resampling: str) -> None:
    assert_exact(
        CONSTRAINTS["few_words"](), 3, proposal=PROPOSALS[proposal](), resampling=resampling
    )


@pytest.mark.parametrize(("proposal", "resampling"), [*PAIRS, *STRATA, ("lm", "systematic")])
def test_strata_of_equal_state(proposal: str, resampling: str) -> None:
    """Particles alone in their state, complete and dead particles stay unchanged."""
    three = 3 if (proposal, resampling) == ("gcd", "systematic") else 2
    for threshold in (1.0, 0.8) if proposal == "gcd" else (1.0,):
        assert_exact(
            CONSTRAINTS["a_star_b"](),
            3,
            proposal=PROPOSALS[proposal](),
            particles=three,
            resampling=resampling,
            ess_threshold=threshold,
            strata="state",
        )


@pytest.mark.parametrize(("name", "budget"), [("few_words", 2), ("forced", 3)])
def test_the_language_model_itself(name: str, budget: int) -> None:
    assert_exact(CONSTRAINTS[name](), budget, proposal=smc.LM(), resampling="systematic")


@pytest.mark.parametrize("proposal", list(PROPOSALS))
@pytest.mark.parametrize("name", list(CONSTRAINTS))
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_one_particle(proposal: str, name: str, temperature: float) -> None:
    budget = 4 if temperature == 1 else 3
    assert_exact(
        CONSTRAINTS[name](), budget, temperature, particles=1, proposal=PROPOSALS[proposal]()
    )


@pytest.mark.parametrize(
    ("proposal", "threshold"),
    [
        ("gcd", 0.0),
        ("gcd", 0.6),
        ("lcd", 0.6),
        ("tilted", 0.6),
        ("tilted", 0.9),
        ("tilted_no_potential", 0.9),
    ],
)
def test_adaptive_resampling(proposal: str, threshold: float) -> None:
    assert_exact(
        CONSTRAINTS["a_star_b"](),
        4,
        proposal=PROPOSALS[proposal](),
        resampling="systematic",
        ess_threshold=threshold,
    )


@pytest.mark.parametrize(("proposal", "budget"), [("lcd", 2), ("tilted", 3)])
def test_three_particles(proposal: str, budget: int) -> None:
    assert_exact(
        CONSTRAINTS["few_words"](),
        budget,
        proposal=PROPOSALS[proposal](),
        particles=3,
        resampling="systematic",
    )


@pytest.mark.parametrize("proposal", list(PROPOSALS))
def test_particles_left_without_a_token_die(proposal: str) -> None:
    given = {"lm": SometimesImpossible(VOCABULARY, seed=2), "proposal": PROPOSALS[proposal]()}
    for resampling in ("multinomial", "systematic") if proposal == "lcd" else ("systematic",):
        assert_exact(CONSTRAINTS["few_words"](), 2, resampling=resampling, **given)


def heaviest(weights: torch.Tensor, uniform: Uniform, size: torch.Tensor) -> torch.Tensor:
    """Wrong: keep only the heaviest particle."""
    return weights.argmax(dim=1, keepdim=True).expand_as(weights).contiguous()


def half_a_slice(weights: torch.Tensor, uniform: Uniform, size: torch.Tensor) -> torch.Tensor:
    """Wrong, but nearly right: systematic resampling with half the offset."""
    half = lambda count, breaks: uniform(count, breaks) / 2  # noqa: E731
    return SCHEMES["systematic"](weights, half, size)


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


@pytest.mark.parametrize("texts", [("",), ("ab", "b")])
@pytest.mark.parametrize("proposal", list(PROPOSALS))
def test_a_language_that_ends_by_itself(texts: tuple[str, ...], proposal: str) -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab"], [])
    automaton = lift(choice(*texts), vocabulary, eos="accept")
    assert_exact(automaton, 2, lm=ToyLM(vocabulary, seed=2), proposal=PROPOSALS[proposal]())
