"""Thoughts before tool calls (`task.thinking`): answers that share one budget with their thoughts.

The prompt ends where the thoughts begin, and the cue at the end of other prompts is part of the
answer:

    Request: How will the weather be in Oslo over the next 5 days?
    Thoughts: They want the weather for five days in Oslo.
    Calls in JSON:
    [{"name": "get_weather", "arguments": {"city": "Oslo", "days": 5}}]

The models here aren't trained to think in this format. The task measures whether answers finish
when thoughts and calls share one budget, and not whether thoughts help.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import gcd
from experiments.tool_calling.prompts import CUES

NONE, FREE = "none", "free"
_BEGIN = "Thoughts:"


def check_thinking(thinking: Any) -> None:
    """Refuse a value other than `none`, `free` or a number of characters."""
    if thinking in (NONE, FREE):
        return
    if isinstance(thinking, bool) or not isinstance(thinking, int) or thinking < 1:
        raise ValueError(
            "expected task.thinking to be none, free, or the maximum number of characters, at "
            f"least 1; got {thinking!r}"
        )


def cue(style: str) -> str:
    """Return the text between the thoughts and the calls."""
    return f"\n{CUES[style]}"


@cache
def thoughts(style: str, thinking: str | int) -> gcd.Automaton:
    """Return the language of thoughts, which have the cue only at their end."""
    text = gcd.anything() if thinking == FREE else gcd.regex(rf"[\s\S]{{0,{thinking}}}")
    return gcd.Segment(text, until=cue(style)).text


def thinking_prompt(prompt: str, style: str) -> str:
    """Replace the end of a compact prompt by the start of the thoughts.

    Raises:
        ValueError: the prompt has another format.
    """
    if not prompt.endswith(CUES[style]):
        raise ValueError(
            "expected compact prompts with task.thinking, got a chat prompt; give "
            "model.prompt=compact"
        )
    return prompt.removesuffix(CUES[style]) + _BEGIN


def calls_of(answer: bytes, style: str) -> bytes:
    """Return the calls after the thoughts of an answer; empty if the answer never reached them."""
    return answer.partition(cue(style).encode())[2]
