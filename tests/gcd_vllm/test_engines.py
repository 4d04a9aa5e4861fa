"""Both processors against matchers: the mask of every row of every step of a made-up engine.

The engine adds requests, drafts tokens, refuses drafts, preempts, brings requests back into other
slots and moves them, all at random. The oracle is `gcd.Matcher`, which is told every token.
"""

from __future__ import annotations

import json
import random

import pytest
import torch

import gcd
from gcd_vllm import Processor
from gcd_vllm._particle_request import ParticleRequest
from gcd_vllm._weight_table import take
from tests.gcd_vllm.fakes import (
    RequestStates,
    SamplingParams,
    VllmConfig,
    allowed_after,
    batches,
    finite,
    lifted,
    v1_processor,
    v2_context,
)
from tests.small_vocabulary import vocabulary

CONSTRAINTS = [
    None,
    {"regex": "a*b"},
    {"choice": ["one", "two", "aaaa"]},
    {"json_schema": {"type": "object", "properties": {"name": {"type": "string"}}}},
    {"segments": [{"regex": "a*", "tokens": 3, "until": "b"}, {"regex": "[cd]+"}]},
]
LENGTH = 48  # max_model_len
(END,) = vocabulary().eos_ids


class Request:
    """A request of the made-up engine, and the matcher that follows it."""

    def __init__(self, rng, vocabulary):
        self.constraint = rng.choice(CONSTRAINTS)
        self.prompt = [rng.randrange(256) for _ in range(rng.randint(1, 6))]
        self.output = []
        given = None
        self.params = SamplingParams(max_tokens=rng.randint(14, 60))
        if self.constraint is not None:
            given = rng.choice([None, 14, 20])
            more = {} if given is None else {"budget": given}
            self.params.extra_args = {"gcd": json.dumps(self.constraint | more)}
        self.budget = min(given or LENGTH, self.params.max_tokens, LENGTH - len(self.prompt))
        self.matcher = None
        if self.constraint is not None:
            self.matcher = gcd.Matcher(
                lifted(json.dumps(self.constraint), vocabulary), budget=self.budget
            )

    @property
    def finished(self):
        """At the end of the budget there is an end if there is a constraint."""
        ended = self.output[-1:] == [END]
        assert ended or self.matcher is None or len(self.output) < self.budget
        return ended or len(self.output) >= self.budget

    def allowed(self, draft, size):
        """The tokens that the matcher allows after a draft; None for all."""
        return None if self.matcher is None else allowed_after(self.matcher, draft, size)

    def take(self, tokens):
        for token in tokens:
            self.output.append(token)
            assert self.matcher is None or self.matcher.advance(token)


def check(logits, row, request, draft, size):
    expected = request.allowed(draft, size)
    assert finite(logits[row]) == (set(range(size)) if expected is None else expected)


@pytest.mark.parametrize(("seed", "drafts"), [(0, 0), (1, 3), (2, 3)])
def test_v2_masks_every_row_as_matchers_do(tokens, seed, drafts):
    rng, size, slots = random.Random(seed), tokens.size, 4
    states = RequestStates(slots, LENGTH, size)
    config = VllmConfig(tokens, max_model_len=LENGTH, drafts=drafts)
    processor = Processor(config, states)
    running, preempted, ended = {}, [], 0
    for _ in range(120):
        for slot in [s for s in range(slots) if s not in running]:
            if rng.random() < 0.6:
                back = bool(preempted) and rng.random() < 0.7
                request = preempted.pop() if back else Request(rng, tokens)
                running[slot] = request
                states.enter(slot, request.prompt, request.output)
                is_masked = processor.add_request(slot, request.params)
                assert is_masked is (request.constraint is not None)
        processor.apply_staged_writes()
        order = rng.sample(sorted(running), rng.randint(0, len(running)))
        if not order:
            continue
        rows = []  # slot, draft before the row
        for slot in order:
            draft = draft_of(rng, running[slot], drafts, size)
            rows += [(slot, draft[:n]) for n in range(len(draft) + 1)]
        logits = torch.zeros(len(rows), size)
        read = [(slot, len(draft), draft[-1] if draft else 7) for slot, draft in rows]
        context = v2_context(order, read)
        logits = processor.apply(logits, context)
        for row, (slot, draft) in enumerate(rows):
            check(logits, row, running[slot], draft, size)
        for slot in order:
            request, new = running[slot], []
            for row, (other, draft) in enumerate(rows):
                if other == slot and draft == new:
                    allowed = sorted(finite(logits[row]))
                    follows = [d for s, d in rows if s == slot and len(d) == len(new) + 1]
                    taken = follows[0][-1] if follows and follows[0][-1] in allowed else None
                    if taken is None or rng.random() < 0.3:
                        new.append(rng.choice(allowed))
                        break
                    new.append(taken)
                    if taken == END:
                        break
            new = new[: request.budget - len(request.output)]
            request.take(new)
            states.commit(slot, new)
            if request.finished:
                ended += request.constraint is not None
                del running[slot]
            elif rng.random() < 0.1:
                preempted.append(running.pop(slot))
    assert ended > 2


def v2_step(processor, order, size):
    """The masks of a step without drafts, one row for each slot."""
    processor.apply_staged_writes()
    return processor.apply(torch.zeros(len(order), size), v2_context(order))


def test_v2_takes_room_from_requests_that_are_not_in_the_batch(tokens):
    """The runner does not say that a request has ended."""
    states = RequestStates(9, LENGTH, tokens.size)
    config = VllmConfig(tokens, max_model_len=LENGTH)
    processor = Processor(config, states)
    constraints = [{"regex": f"[a-{last}]{{9,14}}[xyz]{{1,5}}"} for last in "bcdefgh"]
    largest = max(lifted(json.dumps(each), tokens).delta.size for each in constraints)

    def enter(slot):
        states.enter(slot, [1], [])
        particle = ParticleRequest(f"room/{slot}").text()
        extra = {"gcd": json.dumps(constraints[slot]), "gcd_particle": particle}
        assert processor.add_request(slot, SamplingParams(extra_args=extra, max_tokens=20))

    def allowed(slot, output):
        matcher = gcd.Matcher(lifted(json.dumps(constraints[slot]), tokens), budget=20)
        return allowed_after(matcher, output, tokens.size)

    enter(0)
    v2_step(processor, [0], tokens.size)
    pool = processor._pool  # as large as any two of the automata, with a row for each
    pool.after_flat, pool.steps_flat = (
        flat[: 2 * largest + 2].clone() for flat in (pool.after_flat, pool.steps_flat)
    )
    pool.max_bytes = pool.nbytes
    states.commit(0, [ord("a")] * 2)
    for slot in range(1, 6):  # each request is the only one, and those before have ended
        enter(slot)
        assert finite(v2_step(processor, [slot], tokens.size)[0]) == allowed(slot, [])
    masks = v2_step(processor, [5, 0], tokens.size)  # the first one had not ended
    assert finite(masks[0]) == allowed(5, [])
    assert finite(masks[1]) == allowed(0, [ord("a")] * 2)
    enter(6)
    masks = v2_step(processor, [6, 5, 0], tokens.size)  # too many; the last is refused
    assert finite(masks[0]) < set(b"[") | set(tokens.eos_ids)
    assert "raise the limit of the pool" in take("room/6")["room/6"]
    assert finite(masks[1]) == allowed(5, [])
    assert finite(masks[2]) == allowed(0, [ord("a")] * 2)
    masks = v2_step(processor, [1, 5, 0], tokens.size)  # one comes back, and there is no room
    assert finite(masks[0]) == set(tokens.eos_ids)
    assert finite(masks[1]) == allowed(5, [])
    assert finite(masks[2]) == allowed(0, [ord("a")] * 2)


def draft_of(rng, request, most, size):
    """Draft tokens; some follow the constraint and some do not."""
    draft = []
    for _ in range(rng.randint(0, most)):
        allowed = request.allowed(draft, size)
        sensible = allowed is not None and rng.random() < 0.8
        draft.append(rng.choice(sorted(allowed)) if sensible else rng.randrange(size))
    return draft


@pytest.mark.parametrize("seed", range(3))
def test_v1_masks_every_row_as_matchers_do(tokens, seed):
    rng, size = random.Random(seed), tokens.size
    config = VllmConfig(tokens, max_model_len=LENGTH)
    processor = Processor(config, torch.device("cpu"), False)
    assert not processor.is_argmax_invariant()
    requests = [Request(rng, tokens) for _ in range(12)]
    for batch in batches(processor, rng, requests):
        logits = processor.apply(torch.zeros(len(batch), size))
        for row, request in batch.items():
            check(logits, row, request, [], size)
            if rng.random() < 0.9:  # the others are still in their prompts
                request.take([rng.choice(sorted(finite(logits[row])))])
    assert all(request.finished for request in requests)


def test_v1_lets_a_row_do_nothing_but_end_while_its_tokens_are_not_known(tokens):
    output = [ord("a"), -1]
    params = SamplingParams(extra_args={"gcd": '{"regex": "a*b"}'})
    processor = v1_processor(VllmConfig(tokens), (params, [1], output))
    assert finite(processor.apply(torch.zeros(1, tokens.size))[0]) == set(tokens.eos_ids)
    output[1] = ord("b")
    assert finite(processor.apply(torch.zeros(1, tokens.size))[0]) == set(tokens.eos_ids)
    output[1] = ord("a")  # discarded and sampled again
    assert ord("b") in finite(processor.apply(torch.zeros(1, tokens.size))[0])
