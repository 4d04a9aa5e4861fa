"""Validation of the arguments of `smc.sample` and `smc.search`, before any forward pass."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from os import PathLike

from gcd import Automaton, ConstraintError, TokenAutomaton, Vocabulary, check_budget
from smc._models.protocol import (
    LanguageModel,
    Prompt,
    check_ids,
    check_prompts,
    of_example,
    token_ids,
)

_OPEN = re.compile(r"(<\|?(?:\w+:)?(?:think|thinking|thought)\|?>|\[THINK\]|◁think▷)\s*\Z")
"""Tags after which models write their thoughts, at the end of a prompt."""
_TAIL = 16
"""Number of a prompt's last tokens in which such a tag is sought."""


def check_model(lm: object) -> None:
    """Raise ValueError unless `lm` has the methods of a `smc.LanguageModel`."""
    if isinstance(lm, str | PathLike):
        raise ValueError(
            f"expected lm to be a smc.LanguageModel, got {reprlib.repr(lm)}; load a model with "
            "smc.TransformersLM.from_pretrained(name)"
        )
    if isinstance(lm, type) or not (hasattr(lm, "encode") and hasattr(lm, "prefill")):
        given = f"the class {lm.__name__}" if isinstance(lm, type) else type(lm).__name__
        raise ValueError(
            f"expected lm to be a smc.LanguageModel, got {given}; wrap a model of transformers "
            "with smc.TransformersLM(model, tokenizer)"
        )


def check_list(prompts: object) -> None:
    """Raise ValueError unless `prompts` is a list of prompts."""
    if isinstance(prompts, str):
        raise ValueError("expected a list of prompts, got a single string; pass [prompt]")
    if isinstance(prompts, Mapping):
        raise ValueError(
            f"expected a list of prompts, got a {type(prompts).__name__} with the keys "
            f"{', '.join(map(str, prompts))}; pass a list of texts, or a list of lists of token ids"
        )
    if not isinstance(prompts, Iterable) or not hasattr(prompts, "__len__"):
        raise ValueError(
            f"expected a list of prompts, got {type(prompts).__name__}; pass [prompt], or "
            "list(prompts)"
        )
    if any(isinstance(each, Integral) for each in prompts):
        raise ValueError("expected a list of prompts, got a list of token ids; pass [token_ids]")
    if any(isinstance(each, Mapping) and "role" in each for each in prompts):
        raise ValueError(
            "expected a list of prompts, got a list of messages, which is a single prompt; pass "
            "[messages] to smc.ask_all, or messages to smc.ask"
        )


def open_tag(lm: LanguageModel, prompt: Prompt) -> str | None:
    """Return the tag such as `<think>` with which a prompt ends; None if there is none."""
    if isinstance(prompt, str):
        text = prompt
    else:
        ids = token_ids(prompt)[-_TAIL:]
        check_ids(ids, lm.vocabulary.size)
        spelled = {index: tag.encode() for tag, index in lm.vocabulary.special_ids.items()}
        tokens = [spelled.get(each, lm.vocabulary.token_bytes[each]) for each in ids]
        text = b"".join(tokens).decode(errors="replace")
    found = _OPEN.search(text)
    return None if found is None else found[1]


def check_thoughts(lm: LanguageModel, prompt: Prompt) -> None:
    """Raise ValueError if a prompt ends in an open tag, after which the model thinks."""
    tag = open_tag(lm, prompt)
    if tag is not None:
        raise ValueError(
            f"expected a prompt after which the answer begins, got one that ends in an open "
            f"{tag}; append '{tag[0]}/{tag[1:]}' to its text, or in smc.ask pass thinking=200, or "
            'with messages chat_template_kwargs={"enable_thinking": False} if the template reads it'
        )


def check_lifted(automaton: object, example: int | None = None) -> None:
    """Raise ConstraintError unless a constraint is lifted to the tokens of a vocabulary."""
    if isinstance(automaton, TokenAutomaton):
        return
    made = "gcd.json_schema" if isinstance(automaton, Mapping) else "gcd.regex"
    given = "automaton" if isinstance(automaton, Automaton) else f"{made}(...)"
    raise ConstraintError(
        f"expected the constraint{of_example(example)} to be a TokenAutomaton, got "
        f"{type(automaton).__name__}; use gcd.lift({given}, lm.vocabulary)"
    )


def check_example(
    lm: LanguageModel,
    prompt: Sequence[int],
    automaton: TokenAutomaton,
    budget: int,
    example: int | None = None,
) -> None:
    """Raise an error if an example can't be sampled.

    Args:
        example: index of the example, for the error message; None for a single example.
    """
    check_ids(prompt, lm.vocabulary.size, example)
    _check_vocabulary(lm.vocabulary, automaton.vocabulary, example)
    check_budget(automaton, budget, "" if example is None else f"example {example}")
    check_prompts(lm, [prompt], [budget], [example])


def _check_vocabulary(model: Vocabulary, constraint: Vocabulary, example: int | None) -> None:
    """Raise an error unless all token ids mean the same in the constraint and in the model."""
    if model == constraint:
        return
    if model.size != constraint.size:
        what = f"the model has {model.size} tokens, the constraint has {constraint.size}"
    elif tuple(model.eos_ids) != tuple(constraint.eos_ids):
        what = f"the model's EOS ids are {model.eos_ids}, the constraint's are {constraint.eos_ids}"
    else:
        pairs = zip(model.token_bytes, constraint.token_bytes, strict=True)
        token = next(i for i, (a, b) in enumerate(pairs) if a != b)
        what = f"token {token} has other bytes in the model's vocabulary"
    raise ConstraintError(
        f"expected the constraint{of_example(example)} to be lifted to the model's vocabulary, "
        f"got another one: {what}; use gcd.lift(automaton, lm.vocabulary)"
    )
