"""Greedy, unconstrained answers of a causal language model, and how often they are right.

This is the plain measure of a tool-calling model: no automaton helps it. Answers are exact when
they hold the gold multiset of calls. Rows are batched by length and padded on the left, so that the
batch's answers begin together and the key-value cache serves all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from experiments.tool_calling.answers import makes_calls
from experiments.tool_calling.prompts import build_prompt
from experiments.tool_calling.records import ToolRecord


def greedy_answers(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    *,
    max_new_tokens: int = 160,
    batch_size: int = 32,
) -> list[str | None]:
    """Continue each prompt with the most likely token again and again.

    None where prompt and answer do not fit the model's context; nothing is ever cut.
    """
    model.eval()
    encoded = [tokenizer(prompt, add_special_tokens=True)["input_ids"] for prompt in prompts]
    longest = model.config.max_position_embeddings - max_new_tokens
    order = [i for i in range(len(prompts)) if len(encoded[i]) <= longest]
    order.sort(key=lambda i: len(encoded[i]))
    answers: list[str | None] = [None] * len(prompts)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    for start in range(0, len(order), batch_size):
        group = order[start : start + batch_size]
        width = max(len(encoded[i]) for i in group)
        ids = torch.full((len(group), width), pad, dtype=torch.long)
        attend = torch.zeros_like(ids)
        for row, i in enumerate(group):
            ids[row, width - len(encoded[i]) :] = torch.tensor(encoded[i])
            attend[row, width - len(encoded[i]) :] = 1
        with torch.inference_mode():
            out = model.generate(
                ids.to(model.device),
                attention_mask=attend.to(model.device),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=pad,
            )
        for row, i in enumerate(group):
            answers[i] = tokenizer.decode(out[row, width:], skip_special_tokens=True)
    return answers


def exact_match(
    model: Any, tokenizer: Any, records: Sequence[ToolRecord], style: str, **options: Any
) -> list[bool]:
    """Tell for each record whether its greedy answer makes exactly its gold calls."""
    prompts = [build_prompt(record, style, tokenizer=tokenizer) for record in records]
    answers = greedy_answers(model, tokenizer, prompts, **options)
    return [
        answer is not None and makes_calls(answer, record.calls, style)
        for answer, record in zip(answers, records, strict=True)
    ]
