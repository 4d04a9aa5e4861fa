"""Particles in both processors, against masks and `smc.PGCD` along one answer at a time."""

from __future__ import annotations

import math
import random
from functools import partial

import pytest
import torch

import hmm
from gcd import ConstraintError
from gcd_vllm import PGCD, Processor
from gcd_vllm._admission import REFUSED, admission_of, check_twist
from gcd_vllm._hmm_registry import MOST_PROPOSALS, _proposals
from gcd_vllm._weight_table import take
from tests.gcd_vllm.answers import Particle, Plain, Twisted, parameters
from tests.gcd_vllm.fakes import (
    RequestStates,
    VllmConfig,
    batches,
    finite,
    v1_processor,
    v2_context,
)


@pytest.fixture
def hmms(tokens, tmp_path, monkeypatch):
    """A directory with HMMs over the small vocabulary, and one of another size."""
    seeded = torch.Generator().manual_seed(1)
    model = hmm.HMM.random(5, tokens.size, generator=seeded, concentration=0.2)
    hmm.save(model, tmp_path / "small", vocabulary=tokens)
    hmm.save(hmm.HMM.random(7, tokens.size), tmp_path / "wider", vocabulary=tokens)
    hmm.save(hmm.HMM.random(3, tokens.size + 1), tmp_path / "other")
    monkeypatch.setenv("GCD_VLLM_HMMS", str(tmp_path))
    return tmp_path


OTHER = PGCD("small", lookahead="in_time", exact_top_k=2, defense=0.2)


def answers(rng, tokens, pgcd, name):
    """Particles of two HMMs, of GCD and of several budgets, some of them begun; and others."""
    found = []
    for n in range(12):
        budget, temperature = rng.choice([5, 8, 10]), rng.choice([1.0, 0.5, 2.0])
        given = f"{name}/{n}", tokens, budget, temperature, rng.choice([(), b"ab"])
        if n % 3:
            found.append(Twisted(*given, pgcd=pgcd if n % 2 else PGCD("wider")))
        else:
            found += [Particle(*given), Plain(tokens, 6, masked=bool(n % 2))]
    return found


@pytest.mark.parametrize("pgcd", [PGCD("small"), OTHER])
def test_v1_draws_and_weighs(tokens, hmms, pgcd):
    """Requests come, move, are preempted and come back."""
    rng, size = random.Random(0), tokens.size
    torch.manual_seed(0)
    config = VllmConfig(tokens)
    config.use_v2_model_runner = False
    processor = Processor(config, torch.device("cpu"), False)
    every = answers(rng, tokens, pgcd, "v1")
    for running in batches(processor, rng, every):
        before = 3 * torch.randn(len(running), size)
        after = processor.apply(before.clone())
        for row, answer in running.items():
            answer.step(before[row], after[row], rng)
    found, particles = take("v1/"), [each for each in every if isinstance(each, Particle)]
    assert found.keys() == {each.key for each in particles}
    for each in particles:
        each.check_values(found)
    assert take("v1/") == {}


@pytest.mark.parametrize(("pgcd", "seed"), [(PGCD("small"), 0), (OTHER, 1), (OTHER, 2)])
def test_v2_draws_and_weighs(tokens, hmms, pgcd, seed):
    """Requests come, miss steps, are preempted, return to other slots, and are aborted."""
    rng, size, slots = random.Random(seed), tokens.size, 4
    torch.manual_seed(seed)
    states = RequestStates(slots, 48, size)
    processor = Processor(VllmConfig(tokens, max_model_len=48), states)
    left = answers(rng, tokens, pgcd, "v2")
    particles = [each for each in left if isinstance(each, Particle)]
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
                preempted += isinstance(answer, Twisted)
            elif isinstance(answer, Particle) and rng.random() < 0.03:
                aborted.add(running.pop(slot))
    assert preempted
    assert missed
    found = take("v2/")
    for each in {*particles} - aborted:
        each.check_values(found)


def test_v2_frees_groups_that_are_not_in_the_batch(tokens, hmms):
    """The runner doesn't report when a request ends, and a table is large."""
    states = RequestStates(3, 48, tokens.size)
    processor = Processor(VllmConfig(tokens, max_model_len=48), states)
    for slot, budget in enumerate((5, 6, 7)):
        params = parameters(f"frees/{slot}", budget, proposal="pgcd", pgcd=PGCD("small"))
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
        params = parameters("refused", proposal="pgcd", pgcd=pgcd)
        if v2:
            states = RequestStates(1, 48, tokens.size)
            processor = Processor(config, states)
            states.enter(0, [5], [], partial(processor.add_request, 0, params))
            logits = processor.apply(torch.randn(1, tokens.size), v2_context([0]))
        else:
            processor = v1_processor(config, (params, [5], []))
            logits = processor.apply(torch.randn(1, tokens.size))
        assert finite(logits[0]) == set(b"[")
        (reason,) = take("refused").values()
        return reason.removeprefix(REFUSED)

    assert "(other, small, wider), got 'none'" in refusal(PGCD("none"))
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
    params = parameters("v2", proposal="pgcd", pgcd=PGCD("small"))
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
