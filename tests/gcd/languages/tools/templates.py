"""Short chat templates that write calls as the models' own do, and where their format is described.

`f` is a function with a name and arguments; the templates are written from the descriptions, not
from the table of formats.
"""

from __future__ import annotations

_ALL = "{% for m in messages %}{% for c in m.tool_calls %}{% set f = c.function %}"
_JSON = "{{ f.arguments if f.arguments is string else f.arguments | tojson }}"
_MEMBERS = "{% for k, v in f.arguments | items %}"
_CALL = '{"name": "{{ f.name }}", "arguments": ' + _JSON + "}"
_CALL_OF_PARAMETERS = '{"name": "{{ f.name }}", "parameters": ' + _JSON + "}"

# Format: the page that describes it, and the part of a template for a call.
DESCRIBED = {
    "hermes": (
        "huggingface.co/Qwen/Qwen2.5-7B-Instruct, tokenizer_config.json",
        "<tool_call>\n" + _CALL + "\n</tool_call>",
    ),
    "qwen3_coder": (
        "huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct, chat_template.jinja",
        "<tool_call>\n<function={{ f.name }}>\n" + _MEMBERS + "<parameter={{ k }}>\n{{ v }}\n"
        "</parameter>\n{% endfor %}</function>\n</tool_call>",
    ),
    "llama3_json": (
        "github.com/meta-llama/llama-models, models/llama3_1/prompt_format.md",
        _CALL_OF_PARAMETERS,
    ),
    "pythonic": (
        "github.com/meta-llama/llama-models, models/llama4/prompt_format.md",
        "[{{ f.name }}(" + _MEMBERS + '{{ k }}="{{ v }}"{% endfor %})]',
    ),
    "mistral": (
        "github.com/mistralai/mistral-common, tokens/tokenizers/instruct.py, from version 11",
        "[TOOL_CALLS]{{ f.name }}[ARGS]" + _JSON,
    ),
    "mistral_json": (
        "docs.mistral.ai, function calling with raw tokens of version 3; calls of the model",
        "[TOOL_CALLS] [" + _CALL + "]",
    ),
    "deepseek_v3": (
        "huggingface.co/deepseek-ai/DeepSeek-V3-0324, tokenizer_config.json",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n"
        + _JSON
        + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": (
        "huggingface.co/deepseek-ai/DeepSeek-V3.1, README.md",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>"
        + _JSON
        + "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek_v32": (
        "huggingface.co/deepseek-ai/DeepSeek-V3.2, encoding/README.md",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="{{ f.name }}">\n'
        + _MEMBERS
        + '<｜DSML｜parameter name="{{ k }}" string="true">{{ v }}</｜DSML｜parameter>\n'
        "{% endfor %}</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    "glm45": (
        "huggingface.co/zai-org/GLM-4.5, chat_template.jinja",
        "<tool_call>{{ f.name }}\n" + _MEMBERS + "<arg_key>{{ k }}</arg_key>\n"
        "<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>",
    ),
    "kimi_k2": (
        "huggingface.co/moonshotai/Kimi-K2-Thinking, chat_template.jinja",
        "<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
        + _JSON
        + "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "openai": (
        "developers.openai.com/cookbook/articles/openai-harmony, function calling",
        "<|channel|>commentary to=functions.{{ f.name }} <|constrain|>json<|message|>"
        + _JSON
        + "<|call|>",
    ),
    "gemma4": (
        "ai.google.dev/gemma/docs, function calling of Gemma 4",
        "<|tool_call>call:{{ f.name }}{" + _MEMBERS + '{{ k }}:<|"|>{{ v }}<|"|>{% endfor %}}'
        "<tool_call|>",
    ),
    "functiongemma": (
        "ai.google.dev/gemma/docs/functiongemma/formatting-and-best-practices",
        "<start_function_call>call:{{ f.name }}{"
        + _MEMBERS
        + "{{ k }}:<escape>{{ v }}<escape>{% endfor %}}<end_function_call>",
    ),
    "granite": (
        "www.ibm.com/granite/docs, function calling of Granite 3",
        "<|tool_call|>[" + _CALL + "]",
    ),
    "cohere_command3": (
        "docs.cohere.com, prompt format of Command R7B and A",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "{{ f.name }}", "parameters": '
        + _JSON
        + "}\n]<|END_ACTION|>",
    ),
    "xlam": ("huggingface.co/Salesforce/Llama-xLAM-2-8b-fc-r, README.md", "[" + _CALL + "]"),
    "minimax_m2": (
        "huggingface.co/MiniMaxAI/MiniMax-M2, docs/tool_calling_guide.md",
        '<minimax:tool_call>\n<invoke name="{{ f.name }}">\n'
        + _MEMBERS
        + '<parameter name="{{ k }}">{{ v }}</parameter>\n{% endfor %}</invoke>\n'
        "</minimax:tool_call>",
    ),
    "phi4_mini_json": (
        "huggingface.co/microsoft/Phi-4-mini-instruct, README.md",
        "functools[" + _CALL + "]",
    ),
    "internlm": (
        "github.com/InternLM/InternLM, chat/chat_format.md",
        "<|action_start|><|plugin|>\n" + _CALL_OF_PARAMETERS + "<|action_end|>",
    ),
}


def template_for(name: str) -> str:
    """Return a chat template that writes calls, and the text of other messages, in a format."""
    call = DESCRIBED[name][1].replace("{{%", "{{ '{' }}{%").replace("%}}", "%}{{ '}' }}")
    return (
        _ALL + call + "{% endfor %}{% if not m.tool_calls %}{{ m.content }}{% endif %}{% endfor %}"
    )
