"""Refusal of calls in which vLLM on a CPU would read a prompt in several steps.

With chunked prefill, V1 reads a prompt in several steps if the step's other requests leave too few
tokens of `max_num_batched_tokens`. Each of these steps samples a token for the unfinished prompt.
V1 discards the token, and rewinds the generator of the request's seed. Generators on CPUs can't be
rewound, so the engine stops ("CPU Generator does not use offset"). All requests of this package
have seeds.

Let c_i be the number of prompt tokens that request i of n computes, in the order of admission. vLLM
runs at most M = `max_num_seqs` requests at once. So a step has at most the largest sum of M
consecutive c_i. It is computed here in O(n).

vLLM finds blocks of B tokens in its prefix cache, also blocks of earlier requests in the same step.
A request whose prompt of length L is cached computes its last L - B floor((L - 1) / B) tokens.
Blocks that are evicted because memory is short aren't taken into account.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from gcd_vllm._parts import Plan, part_end

_REASON = "On CPUs, vLLM stops if it reads the prompt of a request with a seed in several steps"


def check_prefill(
    config: Any, prompts: Sequence[Sequence[int]], budgets: Sequence[int], plan: Plan
) -> None:
    """Raise an error if the engine would stop because it reads a prompt in several steps."""
    device = getattr(getattr(config, "device_config", None), "device_type", "")
    if device != "cpu" or config.use_v2_model_runner:
        return
    scheduler, cache = config.scheduler_config, config.cache_config
    block = int(cache.block_size) if cache.enable_prefix_caching else None
    most, requests = int(scheduler.max_num_seqs), len(prompts) * plan.particles
    limit = int(scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens)
    longest = max(map(len, prompts), default=0)
    threshold = int(scheduler.long_prefill_token_threshold)
    if threshold and getattr(scheduler, "long_prefill_token_threshold_adaptive", False):
        threshold = max(threshold, limit // max(1, requests))
    if 0 < threshold < longest and requests > 1:
        raise ValueError(
            f"expected prompts of at most {threshold} tokens (long_prefill_token_threshold), got "
            f"{longest}; start the engine without this option. {_REASON}"
        )
    if not scheduler.enable_chunked_prefill:
        return
    tokens = max(most_tokens(costs, most) for costs in _rounds(prompts, budgets, plan, block))
    if tokens > limit:
        raise ValueError(
            f"expected at most {limit} prompt tokens in a step (max_num_batched_tokens), got up to "
            f"{tokens} from {min(most, requests)} requests at once; start the engine with "
            f"enable_chunked_prefill=False or max_num_batched_tokens={tokens}. {_REASON}"
        )


def most_tokens(costs: Int64[np.ndarray, "n"], most: int) -> int:
    """Return the maximum of the sums of `most` consecutive costs."""
    if not len(costs):
        return 0
    sums = np.concatenate([[0], np.cumsum(costs)])
    ends = np.minimum(np.arange(len(costs)) + most, len(costs))
    return int((sums[ends] - sums[:-1]).max())


def _rounds(
    prompts: Sequence[Sequence[int]], budgets: Sequence[int], plan: Plan, block: int | None
) -> Iterator[Int64[np.ndarray, "n"]]:
    """Yield each request's number of computed tokens, for each round of parts.

    No answer ends before its budget here, which is the most expensive case.
    """
    lengths = [len(prompt) for prompt in prompts]
    yield _first_round(prompts, plan.particles, block)
    taken = [0] * len(prompts)
    while plan.chunk is not None:
        taken = [
            part_end(length, before, budget, plan.chunk, block)
            for length, before, budget in zip(lengths, taken, budgets, strict=True)
        ]
        texts = [
            length + end
            for length, end, budget in zip(lengths, taken, budgets, strict=True)
            if end < budget
        ]
        if not texts:
            return
        # The engine has just computed these texts, except their last tokens.
        yield np.repeat([_count_uncached(text, block) for text in texts], plan.particles)


def _first_round(
    prompts: Sequence[Sequence[int]], particles: int, block: int | None
) -> Int64[np.ndarray, "n"]:
    costs: list[int] = []
    seen: set[int] = set()
    for prompt in prompts:
        rest = _count_uncached(len(prompt), block)
        costs += [max(rest, len(prompt) - _count_known(prompt, block, seen))]
        costs += [rest] * (particles - 1)
    return np.array(costs, dtype=np.int64)


def _count_uncached(length: int, block: int | None) -> int:
    """Return how many tokens of a text must be computed if all of its full blocks are cached.

    The last token is always computed.
    """
    return length if block is None else length - (length - 1) // block * block


def _count_known(prompt: Sequence[int], block: int | None, seen: set[int]) -> int:
    """Return the number of tokens in known blocks at the prompt's beginning; add its blocks.

    A block is known by the hash of its tokens and those before it.
    """
    known, name = 0, 0
    if block is None:
        return known
    for end in range(block, len(prompt) + 1, block):
        name = hash((name, tuple(prompt[end - block : end])))
        if name in seen:
            known = end
        seen.add(name)
    return known
