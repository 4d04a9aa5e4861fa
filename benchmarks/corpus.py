"""Fast sampling of a language model's answers with its hidden states: millions of tokens a minute.

Prompts of equal length are computed together, without padding, and answers that have ended leave
the batch. Unlike `experiments.distillation.sampling`, everything stays on the device. Each token
has a vector, the last layer's hidden state after it. `cluster` groups these vectors.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

_POINTS, _ITERATIONS = 128, 12
_ROWS = 1 << 14


class Corpus(NamedTuple):
    """Answers, padded with zeros.

    Attributes:
        tokens: the tokens of each answer, EOS included.
        lengths: their numbers.
        log_p: log-probability of each answer, given its prompt.
        prompt: number of each answer's prompt.
        vectors: the last hidden state after each token but EOS.
        position: row · T + column of each vector's token.
    """

    tokens: Int64[Tensor, "B T"]
    lengths: Int64[Tensor, "B"]
    log_p: Float64[Tensor, "B"]
    prompt: Int64[Tensor, "B"]
    vectors: Float[Tensor, "n D"]
    position: Int64[Tensor, "n"]


def _batches(prompts: Sequence[Sequence[int]], each: int, size: int) -> Iterator[list[int]]:
    by_length = defaultdict(list)
    for number, prompt in enumerate(prompts):
        by_length[len(prompt)].extend([number] * each)
    for rows in by_length.values():
        yield from (rows[start : start + size] for start in range(0, len(rows), size))


@torch.inference_mode()
def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    each: int,
    *,
    eos: int,
    length: int,
    batch: int,
    seconds: float,
    generator: torch.Generator,
) -> Corpus:
    """Sample `each` answers to each prompt, of at most `length` tokens, until the time is over."""
    begun, parts = time.perf_counter(), []
    batches = list(_batches(prompts, each, batch))
    shuffled = torch.randperm(len(batches), generator=torch.Generator().manual_seed(0))
    for number in shuffled.tolist():
        if time.perf_counter() - begun > seconds:
            break
        rows = torch.tensor(batches[number], device=model.device)
        given = torch.tensor([prompts[row] for row in batches[number]], device=model.device)
        parts.append(_answers(model, given, eos, length, generator)._replace(prompt=rows))
    first = [0]
    for part in parts:
        first.append(first[-1] + part.tokens.numel())
    positions = [part.position + start for part, start in zip(parts, first, strict=False)]
    joined = [torch.cat(column) for column in list(zip(*parts, strict=True))[:-1]]
    return Corpus(*joined, torch.cat(positions))


def _answers(
    model: Any, prompts: Int64[Tensor, "B P"], eos: int, length: int, generator: torch.Generator
) -> Corpus:
    from transformers import DynamicCache  # slow to import

    size, cache = len(prompts), DynamicCache()
    tokens = prompts.new_zeros(size, length)
    log_p = torch.zeros(size, dtype=torch.float64, device=prompts.device)
    vectors, positions = [], []
    row, given = torch.arange(size, device=prompts.device), prompts
    for column in range(length):
        read = model.base_model(input_ids=given, past_key_values=cache, use_cache=True)
        state = read.last_hidden_state[:, -1]
        if column:
            vectors.append(state)
            positions.append(row * length + column - 1)
        drawn, value = _draw(model.lm_head, state, generator)
        tokens[row, column] = drawn
        log_p[row] += value
        kept = (drawn != eos).nonzero()[:, 0]
        if not len(kept):
            break
        row, given = row[kept], drawn[kept].unsqueeze(1)
        cache.batch_select_indices(kept)
    else:  # answers without an end
        read = model.base_model(input_ids=given, past_key_values=cache, use_cache=True)
        vectors.append(read.last_hidden_state[:, -1])
        positions.append(row * length + length - 1)
    lengths = torch.full((size,), length, device=prompts.device)
    ends = (tokens == eos).nonzero()
    lengths[ends[:, 0]] = ends[:, 1] + 1
    return Corpus(tokens, lengths, log_p, lengths, torch.cat(vectors), torch.cat(positions))


def _draw(
    head: Any, states: Float[Tensor, "B D"], generator: torch.Generator
) -> tuple[Int64[Tensor, "B"], Float[Tensor, "B"]]:
    """Draw a token after each state; return the tokens and their log-probabilities."""
    tokens, values = [], []
    for part in states.split(_ROWS // 4):
        log_p = head(part).float().log_softmax(dim=-1)
        tokens.append(torch.multinomial(log_p.exp(), 1, generator=generator))
        values.append(log_p.gather(1, tokens[-1]))
    return torch.cat(tokens)[:, 0], torch.cat(values)[:, 0]


def cluster(
    vectors: Float[Tensor, "n D"], groups: int, generator: torch.Generator
) -> Int64[Tensor, "n"]:
    """Group vectors by k-means and return the group of each."""
    order = torch.randperm(len(vectors), generator=generator, device=vectors.device)
    points = vectors[order[: _POINTS * groups]].float()
    means = points[:groups].clone()
    for _ in range(_ITERATIONS):
        group = _nearest(points, means)
        sums = torch.zeros_like(means).index_add_(0, group, points)
        count = torch.bincount(group, minlength=groups).unsqueeze(1)
        means = torch.where(count > 0, sums / count.clamp(min=1), means)
    return _nearest(vectors, means)


def _nearest(points: Float[Tensor, "n D"], means: Float[Tensor, "k D"]) -> Int64[Tensor, "n"]:
    half = means.square().sum(dim=1) / 2
    parts = points.split(_ROWS)
    return torch.cat([torch.addmm(half, p.float(), means.T, alpha=-1).argmin(1) for p in parts])
