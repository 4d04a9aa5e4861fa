"""instructor: a client for a local model, whose first answer is already valid and finished.

Install it with `pip install instructor 'globally-constrained-decoding[models,pydantic]'`. Usage:

    client = from_lm(smc.TransformersLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct"))
    chair = client.create(response_model=Chair, messages=[...], max_tokens=40)
    chair, reply = client.create_with_completion(response_model=Chair, messages=..., max_tokens=40)
    print(reply.probability, reply.fields)

If Python validators reject the best answer, `smc.ask` returns the next one that was found.
"""

from __future__ import annotations

import json
from typing import Any

import smc

try:
    import instructor
    from pydantic import BaseModel, TypeAdapter
except ModuleNotFoundError as error:
    raise ImportError(f"expected {error.name}; run `pip install instructor`") from error


def from_lm(lm: smc.LanguageModel) -> instructor.Instructor:
    """Return instructor's client of a language model, as `instructor.from_openai` does."""

    def create(
        *, response_model: Any, messages: list[Any], max_tokens: int, max_retries: Any = 0,
        strict: bool = True, hooks: Any = None, context: Any = None, **options: Any,
    ) -> Any:  # fmt: skip
        if context is not None:
            raise ValueError(f"expected no context for validators, got {context!r}; omit it")
        schema = json.dumps(TypeAdapter(response_model).json_schema())
        shown = {"role": "system", "content": f"Answer in JSON that matches this schema: {schema}"}
        options.pop("model", None)
        reply = smc.ask(lm, [shown, *messages], response_model, max_tokens=max_tokens, **options)
        value = reply.value
        if isinstance(value, BaseModel):
            value._raw_response = reply  # where instructor puts the response
        if hooks is not None:
            hooks.emit_completion_response(reply)
        return value

    return instructor.Instructor(client=lm, create=create, mode=instructor.Mode.JSON)
