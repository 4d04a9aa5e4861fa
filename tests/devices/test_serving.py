"""vLLM's V2 steps on the device: the masks of the CPU, and no wait of the host in any of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import hmm
from gcd_vllm import PGCD, Processor
from gcd_vllm._particle_request import ParticleRequest
from tests.devices.device import DEVICE, NAME, move
from tests.gcd_vllm.fakes import (
    LogitsContext,
    RequestStates,
    SamplingParams,
    VllmConfig,
    v2_context,
)
from tests.small_vocabulary import vocabulary

CONSTRAINTS = [None, {"regex": "a*b"}, {"choice": ["one", "two"]}, {"regex": "[a-z]{1,40}"}]
LENGTH, SLOTS = 48, 4


def copy_runner(states, there):
    """The runner's tensors as they are now, on the device."""
    there.all_token_ids = SimpleNamespace(gpu=states.all_token_ids.gpu.to(DEVICE))
    for name in ("prompt_len", "prefill_len", "total_len"):
        numbers = getattr(states, name).np
        copied = SimpleNamespace(np=numbers, gpu=torch.from_numpy(numbers.copy()).to(DEVICE))
        setattr(there, name, copied)


@pytest.mark.skipif(NAME != "mock", reason="waits are counted on the pretending device")
@pytest.mark.parametrize("drafts", [0, 2])
def test_a_step_gives_the_masks_of_the_cpu_and_waits_for_nothing(monkeypatch, tmp_path, drafts):
    """Some rows are particles, whose weights are stored. Without drafts, some of them use P-GCD.

    When a row of P-GCD enters the batch, the host may wait, as it may compute a table then.
    """
    from tests.devices.pretending import counted_waits

    hmm.save(hmm.HMM.random(5, vocabulary().size), tmp_path / "small", vocabulary=vocabulary())
    monkeypatch.setenv("GCD_VLLM_HMMS", str(tmp_path))
    twisted, before, checked = set(), set(), 0
    rng, size = random.Random(drafts), vocabulary().size
    monkeypatch.setattr("gcd_vllm._admission.Admission._vocabulary", lambda self: vocabulary())
    monkeypatch.setattr("gcd_vllm._admission.Admission.warm_up", lambda self: None)
    states = RequestStates(SLOTS, LENGTH, size)
    runner = SimpleNamespace(**vars(states) | {"device": DEVICE})
    configs = [VllmConfig(vocabulary(), max_model_len=LENGTH, drafts=drafts) for _ in range(2)]
    pair = Processor(configs[0], states), Processor(configs[1], runner)
    for turn in range(16):
        for slot in range(SLOTS):
            if rng.random() < 0.3 or int(states.total_len.np[slot]) > LENGTH - 4:
                constraint = rng.choice(CONSTRAINTS)
                given = {} if constraint is None else {"gcd": json.dumps(constraint)}
                twisted.discard(slot)
                before.discard(slot)
                if constraint is not None and not drafts and rng.random() < 0.7:
                    particle = ParticleRequest(f"{turn}/{slot}")
                    if rng.random() < 0.5:
                        pgcd = PGCD("small", exact_top_k=4)
                        particle = replace(particle, proposal="pgcd", pgcd=pgcd)
                        twisted.add(slot)
                    given["gcd_particle"] = particle.text()
                params = SamplingParams(
                    extra_args=given, max_tokens=20, temperature=rng.choice([1.0, 0.5])
                )
                states.enter(slot, [1, 2], [])
                copy_runner(states, runner)
                for processor in pair:
                    processor.add_request(slot, params)
        copy_runner(states, runner)
        order = rng.sample(range(SLOTS), rng.randint(1, SLOTS))
        rows = [(slot, n) for slot in order for n in range(1 + rng.randint(0, drafts))]
        context = v2_context(order, [(slot, n, rng.choice(b"abnot")) for slot, n in rows])
        on_device = LogitsContext(*move([*vars(context).values()]))
        logits = torch.randn(len(rows), size)
        copied = logits.to(DEVICE)
        pair[0].apply_staged_writes()
        expected = pair[0].apply(logits, context)
        with counted_waits() as waits:
            pair[1].apply_staged_writes()
            found = pair[1].apply(copied, on_device)
        here = twisted.intersection(order)
        if not here - before:
            assert not waits
            checked += bool(here)
        before = here
        rows_of_pgcd = [row for row, (slot, _) in enumerate(rows) if slot in here]
        torch.testing.assert_close(found.cpu()[rows_of_pgcd], expected[rows_of_pgcd])
        others = [row for row, (slot, _) in enumerate(rows) if slot not in here]
        assert torch.equal(found.cpu()[others], expected[others])
        for slot in order:
            states.commit(slot, [rng.choice(b"abnot")])
    assert checked or drafts
