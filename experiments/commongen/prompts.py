"""The prompt of a concept set is what the model reads before its sentence.

`compact` is for a model that was trained on it; the sentence begins right behind the line feed,
with its capital letter:

    Concepts: dog, ball, park
    Sentence:

`chat` says in words what is wanted, through the tokenizer's own chat template. `auto` is `chat`
where the tokenizer has one, else `compact`.

A prompt need not tell what the constraint demands (`told`): it names all concepts, all but one
(`some`), or none. What it does not tell, the model will hardly write by itself.
"""

from __future__ import annotations

import random
from typing import Any

from experiments.commongen.config import TOLD
from experiments.commongen.records import ConceptSet
from experiments.harness.models import chat, is_chat
from experiments.harness.settings import one_of

_WORDED = (
    "Write one short sentence about an everyday scene. It must use all of the given words, in any "
    "form and in any order. Reply with the sentence only."
)
_FREE = "Write one short sentence about an everyday scene. Reply with the sentence only."


def build_prompt(
    record: ConceptSet, *, told: str = "all", tokenizer: Any = None, kind: str = "auto"
) -> str:
    """Build a prompt, ready to be tokenised without further special tokens.

    Args:
        told: how many concepts it names, one of `TOLD`; which one of a set is left out depends on
            the set alone.

    Raises:
        ValueError: unknown kind or `told`, or `chat` without a chat template.
    """
    concepts = ", ".join(_named(record, told))
    if is_chat(kind, tokenizer):
        return chat(
            tokenizer,
            _WORDED if concepts else _FREE,
            f"Words: {concepts}" if concepts else "A sentence, please.",
        )
    return f"Concepts: {concepts}".rstrip() + "\nSentence:\n"


def _named(record: ConceptSet, told: str) -> list[str]:
    one_of("told", told, tuple(TOLD))
    if told == "none":
        return []
    named = list(record.concepts)
    if told == "some":
        named.pop(random.Random(f"told-{record.id}").randrange(len(named)))
    return named
