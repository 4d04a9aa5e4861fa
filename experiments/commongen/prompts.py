"""Prompts of concept sets.

`compact` is the format that adapters are trained on. The sentence follows the line feed and starts
with its capital letter:

    Concepts: dog, ball, park
    Sentence:

`chat` states the task in words, in the tokenizer's chat template. `auto` is `chat` if the tokenizer
has a template, otherwise `compact`.

A prompt can name all concepts, all but one (`some`), or none (`told`), although the constraint
always requires all of them. The model rarely writes a concept that the prompt doesn't name.
"""

from __future__ import annotations

import random
from typing import Any

from experiments.commongen.config import TOLD
from experiments.commongen.records import ConceptSet
from experiments.config import one_of
from experiments.models import chat, is_chat

_WORDED = (
    "Write one short sentence about an everyday scene. It must use all of the given words, in any "
    "form and in any order. Reply with the sentence only."
)
_FREE = "Write one short sentence about an everyday scene. Reply with the sentence only."


def build_prompt(
    record: ConceptSet, *, told: str = "all", tokenizer: Any = None, kind: str = "auto"
) -> str:
    """Build a prompt, to be tokenized without adding special tokens.

    Args:
        record: the concept set.
        tokenizer: tokenizer whose chat template is used.
        kind: "compact", "chat", or "auto".
        told: how many concepts to name, one of `TOLD`. The concept that "some" leaves out depends
            only on the set.

    Raises:
        ValueError: `kind` or `told` is unknown, or `kind` is `chat` without a chat template.
    """
    concepts = ", ".join(_choose_concepts(record, told))
    if is_chat(kind, tokenizer):
        return chat(
            tokenizer,
            _WORDED if concepts else _FREE,
            f"Words: {concepts}" if concepts else "A sentence, please.",
        )
    return f"Concepts: {concepts}".rstrip() + "\nSentence:\n"


def _choose_concepts(record: ConceptSet, told: str) -> list[str]:
    one_of("told", told, tuple(TOLD))
    if told == "none":
        return []
    named = list(record.concepts)
    if told == "some":
        named.pop(random.Random(f"told-{record.id}").randrange(len(named)))
    return named
