"""Prompts that an engine on a CPU would read in several steps, which stops it.

VLLM_ENABLE_V1_MULTIPROCESSING=0 pytest ...
"""

from __future__ import annotations

import os

import pytest

import gcd_vllm

if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0":
    pytest.skip("`make vllm` runs it separately", allow_module_level=True)

CHOICE = {"choice": ["yes", "no", "none", "yesterday"]}
PROMPT = [5] * 41  # a block of 32 tokens that is cached, and 9 tokens


def start(folder, **more):
    from vllm import LLM

    return LLM(
        folder, dtype="float32", max_model_len=64, max_num_seqs=16, enforce_eager=True,
        block_size=32, worker_extension_cls="gcd_vllm.WorkerExtension", **more,
    )  # fmt: skip


def ask(llm, particles):
    (found,) = gcd_vllm.sample(llm, [PROMPT], CHOICE, max_tokens=5, particles=particles)
    return found


def test_a_prompt_in_pieces_is_refused_and_would_stop_the_engine(peaked_llama, monkeypatch):
    """Three particles compute 41 + 2 * 9 = 59 tokens, and four compute 4 more than a step has."""
    with_pieces = start(peaked_llama, max_num_batched_tokens=64)
    assert ask(with_pieces, 3).valid
    with pytest.raises(ValueError, match=r"at most 64 prompt tokens in a step .* up to 68 from 4"):
        ask(with_pieces, 4)
    assert ask(with_pieces, 3).valid
    without = start(peaked_llama, max_num_batched_tokens=64, enable_chunked_prefill=False)
    assert ask(without, 40).valid
    larger = start(peaked_llama, max_num_batched_tokens=68)
    assert ask(larger, 4).valid

    with_pieces.reset_prefix_cache()
    monkeypatch.setattr("gcd_vllm._in_process.check_prefill", lambda *_: None)
    with pytest.raises(gcd_vllm.EngineStoppedError, match="CPU Generator does not use offset"):
        ask(with_pieces, 4)
