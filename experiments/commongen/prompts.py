"""The prompt of a concept set is what the model reads before its sentence.

`compact` is for a model that was trained on it; the sentence begins right behind the line feed,
with its capital letter:

    Concepts: dog, ball, park
    Sentence:

`chat` says in words what is wanted, through the tokenizer's own chat template. `auto` is `chat`
where the tokenizer has one, else `compact`.
"""

from __future__ import annotations

from typing import Any

from experiments.commongen.records import ConceptSet
from experiments.harness.prompts import chat, is_chat

_INSTRUCTION = (
    "Write one short sentence about an everyday scene. It must use all of the given words, in any "
    "form and in any order. Reply with the sentence only."
)


def build_prompt(record: ConceptSet, *, tokenizer: Any = None, kind: str = "auto") -> str:
    """Build a prompt, ready to be tokenised without further special tokens.

    Raises:
        ValueError: unknown kind, or `chat` without a chat template.
    """
    concepts = ", ".join(record.concepts)
    if is_chat(kind, tokenizer):
        return chat(tokenizer, _INSTRUCTION, f"Words: {concepts}")
    return f"Concepts: {concepts}\nSentence:\n"
