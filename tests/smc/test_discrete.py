"""Properties of the discrete particle filter beyond its law (`test_walk`)."""

from __future__ import annotations

import inspect
import itertools
import math
from typing import Any

import pytest
import torch

import smc
from gcd import Vocabulary, lift
from smc._inference import answers
from smc.testing import ToyLM, target
from tests.smc.calls import arguments
from tests.smc.cases import PLAIN, Uneven
from tests.smc.toys import VOCABULARY, choice, many_words, timeless
from tests.smc.walks import PROMPT, TOY, HMMAsLM, random_hmm

# As users call it.
pytestmark = pytest.mark.usefixtures("unchecked_annotations")


def sample(prompts: Any, automata: Any, lm: Any = TOY, **options: Any) -> list[smc.Posterior]:
    defaults = {"max_tokens": 6, "particles": 4, "proposal": smc.GCD(), "algorithm": "discrete"}
    return inspect.unwrap(smc.sample)(lm, prompts, automata, **arguments({**defaults, **options}))


def test_without_a_random_slot_it_is_a_beam_search() -> None:
    """The evidence is a lower bound, the probabilities are those of the model, the bounds hold."""
    for seed, beams, budget in itertools.product(range(2), (1, 4), (3, 5)):
        lm = ToyLM(VOCABULARY, seed=seed)
        given = {"max_tokens": budget, "particles": beams, "kept": beams}
        (found,) = sample([PROMPT], many_words(), lm, **given)
        (other,) = sample([PROMPT], many_words(), lm, seed=7, **given)
        sequences = target(lm, PROMPT, many_words(), budget)
        assert timeless(found) == timeless(other)
        assert {s.ids: math.exp(s.log_weight) for s in found.particles} == pytest.approx(
            {s.ids: sequences[s.ids] for s in found.particles}
        )
        evidence = math.log(sum(sequences.values()))
        assert found.bounds.log_lower <= evidence <= found.bounds.log_upper
        assert found.enumerated == (len(found.particles) == len(sequences))
        assert found.reliability.label in ("unknown", "certified")


def test_a_pool_that_was_pruned_is_no_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    """No prefix was dropped, and the sum of the weights is unchanged."""
    monkeypatch.setattr(answers, "MOST_ANSWERS", 5)
    (found,) = sample([PROMPT], many_words(), max_tokens=6, particles=200, **PLAIN)
    assert not any(found.diagnostics.resampled)
    assert not found.enumerated
    assert len(found.particles) == 5
    evidence = sum(target(TOY, PROMPT, many_words(), 6).values())
    assert found.log_evidence == pytest.approx(math.log(evidence), abs=1e-12)


@pytest.mark.parametrize("options", [{"floor": 0.3}, {"count_finished": True}], ids=str)
def test_negative_control_of_no_variance(options: dict) -> None:
    """Other scores, or random selection, do have variance; see `test_pgcd` for those without."""
    hmm = random_hmm(seed=5)
    lm, automaton = HMMAsLM(VOCABULARY, hmm), many_words()
    proposal = smc.PGCD(hmm, exact_top_k=None, defense=0.0)
    found = sample(
        [PROMPT] * 40, automaton, lm, max_tokens=5, particles=2, proposal=proposal, **options
    )
    evidences = torch.tensor([each.log_evidence for each in found])
    assert float(evidences.std()) > 1e-3


def test_classes_that_are_as_many_as_tokens() -> None:
    """Tables of a batch are padded to the most classes, which must not turn them into tokens."""
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"c", b""], [3])
    two = lift(choice("aa", "bb", "cc", "ab", "ba"), vocabulary)
    four = lift(choice("abc", "b", "ca"), vocabulary)
    assert four.num_classes == vocabulary.size > two.num_classes
    lm = ToyLM(vocabulary, seed=3)
    given = {"max_tokens": 4, "particles": 2, "seed": 5}
    (alone,) = sample([[0]], two, lm, example_ids=[0], **given)
    together = sample([[0], [1]], [two, four], lm, **given)
    assert timeless(together[0]) == timeless(alone)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_guide_that_is_no_number_is_refused(bad: float) -> None:
    proposal = Uneven()
    proposal.bad = bad
    with pytest.raises(FloatingPointError, match=r"Uneven\(\), got NaN"):
        sample([PROMPT], many_words(), proposal=proposal)
