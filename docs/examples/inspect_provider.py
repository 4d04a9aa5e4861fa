"""inspect_ai: the provider `gcd`, whose answers follow `response_schema` within `max_tokens`.

Install it with `pip install inspect-ai 'globally-constrained-decoding[models]'`. Usage:

    import inspect_ai, inspect_provider
    schema = ResponseSchema(name="chair", json_schema=json_schema(Chair))
    task = Task(dataset, solver=generate(response_schema=schema, max_tokens=40), scorer=...)
    inspect_ai.eval(task, model="gcd/HuggingFaceTB/SmolLM2-135M-Instruct")

A scorer finds the answer's probability in `state.output.metadata`. Nothing is drawn, so all epochs
have the same answer.
"""

from __future__ import annotations

from functools import partial

import smc

try:
    import anyio
    from inspect_ai.model import ChatMessage, GenerateConfig, ModelAPI, ModelOutput, modelapi
except ModuleNotFoundError as error:
    raise ImportError(f"expected {error.name}; run `pip install inspect-ai`") from error


@modelapi(name="gcd")
class FinishedAPI(ModelAPI):
    def __init__(self, model_name, base_url=None, api_key=None, config=None, **options) -> None:
        super().__init__(model_name, base_url, api_key, config=config or GenerateConfig())
        self.lm = smc.TransformersLM.from_pretrained(model_name, **options)

    def max_tokens(self) -> int:
        return 256

    def max_connections(self) -> int:
        return 1

    async def generate(
        self, input: list[ChatMessage], tools: list, tool_choice: object, config: GenerateConfig
    ) -> ModelOutput:
        schema = config.response_schema
        if tools or schema is None:
            raise ValueError(
                "expected a response_schema and no tools; use hf/... for other answers"
            )
        kind = schema.json_schema.model_dump(exclude_none=True)
        messages = [{"role": each.role, "content": each.text} for each in input]
        temperature = 1.0 if config.temperature is None else config.temperature
        ask = partial(smc.ask, max_tokens=config.max_tokens, temperature=temperature)
        reply = await anyio.to_thread.run_sync(ask, self.lm, messages, kind)
        content = reply.text or str(reply.value)  # `value` raises an error if there is no answer
        output = ModelOutput.from_content(self.model_name, content)
        best = {pointer: field.best for pointer, field in reply.fields.items() if field.is_leaf}
        output.metadata = {
            "probability": reply.probability,
            "confidence_interval": reply.confidence_interval,
            "fields": {pointer: [each.load(), each.interval] for pointer, each in best.items()},
        }
        return output
