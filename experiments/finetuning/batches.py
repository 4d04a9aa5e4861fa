"""Lessons become tensors in which every branch sees the stem and itself, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from experiments.finetuning.lessons import Lesson


class Batch(NamedTuple):
    """Lessons as rows, padded on the right.

    Attributes:
        tokens: ids, 0 in the padding.
        positions: of each token in the text that it belongs to: branches begin where the stem ends.
        seen: whether the token of the row may look at that of the column. Padding sees itself, as a
            softmax over nothing is not a number.
        rows, columns: places whose next token is learnt.
        targets: that token.
    """

    tokens: Int64[Tensor, "B T"]
    positions: Int64[Tensor, "B T"]
    seen: Bool[Tensor, "B 1 T T"]
    rows: Int64[Tensor, "n"]
    columns: Int64[Tensor, "n"]
    targets: Int64[Tensor, "n"]


def batch_of(lessons: Sequence[Lesson]) -> Batch:
    """Lay lessons out as rows."""
    width = max(lesson.size for lesson in lessons)
    tokens = torch.zeros(len(lessons), width, dtype=torch.int64)
    positions = torch.zeros_like(tokens)
    owner = torch.full_like(tokens, -1)  # branch of each token, 0 for the stem
    places: list[tuple[int, int, int]] = []
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
            first = at + size - branch.learnt
            places += [(row, at_ - 1, int(tokens[row, at_])) for at_ in range(first, at + size)]
            at += size
    before = torch.ones(width, width, dtype=torch.bool).tril()
    same = owner.unsqueeze(2) == owner.unsqueeze(1)
    seen = (same | (owner == 0).unsqueeze(1)) & before
    rows, columns, targets = torch.tensor(places).T
    return Batch(tokens, positions, seen.unsqueeze(1), rows, columns, targets)


def pieces(lessons: Sequence[Lesson], most_tokens: int) -> Iterator[list[Lesson]]:
    """Yield lessons of like size together, so many that they fit in one pass of the model."""
    piece: list[Lesson] = []
    for lesson in sorted(lessons, key=lambda each: each.size):
        if piece and (len(piece) + 1) * lesson.size > most_tokens:
            yield piece
            piece = []
        piece.append(lesson)
    if piece:
        yield piece


def loss_of(model: Any, batch: Batch) -> Float[Tensor, ""]:
    """Compute the summed negative log-probability of all targets, in nats.

    Only the hidden states that predict a target are turned into logits: with 49 152 tokens the last
    layer is a fifth of the model's work.
    """
    device = model.device
    # Added to the scores of attention, whichever of its implementations the model has.
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
