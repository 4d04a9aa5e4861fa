"""Tasks say which prompts a language model answers, for an HMM to be distilled from its answers.

A task is one entry of `SOURCES`: how its prompts are made, and how the model card calls them. None
of their records may be among those that the task is measured on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from omegaconf import DictConfig

from experiments.tool_calling.answers import STYLES
from experiments.tool_calling.data import load_records
from experiments.tool_calling.examples import encode_prompt
from experiments.tool_calling.generator import generate


class PromptSource(NamedTuple):
    """The prompts of a task.

    Attributes:
        token_ids: makes at most so many prompts, by the configuration (`records`, `model.prompt`,
            `seed`) and the tokenizer, as the task itself would.
        words: what they are, by the configuration, after "answers to".
        settings: keys of the configuration that no other task reads.
    """

    token_ids: Callable[[DictConfig, int, Any], list[list[int]]]
    words: Callable[[DictConfig], str]
    settings: tuple[str, ...] = ()


def _tool_calls(config: DictConfig, num: int, tokenizer: Any) -> list[list[int]]:
    """Requests for tool calls; in both styles by turns, if asked for.

    Without a source of records these are the generator's training requests, so that its held-out
    tools stay unseen by the HMM too.
    """
    records = config.records
    if records.path is None and records.hub is None:
        found = generate(records.offset + num, config.seed, split="train")[records.offset :]
    else:
        found = list(load_records(records, num, config.seed).records)
    styles = STYLES if config.style == "both" else (config.style,)
    kind = config.model.prompt
    return [
        list(encode_prompt(record, styles[i % len(styles)], tokenizer, kind))
        for i, record in enumerate(found)
    ]


def _tool_calls_in_words(config: DictConfig) -> str:
    kind = config.records.path or config.records.hub or "the generator's training requests"
    styles = "JSON and Python" if config.style == "both" else config.style
    return f"{kind}, {styles} style"


SOURCES = {"xlam": PromptSource(_tool_calls, _tool_calls_in_words, ("style",))}
"""The prompts of each task, by the name that it has after `+task=`."""
