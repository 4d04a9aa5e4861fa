"""Validation of requests before they enter a continuous batch.

The requests of a batch share forward passes. A single invalid request would stop the manager and
all other requests. Such a request may have a token id outside of the input embedding, a prompt that
doesn't fit into any cache, or a temperature of 0. So ids, lengths and sampling options are checked
beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smc._inference.settings import check_temperature, check_top_p, real, whole
from smc._models.protocol import check_ids, check_length, token_ids
from smc._models.suitability import context_of, num_embeddings, num_logits
from smc._models.transformers_internals import outside_of_batches


class Admission:
    """The limits that a model imposes on requests, and checks of requests against them.

    Args:
        model: a causal language model of transformers.

    Attributes:
        width: number of logits.
        context: maximum number of tokens of prompt and answer together; None for no limit.
    """

    def __init__(self, model: Any) -> None:
        with outside_of_batches(model):
            self.width = num_logits(model)
        self.context = context_of(model)
        self._ids = num_embeddings(model) or self.width

    def prompt(self, prompt: Sequence[int]) -> list[int]:
        """Return the token ids of a prompt.

        Raises:
            ValueError: the prompt is not a sequence of the model's token ids.
        """
        ids = token_ids(prompt)
        check_ids(ids, self._ids)
        return ids

    def room(self, prompt: Sequence[int], budget: int) -> None:
        """Raise an error if a prompt is empty or doesn't leave enough context for its answer.

        Raises:
            PromptTooLongError: prompt and budget together exceed the model's context.
            ValueError: the prompt is empty.
        """
        check_length(prompt, budget, self.context)

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return a request's options, converted to the number types that the manager requires.

        Raises:
            ValueError: an option is invalid.
        """
        found = dict(options)
        if found.get("temperature") is not None:
            found["temperature"] = check_temperature(real("temperature", found["temperature"]))
        if found.get("top_p") is not None:
            found["top_p"] = check_top_p(real("top_p", found["top_p"]))
        if found.get("top_k") is not None:
            if whole("top_k", found["top_k"]) < 1:
                raise ValueError(f"expected top_k to be at least 1, got {found['top_k']}")
            found["top_k"] = min(int(found["top_k"]), self.width)
        return found
