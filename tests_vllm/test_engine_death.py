"""Engines whose process is killed in the middle of a call: the call ends with an error.

VLLM_ENABLE_V1_MULTIPROCESSING=1 pytest ...
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest

import gcd_vllm
from gcd_vllm import _in_process

if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "1":
    pytest.skip("`make vllm` runs it separately", allow_module_level=True)

CONSTRAINT = {"regex": "[ab]{1,6}"}
BUDGET = 7
PARTICLES = 40
PROMPT = "Once upon a time"


@pytest.fixture
def nothing_waits_forever(llm):
    """Interrupt a test that is still waiting for a dead engine after two minutes."""

    def stop(*_):
        raise TimeoutError("the test has waited for two minutes")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def llm(peaked_llama):
    from vllm import LLM

    return LLM(
        peaked_llama, dtype="float32", max_model_len=64, max_num_seqs=16, enforce_eager=True,
        block_size=32, worker_extension_cls="gcd_vllm.WorkerExtension",
        logits_processors=["gcd_vllm:Processor"],
    )  # fmt: skip


def kill_engine():
    """Kill all processes that vLLM has started; return the time."""
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.SIGKILL)
    return time.monotonic()


def kill_at(monkeypatch, owner, name, number, counts=lambda *_: True):
    """Kill the engine just before a call of a method; return a list that gets the time of it."""
    call, calls, killed = getattr(owner, name), [], []

    def killing(*arguments, **options):
        calls.append(counts(*arguments))
        if calls[-1] and sum(calls) == number:
            killed.append(kill_engine())
        return call(*arguments, **options)

    monkeypatch.setattr(owner, name, killing)
    return killed


def die_before_the_second_draw(llm, monkeypatch):
    """Kill the engine before the second call of `draw`, which begins once vLLM knows of it."""
    draw, calls, killed = _in_process.InProcessEngine.draw, [], []

    def late(self, parts):
        calls.append(parts)
        if len(calls) == 2:
            killed.append(kill_engine())
            while not _in_process._is_dead(llm):
                time.sleep(0.05)
        return draw(self, parts)

    monkeypatch.setattr(_in_process.InProcessEngine, "draw", late)
    return killed


@pytest.mark.usefixtures("nothing_waits_forever")
@pytest.mark.parametrize("when", ["step", "fetch", "next part"])
def test_a_call_ends_if_the_process_is_killed(llm, monkeypatch, when):
    if when == "step":
        killed = kill_at(monkeypatch, llm.llm_engine, "step", 9)
    elif when == "fetch":
        killed = kill_at(
            monkeypatch, llm, "collective_rpc", 1, lambda method, **_: method == "gcd_take_weights"
        )
    else:
        killed = die_before_the_second_draw(llm, monkeypatch)

    with pytest.raises(gcd_vllm.EngineStoppedError, match="expected a running engine, got"):
        gcd_vllm.sample(
            llm, [PROMPT], CONSTRAINT, max_tokens=BUDGET, particles=PARTICLES, chunk=3, seed=1
        )
    assert time.monotonic() - killed[0] < 30
    with pytest.raises(ValueError, match="expected a running engine, got one whose process has"):
        gcd_vllm.sample(llm, [PROMPT], CONSTRAINT, max_tokens=BUDGET, particles=PARTICLES)
