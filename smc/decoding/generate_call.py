"""This module finds out, from within a call of `generate` of `transformers`, what it was asked for.

`generate` hands a logits processor the token ids so far and their scores, and nothing else: not how
many of the ids are prompt, nor how many rows belong to one prompt, nor when it will stop. Guessed
from the ids alone, a second prompt that goes on where the first answer stopped cannot be told from
the first answer, and drafts of assisted decoding look like neither. But the call is under way while
its processors work, so its variables are on the stack. Of all calls of `generate` there, the
outermost that was given this very processor is the user's; assistants are called further in.

A `custom_generate` is told more, but not of a streamer or an assistant, which `generate` leaves to
its own decoding methods; they are found in the same way.

What is read are arguments of `generate` and two numbers it computes of them. Should another version
of `transformers` name these differently, nothing is found, and a processor asks for what it needs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gcd.tokens.vocabulary import eos_ids_of
from smc.transformers_internals import generate_calls

_NEEDED = {"generation_config", "input_ids_length", "batch_size", "generation_mode"}
_ONE_TOKEN_A_STEP = {"greedy_search", "sample"}


class GenerateCall(NamedTuple):
    """A call of `generate` that is under way.

    Attributes:
        prompt_length: tokens of its prompts, padding included.
        num_prompts: how many there are, each with the same number of rows.
        max_length: tokens of prompt and answer together.
        temperature: by which scores are divided after the processors.
        eos_ids: the tokens at which it stops.
        plain: whether every row is extended by a token that its scores allow, as in greedy search
            and sampling; beams and drafts may be extended by others.
    """

    prompt_length: int
    num_prompts: int
    max_length: int
    temperature: float
    eos_ids: tuple[int, ...]
    plain: bool


def generate_call(processor: object) -> GenerateCall | None:
    """Return the call of `generate` that this processor was given to, or None outside of one."""
    found = None
    for names in generate_calls():
        given = any(each is processor for each in names.get("logits_processor") or ())
        found = names if given and names.keys() >= _NEEDED else found
    return None if found is None else _read(found)


def not_handed_on() -> dict[str, Any]:
    """Return streamer and assistant model, as far as given, of the call that is under way."""
    names = next(generate_calls(), {})
    given = {name: names.get(name) for name in ("streamer", "assistant_model")}
    return {name: value for name, value in given.items() if value is not None}


def passed_by_name() -> set[str]:
    """Return the names of settings that the call of `generate` under way was given one by one."""
    return set(next(generate_calls(), {}).get("kwargs") or ())


def _read(names: dict[str, Any]) -> GenerateCall:
    config = names["generation_config"]
    warps = config.do_sample and config.temperature is not None
    own_loop = names.get("custom_generate") is not None
    return GenerateCall(
        prompt_length=names["input_ids_length"],
        num_prompts=names["batch_size"],
        max_length=config.max_length,
        temperature=float(config.temperature) if warps else 1.0,
        eos_ids=eos_ids_of(config),
        plain=names["generation_mode"].value in _ONE_TOKEN_A_STEP and not own_loop,
    )
