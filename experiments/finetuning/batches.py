"""Batches of lessons: tensors in which each branch attends only to the stem and itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from experiments.finetuning.lessons import Lesson


class Batch(NamedTuple):
    """Lessons as batch rows, padded on the right.

    Attributes:
        tokens: ids, 0 in the padding.
        positions: position of each token in its text; branches continue at the end of the stem.
        seen: whether the row's token attends to the column's token. Padding attends to itself,
            because a softmax over nothing is NaN.
        rows: batch rows of the positions whose next token is learned.
        columns: columns of these positions.
        targets: the next tokens.
    """

    tokens: Int64[Tensor, "B T"]
    positions: Int64[Tensor, "B T"]
    seen: Bool[Tensor, "B 1 T T"]
    rows: Int64[Tensor, "n"]
    columns: Int64[Tensor, "n"]
    targets: Int64[Tensor, "n"]


def batch_of(lessons: Sequence[Lesson]) -> Batch:
    """Arrange lessons as batch rows."""
    width = max(lesson.size for lesson in lessons)
    tokens = torch.zeros(len(lessons), width, dtype=torch.int64)
    positions = torch.zeros_like(tokens)
    owner = torch.full_like(tokens, -1)  # branch of each token; 0 is the stem
    entries: list[tuple[int, int, int]] = []
    for row, lesson in enumerate(lessons):
        stem, at = len(lesson.stem), len(lesson.stem)
        tokens[row, :stem] = torch.tensor(lesson.stem, dtype=torch.int64)
        positions[row, :stem] = torch.arange(stem)
        owner[row, :stem] = 0
        for number, branch in enumerate(lesson.branches, start=1):
            size = len(branch.tokens)
            part = slice(at, at + size)
            tokens[row, part] = torch.tensor(branch.tokens)
            positions[row, part] = torch.arange(stem, stem + size)
            owner[row, part] = number
            first = at + size - branch.learned
            entries += [(row, at_ - 1, int(tokens[row, at_])) for at_ in range(first, at + size)]
            at += size
    before = torch.ones(width, width, dtype=torch.bool).tril()
    same = owner.unsqueeze(2) == owner.unsqueeze(1)
    seen = (same | (owner == 0).unsqueeze(1)) & before
    rows, columns, targets = torch.tensor(entries).T
    return Batch(tokens, positions, seen.unsqueeze(1), rows, columns, targets)


def pieces(lessons: Sequence[Lesson], most_tokens: int) -> Iterator[list[Lesson]]:
    """Yield groups of lessons of similar size that fit into one forward pass."""
    piece: list[Lesson] = []
    for lesson in sorted(lessons, key=lambda each: each.size):
        if piece and (len(piece) + 1) * lesson.size > most_tokens:
            yield piece
            piece = []
        piece.append(lesson)
    if piece:
        yield piece


def loss_of(model: Any, batch: Batch) -> Float[Tensor, ""]:
    """Compute the sum of negative log-probabilities of all targets, in nats.

    Only hidden states that predict a target are turned into logits, as the last layer takes a fifth
    of the model's time with 49,152 tokens.
    """
    device = model.device
    # An additive mask works with every attention implementation.
    mask = torch.zeros(batch.seen.shape, dtype=model.dtype)
    mask.masked_fill_(~batch.seen, torch.finfo(model.dtype).min)
    hidden = model.base_model(
        input_ids=batch.tokens.to(device),
        attention_mask=mask.to(device),
        position_ids=batch.positions.to(device),
        use_cache=False,
    ).last_hidden_state
    logits = model.get_output_embeddings()(hidden[batch.rows.to(device), batch.columns.to(device)])
    return torch.nn.functional.cross_entropy(
        logits.float(), batch.targets.to(device), reduction="sum"
    )
