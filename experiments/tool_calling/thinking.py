"""Thoughts before tool calls, `task.thinking`: answers that think first have to come to an end.

The prompt ends where thoughts begin, and the cue that prompts otherwise end with is a part of the
answer:

    Request: How will the weather be in Oslo over the next 5 days?
    Thoughts: They want the weather for five days in Oslo.
    Calls in JSON:
    [{"name": "get_weather", "arguments": {"city": "Oslo", "days": 5}}]

Nobody trained the models at hand to think like this, so what is measured is not whether thoughts
help, but whether an answer comes when they and the calls share one budget.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import gcd
from experiments.tool_calling.prompts import CUES

NONE, FREE = "none", "free"
_BEGIN = "Thoughts:"


def check_thinking(thinking: Any) -> None:
    """Refuse what is neither `none`, `free` nor a number of characters."""
    if thinking in (NONE, FREE):
        return
    if isinstance(thinking, bool) or not isinstance(thinking, int) or thinking < 1:
        raise ValueError(
            f"task.thinking must be none, free or the most characters, 1 or more, got {thinking!r}"
        )


def cue(style: str) -> str:
    """What ends the thoughts; the calls follow."""
    return f"\n{CUES[style]}"


@cache
def thoughts(style: str, thinking: str | int) -> gcd.Automaton:
    """Return all thoughts, with the cue at their end and nowhere before."""
    text = gcd.anything() if thinking == FREE else gcd.regex(rf"[\s\S]{{0,{thinking}}}")
    return gcd.Segment(text, until=cue(style)).text


def thinking_prompt(prompt: str, style: str) -> str:
    """Have a compact prompt end where thoughts begin.

    Raises:
        ValueError: it is of another form.
    """
    if not prompt.endswith(CUES[style]):
        raise ValueError(
            "task.thinking has prompts of the compact form alone; give model.prompt=compact"
        )
    return prompt.removesuffix(CUES[style]) + _BEGIN


def calls_of(answer: bytes, style: str) -> bytes:
    """Return what an answer has behind its thoughts; nothing if it never came there."""
    return answer.partition(cue(style).encode())[2]
