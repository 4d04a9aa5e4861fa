"""Access to the variables of the enclosing `generate` call of `transformers`.

`generate` passes a logits processor the token ids so far and the scores. It doesn't pass the prompt
length, the number of batch rows per prompt, or the length limit. The ids don't determine these: a
second prompt may be the first prompt with its answer, and assisted decoding passes drafts. But
`generate` is still running while it calls its processors, so its variables are on the call stack.
Among all `generate` calls on the stack, the outermost one that has this processor is the user's
call. The calls of assistants are nested inside it.

A `custom_generate` function gets more arguments. But `generate` passes the streamer and the
assistant only to its own decoding methods. The streamer and the assistant are therefore found on
the call stack, too.

Only arguments of `generate` and two numbers computed from them are read. If another version of
`transformers` renames them, the call isn't found, and a processor raises an error that asks for the
missing argument.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gcd import eos_ids_of
from smc._models.transformers_internals import generate_calls

_NEEDED = {"generation_config", "input_ids_length", "batch_size", "generation_mode"}
_ONE_TOKEN_A_STEP = {"greedy_search", "sample"}


class GenerateCall(NamedTuple):
    """Settings of a running `generate` call.

    Attributes:
        prompt_length: number of tokens of the prompts, including padding.
        num_prompts: number of prompts, each with the same number of batch rows.
        max_length: maximum number of tokens of prompt and answer together.
        temperature: number by which `generate` divides the scores after the processors.
        eos_ids: the tokens at which generation stops.
        plain: whether each row is always extended by a token that its scores allow, as in greedy
            search and sampling. Beam search and drafts may extend a row by other tokens.
    """

    prompt_length: int
    num_prompts: int
    max_length: int
    temperature: float
    eos_ids: tuple[int, ...]
    plain: bool


def generate_call(processor: object) -> GenerateCall | None:
    """Return the running `generate` call that has this processor; None outside of `generate`."""
    found = None
    for names in generate_calls():
        given = any(each is processor for each in names.get("logits_processor") or ())
        found = names if given and names.keys() >= _NEEDED else found
    return None if found is None else _parse(found)


def extra_arguments() -> dict[str, Any]:
    """Return the streamer and the assistant model of the running call, if they were passed."""
    names = next(generate_calls(), {})
    given = {name: names.get(name) for name in ("streamer", "assistant_model")}
    return {name: value for name, value in given.items() if value is not None}


def list_passed() -> set[str]:
    """Return the names of settings that were passed to the running call as keyword arguments."""
    return set(next(generate_calls(), {}).get("kwargs") or ())


def _parse(names: dict[str, Any]) -> GenerateCall:
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
