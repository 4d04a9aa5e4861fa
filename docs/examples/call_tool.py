"""A tool call: a valid list of calls within the budget, parsed into Python values."""

import smc

lm = smc.TransformersLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
tools = [
    {
        "name": "get_weather",
        "description": "Weather forecast for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    }
]
prompt = """Request: Will it rain in Oslo tomorrow?
Calls:
[{"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}}]
Request: The weather in Paris for 5 days, please.
Calls:
[{"name": "get_weather", "arguments": {"city": "Paris", "days": 5}}]
Request: What will the weather be in Rome over the next 3 days?
Calls:
"""
reply = smc.ask(lm, prompt, tools, max_tokens=30)
for call in reply.value:
    print(call["name"], call["arguments"])
low, high = reply.confidence_interval
print(f"probability: from {low:.2f} to {high:.2f}, {reply.reliability.label}")
