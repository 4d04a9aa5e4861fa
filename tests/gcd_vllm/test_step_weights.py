"""Weights that V1's processor keeps, against masks and log-softmax computed here."""

from __future__ import annotations

import json
import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gcd import ConstraintError
from gcd_vllm import Processor
from gcd_vllm._admission import REFUSED, admission_of
from gcd_vllm._particle_request import ParticleRequest
from gcd_vllm._step_weights import StepWeights, WeightedRow, WeightedRows
from gcd_vllm._weight_table import LOG_P_EOS, NO_ROW, forget, take
from tests.gcd_vllm.answers import REGEX, Particle, parameters
from tests.gcd_vllm.fakes import (
    RequestStates,
    SamplingParams,
    VllmConfig,
    v1_processor,
    v2_context,
)


def values_of(tokens, logits, masked, output):
    """Return the values of the first token of an answer, whose tokens are known to V1 later."""
    weights, taken = StepWeights(torch.device("cpu"), tokens.eos_ids), []
    record = weights.begin("a", 4, None)
    rows = WeightedRows([WeightedRow(record, 0, taken, 1.0)], logits.device)
    weights.before_mask(logits, rows)
    weights.after_mask(masked, rows)
    taken += output
    return weights.take("a")["a"][0]


def test_an_end_that_v1_does_not_tell_is_known_by_its_column(tokens):
    """With asynchronous scheduling, the last token is a placeholder when the request leaves."""
    logits = torch.randn(1, tokens.size)
    values = values_of(tokens, logits, logits, [-1])
    assert values[0] == pytest.approx(0, abs=1e-6)
    assert math.isnan(values[1])
    assert values[LOG_P_EOS] == pytest.approx(float(logits.log_softmax(1)[0, tokens.eos_ids[0]]))


def test_small_shares_keep_their_digits(tokens):
    """A lone allowed token of log-probability -500 has log Z = -500."""
    logits, masked = torch.zeros(1, tokens.size), torch.full((1, tokens.size), -torch.inf)
    logits[0, 3] = masked[0, 3] = -500.0
    exact = -500 - math.log(tokens.size - 1)
    assert values_of(tokens, logits, masked, [])[0] == pytest.approx(exact, rel=1e-6)


def test_a_bounded_number_of_particles_is_kept(tokens):
    """Nobody may ever ask for the weights of requests that were aborted."""
    weights = StepWeights(torch.device("cpu"), tokens.eos_ids, most=100)
    records = [weights.begin(f"run/{n}", 4, None) for n in range(250)]
    assert len(weights) == 100
    assert [record.row != NO_ROW for record in records] == [False] * 150 + [True] * 100
    longest = weights.begin("long", 500, None)
    logits = torch.randn(2, tokens.size)
    rows = [WeightedRow(each, n, [0] * 499, 1.0) for n, each in enumerate((records[0], longest))]
    rows = WeightedRows(rows, logits.device)
    weights.before_mask(logits, rows)
    weights.after_mask(logits, rows)
    assert len(weights.take("long")["long"]) == 500
    assert weights.forget("run/") == 99
    assert len(weights) == 0


def test_a_particle_that_the_engine_refuses_leaves_the_reason(tokens):
    params = parameters("run/0", budget=6, prefix_tokens=2)
    processor = v1_processor(VllmConfig(tokens), (params, [5, *b"xa"], []))
    processor.apply(torch.randn(1, tokens.size))
    (reason,) = take("run/").values()
    assert reason.startswith(REFUSED)
    assert "expected the last 2 tokens of the prompt to begin an answer" in reason
    assert forget("run/") == 0


def test_a_prefix_counts_for_the_constraint_and_the_budget(tokens):
    admission = admission_of(VllmConfig(tokens, max_model_len=32))

    def taken(prompt, most=1, partial=True, budget=6, **constraint):
        params = parameters(budget=6, prefix_tokens=4, partial=partial)
        params.max_tokens = most
        text = json.dumps(REGEX | constraint | ({} if budget is None else {"budget": budget}))
        return admission.admit_or_refuse(params, text, len(prompt), prompt=prompt)

    begun = [5, *b"abab"]
    assert (taken(begun).reason, taken(begun).budget) == (None, 6)
    assert "isn't allowed after 3" in taken([5, *b"abcb"]).reason
    assert "prefix_tokens of at most 2" in taken([*b"ab"]).reason
    assert "expected a budget" in taken(begun, budget=None).reason
    assert "without deadline_ms" in taken(begun, deadline_ms=5).reason
    assert "budget of at least 5 tokens" in taken(begun, 6, partial=False, budget=4).reason


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected a JSON object with key, prefix_tokens, partial, proposal"),
        ('{"keys": 1}', "expected a JSON object"),
        ("[]", "expected a JSON object"),
        ('{"prefix_tokens": "2"}', "expected prefix_tokens of type int"),
        ('{"prefix_tokens": -1}', "expected prefix_tokens of at least 0"),
        ('{"partial": 1}', "expected partial of type bool"),
        ('{"proposal": "smc"}', "expected proposal gcd or lcd or pgcd"),
        ('{"proposal": "pgcd"}', "expected the member pgcd if"),
        ('{"proposal": "pgcd", "pgcd": 5}', "expected pgcd to be an object"),
        (5, "expected the text of a JSON object"),
    ],
)
def test_other_texts_are_no_particle_requests(text, message):
    with pytest.raises(ConstraintError, match=message):
        ParticleRequest.of(SamplingParams(extra_args={"gcd_particle": text}))


def test_fields_that_change_the_distribution_are_refused():
    asked = {"gcd_particle": ParticleRequest("a").text()}
    assert ParticleRequest.of(SamplingParams()) is None
    assert ParticleRequest.of(SamplingParams(extra_args=asked)) == ParticleRequest("a")
    for name, value in {"top_k": 5, "logit_bias": {1: 2.0}}.items():
        with pytest.raises(ConstraintError, match=f"expected {name}="):
            ParticleRequest.of(SamplingParams(extra_args=asked, **{name: value}))
    with pytest.raises(ConstraintError, match="temperature above 0"):
        ParticleRequest.of(SamplingParams(extra_args=asked, temperature=0.0))


def test_v2_stores_nothing_for_a_request_whose_values_were_dropped(tokens):
    """Its row belongs to another particle, and the other slots keep their rows."""
    torch.manual_seed(0)
    states = RequestStates(3, 48, tokens.size)
    processor = Processor(VllmConfig(tokens, max_model_len=48), states)
    always_a: Any = SimpleNamespace(choice=lambda allowed: allowed[allowed.index(ord("a"))])
    running = {}

    def enter(slot, key):
        running[slot] = Particle(key, tokens, 9)
        added = partial(processor.add_request, slot, running[slot].params)
        states.enter(slot, running[slot].prompt, [], added)

    def step(order):
        before = torch.randn(len(order), tokens.size)
        after = processor.apply(before.clone(), v2_context(order))
        for row, slot in enumerate(order):
            running[slot].step(before[row], after[row], always_a)
            states.commit(slot, running[slot].output[-1:])

    enter(0, "old/")
    enter(2, "other/")
    for _ in range(2):
        step([0, 2])
    assert forget("old/") == 1
    enter(1, "new/")
    for _ in range(4):
        step([1, 2, 0])  # the old request is the last to write
    running[1].check_values(take("new/"))
    enter(0, "again/")
    step([0, 2])
    running[2].check_values(take("other/"))
    running[0].check_values(take("again/"))
    assert take("old/") == {}
