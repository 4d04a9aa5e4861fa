"""A language model is whatever answers what the sampler asks: these two protocols.

Two parts.  A `LanguageModel` turns prompts into token ids and reads them, once each.  It hands back
`Rows`: the prefixes in progress, one per row, with whatever the model remembers of them (a KV
cache).  A row can be extended by one token or several, copied, dropped, or cut back:

    rows, log_p = lm.prefill(prompts)        log p(x_1 | prompt), one row per prompt
    rows.reorder([0, 0, 0, 1, 1])            three copies of row 0, two of row 1
    log_p = rows.extend(runs, lengths)       log p(x_{t+1} | prompt, x_<=t) after each token x_t
    rows.truncate(lengths)                   forget all but the first `lengths` generated tokens

`reorder` is copying, resampling and compaction in one.  Log-probabilities are those at temperature
one; the sampler applies its own temperature.  Prompts are never cut: one that does not fit is
refused before any work (`check_prompts`).
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcd.errors import PickledError
from gcd.tokens.vocabulary import Vocabulary

Prompt = str | Sequence[int]
"""Text, encoded by the model's tokenizer with its own special tokens, or token ids as they are."""


def of_example(name: int | None) -> str:
    """Say in a message which example is meant; nothing where there is one alone (None)."""
    return "" if name is None else f" of example {name}"


class PromptTooLongError(PickledError):
    """A prompt that leaves too little of the model's context for the answer.

    Attributes:
        example: which prompt; None if there was one alone.
        length: tokens in the prompt.
        budget: tokens that the answer may take.
        context: tokens that the model can attend to.
    """

    def __init__(self, example: int | None, length: int, budget: int, context: int) -> None:
        self.example = example
        self.length = length
        self.budget = budget
        self.context = context
        super().__init__(
            f"the prompt{of_example(example)} has {length} tokens and its answer up to {budget}, "
            f"but the model's context holds {context}; shorten the prompt or lower the budget"
        )


@runtime_checkable
class Rows(Protocol):
    """R prefixes in progress, each `prompt + generated tokens`; they change in place."""

    def extend(self, runs: Int[Tensor, "R T"], lengths: Int[Tensor, "R"]) -> Float[Tensor, "R T V"]:
        """Append to row r the first `lengths[r]` tokens of `runs[r]`; none where that is 0.

        Returns:
            log p(next token | row up to and including runs[r, t]) for t < lengths[r]; what lies
            past a run's length is undefined, as is what follows a token of probability zero.
        """
        ...

    def reorder(self, ancestors: Int[Tensor, "Q"]) -> None:
        """Make row q a copy of what was row `ancestors[q]`; Q may differ from R."""
        ...

    def truncate(self, lengths: Int[Tensor, "R"]) -> None:
        """Keep of row r its prompt and the first `lengths[r]` of its generated tokens."""
        ...


@runtime_checkable
class LanguageModel(Protocol):
    """A distribution over token sequences, given a prompt.

    Optional: `reads_ahead`, whether `read_ahead="auto"` may read ahead with it (no, if it is
    missing); and `static_forward` (`smc.models.static_cache.StaticLanguageModel`).
    """

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens, as wide as the log-probabilities."""
        ...

    @property
    def context(self) -> int | None:
        """Most tokens that prompt and answer may have together; None for no limit."""
        ...

    @property
    def device(self) -> torch.device:
        """Where log-probabilities come out, and where the sampler does its work."""
        ...

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the prompt as token ids (see `token_ids`)."""
        ...

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Rows, Float[Tensor, "B V"]]:
        """Read the prompts, one row each; with them log p(first token | prompt)."""
        ...


def token_ids(prompt: Sequence[int]) -> list[int]:
    """Return a prompt that is given as token ids.

    Raises:
        ValueError: it is something else, such as the messages of a chat.
    """
    try:
        if not isinstance(prompt, bytes):
            return [operator.index(token) for token in prompt]
    except TypeError:
        pass
    raise ValueError(
        f"a prompt is {reprlib.repr(prompt)}; give text or token ids, of the messages of a chat by "
        "tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)"
    )


def check_ids(prompt: Sequence[int], size: int, example: int | None = None) -> None:
    """Refuse a prompt with a token id that isn't below `size`.

    Raises:
        ValueError: the message names the first such id.
    """
    if len(prompt) and not 0 <= min(prompt) <= max(prompt) < size:
        wrong = next(token for token in prompt if not 0 <= token < size)
        raise ValueError(
            f"the prompt{of_example(example)} has token {wrong}; the model knows 0 to {size - 1}"
        )


def check_length(
    prompt: Sequence[int], budget: int, context: int | None, example: int | None = None
) -> None:
    """Refuse a prompt (as token ids) that is empty or leaves too little room for the answer.

    Raises:
        PromptTooLongError: prompt and budget together exceed the model's context.
        ValueError: a prompt without tokens, from which no model can predict.
    """
    if not len(prompt):
        raise ValueError(
            f"the prompt{of_example(example)} has no tokens; give it at least one, "
            "such as the model's beginning-of-text token"
        )
    if context is not None and len(prompt) + budget > context:
        raise PromptTooLongError(example, len(prompt), budget, context)


def check_prompts(
    lm: LanguageModel,
    prompts: Sequence[Sequence[int]],
    budgets: Sequence[int],
    examples: Sequence[int | None] | None = None,
) -> None:
    """Refuse prompts (as token ids) that are empty or leave too little room for the answer.

    Raises:
        PromptTooLongError: prompt and budget together exceed the model's context.
        ValueError: a prompt without tokens, from which no model can predict.
    """
    if examples is None:
        examples = [None] if len(prompts) == 1 else range(len(prompts))
    for name, prompt, budget in zip(examples, prompts, budgets, strict=True):
        check_length(prompt, budget, lm.context, name)
