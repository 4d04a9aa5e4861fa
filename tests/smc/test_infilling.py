"""The evidence of an infilling is the sum over all spellings that the healed prompt allows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcd
import smc
from smc.testing import ToyLM
from tests.gcd.spellings import EXTRA, spellings, vocabulary_of
from tests.smc.calls import sample_with
from tests.smc.walks import PROMPT, HMMAsLM, random_hmm


def by_enumeration(
    lm: ToyLM, prompt: tuple[int, ...], texts: list[bytes], budget: int
) -> dict[bytes, float]:
    """p_lm of each of these texts and EOS, over all of its spellings within the budget."""
    (eos,) = lm.vocabulary.eos_ids
    found = dict.fromkeys(texts, 0.0)
    for text in texts:
        for spelling in spellings(text, lm.vocabulary):
            tokens = (*spelling, eos)
            before = ((*prompt, *tokens[:i]) for i in range(len(tokens)))
            steps = [float(lm.log_p(b)[v]) for b, v in zip(before, tokens, strict=True)]
            found[text] += math.exp(math.fsum(steps)) if len(tokens) <= budget else 0.0
    return found


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(EXTRA), unique=True),
    st.text("ab", max_size=4),
    st.text("ab", max_size=3),
    st.lists(st.text("ab", max_size=2), min_size=1, max_size=3, unique=True),
    st.integers(0, 3),
    st.data(),
)
def test_evidence_and_posterior_over_all_spellings(extra, before, after, words, slack, data):
    vocabulary = vocabulary_of(extra)
    lm = ToyLM(vocabulary, seed=len(before), spread=1.5)
    own = data.draw(st.sampled_from(list(spellings(before.encode(), vocabulary))))
    hole = gcd.infill(before, after, gcd.choice(words))
    prompt, rest = hole.heal([vocabulary.size - 2, *own], vocabulary)
    constraint = gcd.lift(rest.language, vocabulary)
    budget = constraint.fewest_tokens + slack

    texts = [rest.before + word.encode() + after.encode() for word in words]
    expected = by_enumeration(lm, prompt, texts, budget)
    (found,) = sample_with(
        lm, [prompt], constraint, max_tokens=budget, particles=500, proposal=smc.GCD(),
        algorithm="discrete", count_finished=False, floor=0,
    )  # fmt: skip
    assert found.enumerated
    assert math.exp(found.log_evidence) == pytest.approx(sum(expected.values()), rel=1e-9)
    posterior = dict(zip(found.answers, found.probabilities, strict=True))
    for text, word in zip(texts, words, strict=True):
        share = expected[text] / sum(expected.values())
        assert posterior.get(text, 0.0) == pytest.approx(share, abs=1e-9)
        if text in posterior:
            assert rest.middle_of(text) == word.encode()


def test_a_prompt_that_is_not_healed_loses_spellings():
    """Healing gains the spellings with tokens that straddle the end of the prompt."""
    vocabulary = vocabulary_of(["ab"])
    lm = ToyLM(vocabulary, seed=3)
    start = vocabulary.size - 2
    prompt, rest = gcd.infill("ba", "", gcd.choice(["b", "bb"])).heal([start, 1, 0], vocabulary)
    assert (prompt, rest.before) == ((start, 1), b"a")
    straddling = vocabulary.token_bytes.index(b"ab")
    constraint = gcd.lift(rest.language, vocabulary)
    (found,) = smc.sample(
        lm,
        [prompt],
        constraint,
        max_tokens=4,
        particles=50,
        proposal=smc.GCD(),
        algorithm="discrete",
    )
    assert {s.ids[0] for s in found.particles} == {0, straddling}


@pytest.mark.parametrize("particles", [1, 3])
def test_the_lookahead_of_the_right_model_is_the_evidence(particles: int) -> None:
    """With the language model's own HMM, every particle's weight equals the enumerated evidence."""
    vocabulary = vocabulary_of(EXTRA[:3])
    hmm = random_hmm(vocabulary.size, seed=5)
    lm = HMMAsLM(vocabulary, hmm)
    hole = gcd.infill("ab", "ba", gcd.regex("[ab]{0,3}"))
    constraint = gcd.lift(hole.language, vocabulary)
    texts = list(hole.language)
    evidence = sum(by_enumeration(lm, PROMPT, texts, 7).values())
    proposal = smc.PGCD(hmm, exact_top_k=None, defense=0.0)
    (found,) = smc.sample(
        lm,
        [PROMPT],
        constraint,
        max_tokens=7,
        particles=particles,
        proposal=proposal,
        algorithm="smc",
    )
    assert math.exp(found.log_evidence) == pytest.approx(evidence, rel=1e-9)
    weights = [sample.log_weight for sample in found.particles]
    assert weights == pytest.approx([math.log(evidence)] * particles, abs=1e-9)
