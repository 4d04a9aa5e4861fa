"""outlines: a `Generator` whose answers are finished within `max_tokens`, in batches and beams.

Install it with `pip install outlines 'globally-constrained-decoding[models]'`. Usage:

    model = outlines.from_transformers(hf_model, hf_tokenizer)
    generator = finished_generator(model, Chair, max_tokens=40)    # any output type but CFG
    text = generator("The red chair costs 20 dollars. As JSON:", max_new_tokens=40)
    texts = generator.batch(prompts, max_new_tokens=40)            # the same number everywhere
"""

from __future__ import annotations

import json
from typing import Any

import gcd
import smc

try:
    import outlines
    from outlines.types import JsonSchema
    from outlines.types.dsl import python_types_to_terms, to_regex
except ModuleNotFoundError as error:
    raise ImportError(f"expected {error.name}; run `pip install outlines`") from error


class FinishedProcessor(smc.BudgetLogitsProcessor):
    """The library's logits processor, with the method that outlines calls before each answer."""

    def reset(self) -> None:
        """Do nothing: the state follows from the tokens of each call."""


def finished_generator(model: outlines.Transformers, output_type: Any, max_tokens: int) -> Any:
    """Return outlines' generator for an output type, such as a pydantic model or a `Literal`."""
    term = python_types_to_terms(output_type)
    if isinstance(term, JsonSchema):
        language = gcd.json_schema(json.loads(term.schema), whitespace="spaced")
    else:
        language = gcd.regex(to_regex(term))
    lm = smc.TransformersLM(model.model, model.hf_tokenizer)
    processor = FinishedProcessor(gcd.lift(language, lm.vocabulary), max_tokens)
    return outlines.Generator(model, processor=processor)
