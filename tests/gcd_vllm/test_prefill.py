"""Prompts that vLLM on a CPU would read in several steps, against a simulated scheduler."""

from __future__ import annotations

import random
from collections import deque
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gcd_vllm._parts import Plan, part_end
from gcd_vllm._prefill import check_prefill
from smc._inference.algorithms import SMC


def config(limit, most=4, block=None, **more):
    scheduler = {
        "max_num_seqs": most, "max_num_batched_tokens": limit, "max_num_scheduled_tokens": None,
        "enable_chunked_prefill": True, "long_prefill_token_threshold": 0,
    }  # fmt: skip
    return SimpleNamespace(
        device_config=SimpleNamespace(device_type="cpu"),
        use_v2_model_runner=False,
        scheduler_config=SimpleNamespace(**scheduler | more),
        cache_config=SimpleNamespace(
            block_size=block or 128, enable_prefix_caching=block is not None
        ),
    )


def plan(particles, chunk=None):
    return Plan(particles, "gcd", 1.0, 0, chunk, SMC())


def is_read_in_pieces(prompts, budgets, given, settings, rng):
    """Simulate V1's scheduler with answers of random tokens; return if it divides a prompt."""
    limit = settings.scheduler_config.max_num_batched_tokens
    most, block = settings.scheduler_config.max_num_seqs, settings.cache_config.block_size
    caches, cached = settings.cache_config.enable_prefix_caching, set()
    fresh = count(1000)
    systems = [[[] for _ in range(given.particles)] for _ in prompts]
    taken = [0] * len(prompts)
    while True:
        ends = [
            budget
            if given.chunk is None
            else part_end(len(prompt), before, budget, given.chunk, block if caches else None)
            for prompt, before, budget in zip(prompts, taken, budgets, strict=True)
        ]
        waiting = deque(
            (b, ids) for b, system in enumerate(systems) for ids in system if len(ids) < budgets[b]
        )
        if not waiting:
            return False
        running, after = [], [[] for _ in prompts]
        while waiting or running:
            left = limit - len(running)
            while waiting and left and len(running) < most:
                b, ids = waiting.popleft()
                text = [*prompts[b], *ids]
                known = 0
                while (
                    caches and known + block < len(text) and tuple(text[: known + block]) in cached
                ):
                    known += block
                if len(text) - known > left:
                    return True
                left -= len(text) - known
                cached |= {tuple(text[:end]) for end in range(block, len(text) + 1, block)}
                running.append((b, list(ids)))
            still = []
            for b, ids in running:
                ids.append(next(fresh))
                text = [*prompts[b], *ids[:-1]]
                cached |= {tuple(text[:end]) for end in range(block, len(text) + 1, block)}
                if rng.random() < 0.1:
                    continue  # finished
                if len(ids) < ends[b]:
                    still.append((b, ids))
                else:
                    after[b].append(ids)
            running = still
        systems, taken = [[list(ids) for ids in system] for system in after], ends


@st.composite
def calls(draw):
    block = draw(st.sampled_from([None, 2, 3, 8]))
    header = draw(st.lists(st.integers(0, 3), max_size=9))
    tails = draw(
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=4)
    )
    prompts = [tuple(header + tail) for tail in tails]
    budgets = [draw(st.integers(1, 9)) for _ in prompts]
    chunk = draw(st.sampled_from([None, 1, 3]))
    most = draw(st.integers(1, 8))
    return prompts, budgets, plan(draw(st.integers(1, 5)), chunk), most, block


@given(calls(), st.integers(8, 90), st.integers(0, 5))
@example(([(1,) * 6], [4], plan(4), 8, None), 23, 0)
@example(([(1,) * 9] * 2, [4] * 2, plan(3, 1), 8, 4), 14, 0)
def test_a_call_that_is_accepted_never_reads_a_prompt_in_pieces(call, limit, seed):
    prompts, budgets, given, most, block = call
    settings = config(max(limit, most), most, block)
    divided = is_read_in_pieces(prompts, budgets, given, settings, random.Random(seed))
    try:
        check_prefill(settings, prompts, budgets, given)
    except ValueError as error:
        assert "enable_chunked_prefill=False" in str(error)  # noqa: PT017, either may happen
    else:
        assert not divided


@pytest.mark.parametrize(
    ("prompts", "budgets", "given", "most", "block", "tokens"),
    [
        ([(1,) * 20], [4], plan(5), 16, None, 100),  # every request computes the prompt
        ([(1,) * 20], [4], plan(5), 16, 16, 20 + 4 * 4),  # the others find a block
        ([(1,) * 16], [4], plan(5), 16, 16, 5 * 16),  # the last token is always computed
        ([(1,) * 20, (2,) * 30], [4] * 2, plan(2), 16, 16, 20 + 4 + 30 + 14),
        ([(1,) * 20, (1,) * 30], [4] * 2, plan(2), 16, 16, 20 + 4 + 14 + 14),  # a shared block
        ([(1,) * 20, (2,) * 30], [4] * 2, plan(2), 2, 16, 30 + 14),  # two at once
        ([(1,) * 20, (2,) * 20, (1,) * 30], [4] * 3, plan(1), 3, 16, 20 + 20 + 14),
        ([(1,) * 20], [40], plan(5, chunk=2), 16, None, 5 * 58),  # the last part is the longest
    ],
)
def test_the_largest_step_is_the_limit(prompts, budgets, given, most, block, tokens):
    check_prefill(config(tokens, most, block), prompts, budgets, given)
    message = rf"at most {tokens - 1} prompt tokens .* got up to {tokens} from .*tokens={tokens}\."
    with pytest.raises(ValueError, match=message):
        check_prefill(config(tokens - 1, most, block), prompts, budgets, given)


def test_only_v1_on_cpus_with_chunked_prefill_is_concerned():
    given = [(1,) * 20], [4], plan(5)
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        check_prefill(config(10), *given)
    check_prefill(config(10, enable_chunked_prefill=False), *given)
    for name, value in (
        ("device_config", SimpleNamespace(device_type="cuda")),
        ("use_v2_model_runner", True),
    ):
        settings = config(10)
        setattr(settings, name, value)
        check_prefill(settings, *given)


def test_a_threshold_for_long_prompts_divides_them():
    """Also without chunked prefill, unless there is one request."""
    settings = config(1000, long_prefill_token_threshold=19, enable_chunked_prefill=False)
    with pytest.raises(ValueError, match=r"at most 19 tokens \(long_prefill_token_threshold\)"):
        check_prefill(settings, [(1,) * 20], [4], plan(2))
    check_prefill(settings, [(1,) * 20], [4], plan(1))
    check_prefill(settings, [(1,) * 19], [4], plan(2))
    settings.scheduler_config.long_prefill_token_threshold_adaptive = True
    check_prefill(settings, [(1,) * 20], [4], plan(2))
    with pytest.raises(ValueError, match="at most 19 tokens"):
        check_prefill(settings, [(1,) * 20], [4], plan(100))
