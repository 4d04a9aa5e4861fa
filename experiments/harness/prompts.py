"""A prompt is `compact`, or goes through the chat template of the tokenizer; `auto` is either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.checks import one_of
from experiments.harness.config import PROMPTS


class PromptError(ValueError):
    """A chat template refuses the messages of a record."""


def is_chat(kind: str, tokenizer: Any) -> bool:
    """Tell whether a kind of prompt (`model.prompt`) means chat for this tokenizer.

    Raises:
        ValueError: unknown kind, or `chat` without a chat template.
    """
    one_of("the kind of prompt", kind, PROMPTS)
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if kind == "chat" and not has_template:
        raise ValueError("this tokenizer has no chat template: use the prompt kind 'compact'")
    return kind != "compact" and has_template


def chat(tokenizer: Any, instruction: str, request: str, joined: str | None = None) -> str:
    """Write a dialogue in which the answer comes next, as the tokenizer's template has it.

    Args:
        tokenizer: with a chat template.
        instruction: for the system.
        request: of the user.
        joined: of the user alone, for templates that know no system; both in a row by default.
    """
    apart = [{"role": "system", "content": instruction}, {"role": "user", "content": request}]
    return dialogue(tokenizer, apart, joined)


def dialogue(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], joined: str | None = None
) -> str:
    """Write messages as the tokenizer's template has them, an answer to come next.

    Args:
        tokenizer: with a chat template.
        messages: each with `role` and `content`.
        joined: one message of the user instead of the first two, for templates that know no system;
            both in a row by default.

    Raises:
        PromptError: the template refuses them, without a system too.
    """
    from jinja2 import TemplateError  # which compact prompts need not wait for

    def write(these: Sequence[Mapping[str, str]]) -> str:
        return str(tokenizer.apply_chat_template(these, tokenize=False, add_generation_prompt=True))

    try:
        try:
            return write(messages)
        except TemplateError:  # some templates know no system role
            if [message["role"] for message in messages[:2]] != ["system", "user"]:
                raise
            both = joined or f"{messages[0]['content']}\n\n{messages[1]['content']}"
            return write([{"role": "user", "content": both}, *messages[2:]])
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise PromptError(f"the chat template refuses messages of {roles}: {error}") from error


def encode(text: str, kind: str, tokenizer: Any) -> tuple[int, ...]:
    """Encode a prompt of a kind; a chat template writes its special tokens itself."""
    encoded = tokenizer(text, add_special_tokens=not is_chat(kind, tokenizer), verbose=False)
    return tuple(encoded["input_ids"])
