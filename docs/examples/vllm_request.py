"""vLLM: a finished answer in JSON within `max_tokens`.

Install the plugin with `pip install '.[vllm]'`; vLLM loads it without further settings.
"""

import json

from vllm import LLM, SamplingParams

schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "bio": {"type": "string"}},
    "required": ["name", "bio"],
}
llm = LLM("HuggingFaceTB/SmolLM2-135M-Instruct")
parameters = SamplingParams(
    max_tokens=24, temperature=0.7, extra_args={"gcd": json.dumps({"json_schema": schema})}
)
messages = [{"role": "user", "content": "Describe Ada Lovelace in JSON."}]
(output,) = llm.chat([messages], parameters)
answer = output.outputs[0]
print(answer.finish_reason, json.loads(answer.text))
