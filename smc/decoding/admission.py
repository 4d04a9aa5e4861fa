"""Admission of requests to a continuous batch: each is checked when it enters, alone.

The requests of a batch share forward passes. What one of them does wrong there (a token id beyond
the embedding, a prompt that no cache holds, a temperature of 0) stops the manager, and with it all
the others. So ids, lengths and sampling options are checked beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smc.models.protocol import check_ids, check_length, token_ids
from smc.models.suitability import context_of, num_embeddings, num_logits
from smc.settings import check_temperature, check_top_p, real, whole
from smc.transformers_internals import outside_of_batches


class Admission:
    """The limits that a model sets to requests.

    Args:
        model: a causal language model of transformers.

    Attributes:
        width: number of its logits.
        context: most tokens that prompt and answer may have together; None for no limit.
    """

    def __init__(self, model: Any) -> None:
        with outside_of_batches(model):
            self.width = num_logits(model)
        self.context = context_of(model)
        self._ids = num_embeddings(model) or self.width

    def prompt(self, prompt: Sequence[int]) -> list[int]:
        """Return the token ids of a prompt.

        Raises:
            ValueError: it is not a sequence of ids that the model knows.
        """
        ids = token_ids(prompt)
        check_ids(ids, self._ids)
        return ids

    def room(self, prompt: Sequence[int], budget: int) -> None:
        """Refuse a prompt that is empty, or leaves too little of the context for its answer.

        Raises:
            PromptTooLongError: prompt and budget together exceed the context.
            ValueError: the prompt is empty.
        """
        check_length(prompt, budget, self.context)

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return a request's options, numbers in the types that the manager asks for.

        Raises:
            ValueError: one of them makes no sense.
        """
        found = dict(options)
        if found.get("temperature") is not None:
            found["temperature"] = check_temperature(real("temperature", found["temperature"]))
        if found.get("top_p") is not None:
            found["top_p"] = check_top_p(real("top_p", found["top_p"]))
        if found.get("top_k") is not None:
            if whole("top_k", found["top_k"]) < 1:
                raise ValueError(f"top_k is {found['top_k']}; expected 1 or more")
            found["top_k"] = min(int(found["top_k"]), self.width)
        return found
