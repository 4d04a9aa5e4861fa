"""P-GCD in both processors, against `smc.PGCD` along one answer at a time."""

from __future__ import annotations

import json
import math
import random
from functools import partial

import pytest
import torch

import gcd
import hmm
import smc
from gcd import AutomatonBatch, ConstraintError
from gcd_vllm import PGCD, Processor
from gcd_vllm._admission import REFUSED, admission_of, check_twist
from gcd_vllm._hmm_registry import MOST_PROPOSALS, _proposals
from gcd_vllm._particle_request import ParticleRequest
from gcd_vllm._weight_table import LOG_P, LOG_Q, LOG_Z, take
from smc._vocabulary.factors import defend
from tests.gcd_vllm.fakes import (
    BatchUpdate,
    RequestStates,
    SamplingParams,
    VllmConfig,
    allowed_after,
    batches,
    finite,
    lifted,
    v2_context,
)

REGEX = {"regex": "[ab]{1,9}c?"}


@pytest.fixture
def hmms(tokens, tmp_path, monkeypatch):
    """A directory with two HMMs over the small vocabulary, one of which is of another size."""
    seeded = torch.Generator().manual_seed(1)
    model = hmm.HMM.random(5, tokens.size, generator=seeded, concentration=0.2)
    hmm.save(model, tmp_path / "small", vocabulary=tokens)
    hmm.save(hmm.HMM.random(3, tokens.size + 1), tmp_path / "other")
    monkeypatch.setenv("GCD_VLLM_HMMS", str(tmp_path))
    return tmp_path


def parameters(key, budget, temperature, pgcd, prefix_tokens=0):
    particle = ParticleRequest(key, prefix_tokens, proposal="pgcd", pgcd=pgcd)
    extra = {"gcd": json.dumps(REGEX | {"budget": budget}), "gcd_particle": particle.text()}
    return SamplingParams(
        max_tokens=budget - prefix_tokens, temperature=temperature, extra_args=extra
    )


class Answer:
    """An answer under way, with its own P-GCD."""

    def __init__(self, key, tokens, proposal, pgcd, budget, temperature, prefix=()):
        self.key, self.temperature, self.proposal = key, temperature, proposal
        self.eos_ids = tokens.eos_ids
        self.prompt, self.output, self.prefix = [5, 6, *prefix], [], list(prefix)
        self.params = parameters(key, budget, temperature, pgcd, len(prefix))
        batch = AutomatonBatch([lifted(json.dumps(REGEX), tokens)])
        self.start = proposal.start(smc.Batch(batch, torch.tensor([budget])))
        self.expected = []

    def state(self):
        read = [*self.prefix, *self.output]
        return self.proposal.advance(self.start, torch.tensor([read], dtype=torch.int64))

    @property
    def finished(self):
        return self.output[-1:] != [] and self.output[-1] in self.eos_ids

    def step(self, before, after, rng):
        """Draw a token, as the engine does; note the values it should have."""
        log_p = (before / self.temperature).log_softmax(0).unsqueeze(0)
        guide = defend(self.proposal.guide(self.state(), log_p), log_p)
        log_q = (guide.apply(log_p) - guide.log_z.unsqueeze(1))[0]
        sampled = (after / self.temperature).log_softmax(0)
        assert torch.allclose(sampled.exp().double(), log_q.exp(), atol=1e-5)
        token = rng.choice(torch.isfinite(after).nonzero().flatten().tolist())
        self.expected.append([float(guide.log_z), float(log_p[0, token]), float(log_q[token])])
        self.output.append(token)


@pytest.mark.parametrize(
    "pgcd", [PGCD("small"), PGCD("small", lookahead="in_time", exact_top_k=2, defense=0.2)]
)
def test_rows_are_drawn_from_pgcd_and_weighed_by_it(tokens, hmms, pgcd):
    """Requests of three budgets come, move, are preempted and come back."""
    rng, size = random.Random(0), tokens.size
    torch.manual_seed(0)
    config = VllmConfig(tokens)
    config.use_v2_model_runner = False
    processor = Processor(config, torch.device("cpu"), False)
    proposal = pgcd.proposal(tokens, torch.device("cpu"))
    answers = [
        Answer(
            f"twist/{n}", tokens, proposal, pgcd, rng.choice([5, 8]),
            rng.choice([1.0, 0.5, 2.0]), rng.choice([(), [ord("a"), ord("b")]]),
        )
        for n in range(6)
    ]  # fmt: skip
    for running in batches(processor, rng, answers):
        before = 3 * torch.randn(4, size)
        after = processor.apply(before.clone())
        for row, answer in running.items():
            answer.step(before[row], after[row], rng)
    found = take("twist/")
    for answer in answers:
        values = [[step[LOG_Z], step[LOG_P], step[LOG_Q]] for step in found[answer.key]]
        assert torch.tensor(values).allclose(torch.tensor(answer.expected), atol=1e-4)


class Plain:
    """A request without P-GCD beside the others, with a constraint or without one."""

    def __init__(self, tokens, is_constrained, budget=6):
        self.eos_ids, self.budget = tokens.eos_ids, budget
        self.prompt, self.output, self.params = [5, 6], [], SamplingParams(max_tokens=budget)
        self.matcher = None
        if is_constrained:
            self.params.extra_args = {"gcd": json.dumps(REGEX)}
            self.matcher = gcd.Matcher(lifted(json.dumps(REGEX), tokens), budget=budget)

    @property
    def finished(self):
        return len(self.output) == self.budget or (self.output and self.output[-1] in self.eos_ids)

    def step(self, before, after, rng):
        """Draw a token, as the engine does; check that the logits are only masked."""
        size, found = len(before), finite(after)
        assert found == (
            set(range(size)) if self.matcher is None else allowed_after(self.matcher, [], size)
        )
        assert torch.equal(before[sorted(found)], after[sorted(found)])
        self.output.append(rng.choice(sorted(found)))
        assert self.matcher is None or self.matcher.advance(self.output[-1])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "pgcd", [PGCD("small"), PGCD("small", lookahead="in_time", exact_top_k=2, defense=0.2)]
)
def test_v2_draws_rows_from_pgcd_and_weighs_them_by_it(tokens, hmms, pgcd, seed):
    """Requests come, miss steps, are preempted, return to other slots, and are aborted.

    They use two HMMs and three budgets, some have tokens of earlier parts, and requests without
    P-GCD are in the same batches.
    """
    rng, size, slots = random.Random(seed), tokens.size, 4
    torch.manual_seed(seed)
    hmm.save(hmm.HMM.random(7, size), hmms / "wider", vocabulary=tokens)
    states = RequestStates(slots, 48, size)
    processor = Processor(VllmConfig(tokens, max_model_len=48), states)
    left = []
    for n in range(14):
        which = rng.choice([pgcd, PGCD("wider")])
        left.append(
            Answer(
                f"v2/{n}", tokens, which.proposal(tokens, torch.device("cpu")), which,
                rng.choice([5, 8, 10]), rng.choice([1.0, 0.5, 2.0]),
                rng.choice([(), [ord("a"), ord("b")]]),
            )
        )  # fmt: skip
        if n % 3 == 0:
            left.append(Plain(tokens, is_constrained=n % 2 == 0))
    answers = [answer for answer in left if isinstance(answer, Answer)]
    running, aborted, preempted, missed = {}, set(), 0, 0
    while left or running:
        for slot in [slot for slot in range(slots) if slot not in running]:
            if left and rng.random() < 0.8:
                answer = running[slot] = left.pop(rng.randrange(len(left)))
                added = partial(processor.add_request, slot, answer.params)
                states.enter(slot, answer.prompt, answer.output, added)
        if not running:
            continue
        processor.apply_staged_writes()
        order = rng.sample(sorted(running), rng.randint(1, len(running)))
        missed += len(order) < len(running)
        before = 3 * torch.randn(len(order), size)
        after = processor.apply(before.clone(), v2_context(order))
        for row, slot in enumerate(order):
            answer = running[slot]
            if rng.random() < 0.1:
                continue  # its prompt isn't complete, and nothing is drawn
            answer.step(before[row], after[row], rng)
            states.commit(slot, answer.output[-1:])
            if answer.finished:
                del running[slot]
            elif rng.random() < 0.15:
                left.append(running.pop(slot))
                preempted += isinstance(answer, Answer)
            elif isinstance(answer, Answer) and rng.random() < 0.03:
                aborted.add(running.pop(slot))
    assert preempted
    assert missed
    found = take("v2/")
    for answer in set(answers) - aborted:
        values = [[step[LOG_Z], step[LOG_P], step[LOG_Q]] for step in found[answer.key]]
        assert torch.tensor(values).allclose(torch.tensor(answer.expected), atol=1e-4)


def test_v2_frees_groups_that_are_not_in_the_batch(tokens, hmms):
    """The runner doesn't report when a request ends, and a table is large."""
    states = RequestStates(3, 48, tokens.size)
    processor = Processor(VllmConfig(tokens, max_model_len=48), states)
    for slot, budget in enumerate((5, 6, 7)):
        params = parameters(f"frees/{slot}", budget, 1.0, PGCD("small"))
        states.enter(slot, [5], [], partial(processor.add_request, slot, params))
    for order in ([0, 1], [2], [1, 2]):
        processor.apply(torch.randn(len(order), tokens.size), v2_context(order))
        assert len(processor._twists.groups._groups) == len(order)
    take("frees/")


@pytest.mark.parametrize("v2", [False, True])
def test_a_request_whose_hmm_cannot_be_used_says_why(tokens, hmms, monkeypatch, v2):
    config = VllmConfig(tokens)
    config.use_v2_model_runner = v2

    def refusal(pgcd):
        params = parameters("refused", 6, 1.0, pgcd)
        if v2:
            states = RequestStates(1, 48, tokens.size)
            processor = Processor(config, states)
            states.enter(0, [5], [], partial(processor.add_request, 0, params))
            logits = processor.apply(torch.randn(1, tokens.size), v2_context([0]))
        else:
            processor = Processor(config, torch.device("cpu"), False)
            processor.update_state(BatchUpdate(1, [], [(0, params, [5], [])], []))
            logits = processor.apply(torch.randn(1, tokens.size))
        assert finite(logits[0]) == set(b"[")
        (reason,) = take("refused").values()
        return reason.removeprefix(REFUSED)

    assert "(other, small), got 'none'" in refusal(PGCD("none"))
    assert f"{tokens.size}" in refusal(PGCD("other"))
    assert "expected defense" in refusal(PGCD("small", defense=2.0))
    monkeypatch.delenv("GCD_VLLM_HMMS")
    assert "GCD_VLLM_HMMS" in refusal(PGCD("small"))


def test_proposals_that_clients_name_are_kept_in_limited_number(tokens, hmms):
    device = torch.device("cpu")
    first = PGCD("small").proposal(tokens, device)
    assert PGCD("small").proposal(tokens, device) is first
    for number in range(1, MOST_PROPOSALS + 1):
        PGCD("small", defense=0.5 + number / 100).proposal(tokens, device)
    assert len(_proposals) == MOST_PROPOSALS
    assert PGCD("small").proposal(tokens, device) is not first


def test_engines_that_hide_or_draft_tokens_are_refused(tokens, hmms):
    config = VllmConfig(tokens)
    for v2, is_ahead, refused in [
        (True, False, False), (True, True, False), (False, True, True), (False, False, False)
    ]:  # fmt: skip
        config.use_v2_model_runner = v2
        config.scheduler_config.async_scheduling = is_ahead
        if not refused:
            check_twist(PGCD("small"), config)
            continue
        with pytest.raises(ConstraintError, match="async_scheduling=False"):
            check_twist(PGCD("small"), config)
    params = parameters("v2", 6, 1.0, PGCD("small"))
    drafting = VllmConfig(tokens, drafts=2)
    taken = admission_of(drafting).admit_or_refuse(params, params.extra_args["gcd"], 1, prompt=[5])
    assert "without speculative decoding" in taken.reason


@pytest.mark.parametrize("name", ["", "../small", "a/b", 5, ".."])
def test_names_are_not_paths(name):
    with pytest.raises(ValueError, match="expected hmm to be the name"):
        PGCD(name)
    with pytest.raises(ConstraintError, match="expected hmm to be the name"):
        PGCD.of({"hmm": name})
    with pytest.raises(ConstraintError, match="hm"):
        PGCD.of({"hm": "small"})
    assert math.isfinite(PGCD.of({"hmm": "small"}).defense)
