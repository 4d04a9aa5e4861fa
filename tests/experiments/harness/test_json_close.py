"""A text that is closed as JSON keeps as much as fits, parses, and is within the budget."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcd
import smc
from experiments.harness.samplers import close_as_json, sample_closing_json
from smc._inference.observation import Observation
from smc.testing import ToyLM

PIECES = [b"[", b"]", b"{", b"}", b'"', b'"a"', b": ", b", ", b"1", b"ab", b'"}]', b" "]
VOCABULARY = gcd.Vocabulary.from_bytes([*PIECES, b""], eos_ids=[len(PIECES)])
EOS = len(PIECES)
JSON = gcd.lift(gcd.json_schema(True, whitespace="spaced", max_depth=3), VOCABULARY)


def shortest(state: int) -> int:
    return int(JSON.steps_to_accept[state])


@st.composite
def beginnings(draw: st.DrawFn) -> list[int]:
    """Tokens that JSON may begin with."""
    state, ids = JSON.initial, []
    for _ in range(draw(st.integers(0, 9))):
        some = [t for t in range(EOS) if JSON.step(state, t) >= 0]
        if not some:
            break
        ids.append(draw(st.sampled_from(some)))
        state = JSON.step(state, ids[-1])
    return ids


@given(beginnings(), st.integers(2, 12))
def test_what_is_closed_parses_and_keeps_the_most(ids: list[int], budget: int) -> None:
    found = close_as_json(ids, JSON, budget)
    assert found is not None
    assert len(found) <= budget
    json.loads(VOCABULARY.decode(found))
    # The longest beginning after which there is still room for a shortest end.
    states = [JSON.initial]
    for token in ids:
        states.append(JSON.step(states[-1], token))
    kept = max(t for t, s in enumerate(states) if t + shortest(s) <= budget)
    assert found[:kept] == ids[:kept]
    assert len(found) == kept + shortest(states[kept])


def test_texts_that_cannot_be_closed_are_unchanged() -> None:
    assert close_as_json([0, 2, 8, 8], JSON, 9) is None  # "[{" goes on with a name, not with "1"
    assert close_as_json([0], JSON, 1) is None  # nothing fits


@pytest.mark.parametrize(("algorithm", "particles"), [("smc", 1), ("smc", 5), ("discrete", 1)])
def test_answers_that_are_finished_stay_and_others_are_closed(
    algorithm: str, particles: int
) -> None:
    lm, seen = ToyLM(VOCABULARY, seed=3), dict[int, smc.Posterior]()
    language = gcd.lift(gcd.regex(r'\[("a", )*"a"\]'), VOCABULARY)
    options: dict[str, Any] = {
        "particles": particles,
        "seed": 0,
        "proposal": smc.LCD(),
        "algorithm": algorithm,
    }
    budgets = [4, 5, 6, 7, 40]
    prompts = [[i] for i in range(5)]
    found = sample_closing_json(lm, prompts, [language] * 5, budget=budgets, **options)
    sample_closing_json(
        lm, prompts, [language] * 5, budget=budgets, finished=seen.update, **options
    )
    plain = smc.sample(
        lm, prompts, [language] * 5, budget=budgets, **{"algorithm": "smc", **options}
    )
    assert any(p.dead for p in plain)
    assert [seen[i].answers for i in range(5)] == [p.answers for p in found]
    for one, other, budget in zip(found, plain, budgets, strict=True):
        assert one.complete
        assert sum(one.probabilities) == pytest.approx(1)
        if other.dead:
            assert one.log_evidence is None
            assert not one.exact
            for answer in one.answers:
                json.loads(answer)
            assert budget < 40
        else:
            assert one.answers == other.answers
            assert one.log_evidence == other.log_evidence


def test_what_the_filter_kept_last_is_closed_with_its_weights() -> None:
    lm, seen = ToyLM(VOCABULARY, seed=3), dict[int, Observation]()
    language = gcd.lift(gcd.regex(r'\[((1|"a"|"ab"), )*(1|"a"|"ab")\]'), VOCABULARY)
    several = 0
    for example in (2, 80, 125):  # of 144, the ones in which no prefix fits the budget at the end
        prompt = [example % 12, example // 12]
        (found,) = sample_closing_json(
            lm, [prompt], [language], budget=[6], particles=2, proposal=smc.LCD(),
            algorithm="discrete", example_ids=[example],
            observe=lambda names: partial(seen.__setitem__, names[0]),
        )  # fmt: skip
        assert found.log_evidence is None
        last, weights = seen[example], defaultdict[bytes, float](float)
        for ids, n, weight in zip(last.tokens, last.length, last.log_weight.exp(), strict=True):
            whole = close_as_json(ids[:n].tolist(), JSON, 6)
            assert whole is not None
            weights[VOCABULARY.decode(whole)] += float(weight)
        total = sum(weights.values())
        expected = {text: weight / total for text, weight in weights.items()}
        assert dict(zip(found.answers, found.probabilities, strict=True)) == pytest.approx(expected)
        several += len(expected) > 1
    assert several == 3
