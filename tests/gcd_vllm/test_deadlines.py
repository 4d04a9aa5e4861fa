"""Requests with a deadline, in both processors, against matchers that are told what still fits."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import pytest
import torch

import gcd
from gcd_vllm import Processor
from gcd_vllm import _deadlines as deadlines
from gcd_vllm._admission import admission_of
from tests.gcd_vllm.fakes import (
    RequestStates,
    SamplingParams,
    VllmConfig,
    allowed_after,
    finite,
    lifted,
    v1_processor,
    v2_context,
)

TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {"name": TEXT, "tags": {"type": "array", "items": TEXT}},
    "required": ["name", "tags"],
}
LENGTH = 200
STEP = 0.125  # seconds, a power of two: nothing is rounded


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=50.0)
    monkeypatch.setattr(deadlines, "_clock", lambda: clock.now)
    return clock


class V1:
    """One request in the V1 model runner."""

    def __init__(self, tokens, params, output):
        self.size, self.output = tokens.size, output
        config = VllmConfig(tokens, max_model_len=LENGTH)
        self.processor = v1_processor(config, (params, [1], output))

    def masks(self, draft):
        return [finite(self.processor.apply(torch.zeros(1, self.size))[0])]

    def take(self, token):
        self.output.append(token)


class V2:
    """One request in the V2 model runner, with drafts."""

    def __init__(self, tokens, params, output):
        self.size = tokens.size
        self.states = RequestStates(2, LENGTH, tokens.size)
        config = VllmConfig(tokens, max_model_len=LENGTH, drafts=2)
        self.processor = Processor(config, self.states)
        self.states.enter(1, [1], output)
        assert self.processor.add_request(1, params)

    def masks(self, draft):
        rows = [(1, depth, token) for depth, token in enumerate([7, *draft])]
        self.processor.apply_staged_writes()
        logits = torch.zeros(len(rows), self.size)
        return [finite(row) for row in self.processor.apply(logits, v2_context([1], rows))]

    def take(self, token):
        self.states.commit(1, [token])


@pytest.mark.parametrize("engine", [V1, V2])
@pytest.mark.parametrize("milliseconds", [0, 250, 3000])
def test_masks_are_those_of_a_matcher_that_is_told_how_many_tokens_fit(
    tokens, clock, engine, milliseconds
):
    constraint = json.dumps({"json_schema": SCHEMA})
    (eos,) = tokens.eos_ids
    for seed in range(2):
        clock.now = begin = 50.0
        rng, size = random.Random(seed), tokens.size
        given = json.dumps({"json_schema": SCHEMA, "deadline_ms": milliseconds})
        params = SamplingParams(max_tokens=150, extra_args={"gcd": given})
        matcher = gcd.Matcher(lifted(constraint, tokens), budget=150)
        needed = int(matcher.automaton.steps_to_accept[matcher.state])
        run, steps = engine(tokens, params, []), 0
        while not matcher.is_finished:
            left = begin + milliseconds / 1000 - clock.now
            told = matcher.copy()
            if steps > 3:  # before, no pace is known
                told.finish_within(max(0, int(left / STEP)))
            elif left <= 0:
                told.finish()
            draft = []
            for _ in range(2):
                allowed = allowed_after(told, draft, size) - {eos}
                draft += [rng.choice(sorted(allowed))] if allowed else []
            for depth, mask in enumerate(run.masks(draft)):
                assert mask == allowed_after(told, draft[:depth], size)
            choices = sorted(allowed_after(told, [], size))
            token = rng.choice([t for t in choices if t not in (eos, 34)] or choices)
            assert matcher.advance(token)
            run.take(token)
            clock.now, steps = clock.now + STEP, steps + 1
        # Until a pace is known, tokens are taken that a shortest answer has not.
        in_time = STEP * max(int(milliseconds / 1000 / STEP), needed + 2 * (milliseconds > 0))
        assert clock.now - begin <= in_time
        assert milliseconds < 3000 or clock.now - begin > in_time - 4 * STEP


def test_a_returning_request_keeps_its_remaining_time(tokens, clock):
    given = json.dumps({"regex": "a{0,90}b", "deadline_ms": 1000})
    params = SamplingParams(max_tokens=100, extra_args={"gcd": given})
    assert len(V1(tokens, params, []).masks([])[0]) == 2 + 1  # a, aa, b
    clock.now += 2
    assert V1(tokens, params, []).masks([]) == [{ord("b")}]


def test_several_workers_have_several_clocks(tokens):
    config = VllmConfig(tokens)
    config.parallel_config = SimpleNamespace(world_size=2)
    given = SamplingParams(extra_args={"gcd": '{"regex": "a", "deadline_ms": 5}'})
    with pytest.raises(gcd.ConstraintError, match="got 2 workers"):
        admission_of(config).admit(given, given.extra_args["gcd"], 1)
    config.parallel_config.world_size = 1
    assert admission_of(config).admit(given, given.extra_args["gcd"], 1).deadline_ms == 5
