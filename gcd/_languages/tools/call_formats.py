"""Formats in which models write tool calls, as data, and the format of a model.

A format is a set of delimiters (`CallFormat`); `gcd._languages.tools.native_calls` reads it. The
facts in the table are those of the parsers of vLLM 0.32 (`vllm/tool_parsers`, `vllm/parser`), whose
names it uses, and of the models' chat templates. docs/tools.md lists which formats are tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gcd._errors import ConstraintError, show

ARGUMENTS = ("json", "python", "members", "bare")


@dataclass(frozen=True)
class CallFormat:
    """Delimiters of the tool calls of a model.

    Attributes:
        begin, between, end: text before, between and after the name and the arguments of a call.
            `{}` in one of the first two stands for the number of the call.
        first, separator, last: text before, between and after calls; the separator None permits
            one call only.
        arguments: "json" (an object), "python" (keyword arguments), "members" (as `member` says),
            or "bare" (an object without quotes around keys, with `quote` around strings).
        opened, closed: text around arguments that aren't "json".
        member: for "members", the text before a key, between the key and the value, and after the
            value. Strings are written as they are, other values in JSON. `{}` in the second text is
            "true" for strings and "false" for other values.
        comma: text between members.
        quote: for "bare", the text around strings.
        special: parts of the delimiters that are single tokens of the model. Only these tokens
            can write them: neither text nor arguments contain them.
        start: other texts that a parser takes for the beginning of calls, which text doesn't
            contain.
        lead: text with which an answer begins exactly if it consists of calls. None: text may come
            before the calls.
        reserved: other texts that arguments don't contain, because a parser would misread them.
        is_typed: whether a parser knows the types of members. If not, a string that reads as
            another value in JSON isn't written.
        names: regular expression of the names of tools that can be called.
        answer: text around an answer that isn't a call.
        thought: text around a thought, which may precede everything; None if there is none.
    """

    begin: str
    between: str
    end: str
    first: str = ""
    separator: str | None = ""
    last: str = ""
    arguments: str = "json"
    opened: str = ""
    closed: str = ""
    member: tuple[str, str, str] = ("", "", "")
    comma: str = ""
    quote: str = ""
    special: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    lead: str | None = None
    reserved: tuple[str, ...] = ()
    is_typed: bool = True
    names: str = r"[\w.-]+"
    answer: tuple[str, str] = ("", "")
    thought: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if self.arguments not in ARGUMENTS:
            raise ConstraintError(
                f"expected the arguments of a call to be one of {', '.join(ARGUMENTS)}, got "
                f"{show(self.arguments)}"
            )
        if not (self.special or self.start or self.lead):
            raise ConstraintError(
                "expected a format with `special`, `start` or `lead`, got none of them; "
                "without one, text could be mistaken for calls"
            )


_NAME, _ARGUMENTS, _PARAMETERS = '{"name": "', '", "arguments": ', '", "parameters": '
_DEEPSEEK = (
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)
_KIMI = (
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
_COHERE = (
    *("<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    *("<|START_THINKING|>", "<|END_THINKING|>"),
)
_XLAM = ("```", "</think>", "<tool_call>", "[TOOL_CALLS]")

# fmt: off
FORMATS = {
    "hermes": CallFormat(
        "<tool_call>\n" + _NAME, _ARGUMENTS, "}\n</tool_call>", separator="\n",
        start=("<tool_call>",), reserved=("<tool_call>", "</tool_call>"),
    ),
    "qwen3_coder": CallFormat(
        "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", separator="\n",
        arguments="members", member=("<parameter=", ">\n", "\n</parameter>\n"),
        special=("<tool_call>", "</tool_call>"), start=("<function=",),
        reserved=("<function=", "</function>", "<parameter=", "</parameter>"),
    ),
    "llama3_json": CallFormat(
        _NAME, _PARAMETERS, "}", separator="; ", lead="{", start=('"name"', "<|python_tag|>")
    ),
    "pythonic": CallFormat(
        "", "", "", first="[", separator=", ", last="]", arguments="python", lead="[",
        names=r"[a-zA-Z]\w*",
    ),
    "mistral": CallFormat("[TOOL_CALLS]", "[ARGS]", "", special=("[TOOL_CALLS]", "[ARGS]")),
    "mistral_json": CallFormat(
        _NAME, _ARGUMENTS, "}", first="[TOOL_CALLS] [", separator=", ", last="]",
        special=("[TOOL_CALLS]",),
    ),
    "deepseek_v3": CallFormat(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>",
        first="<｜tool▁calls▁begin｜>", separator="\n", last="<｜tool▁calls▁end｜>",
        special=_DEEPSEEK, reserved=("```",),
    ),
    "deepseek_v31": CallFormat(
        "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
        first="<｜tool▁calls▁begin｜>", last="<｜tool▁calls▁end｜>", special=_DEEPSEEK,
    ),
    "deepseek_v32": CallFormat(
        '<｜DSML｜invoke name="', '">\n', "</｜DSML｜invoke>\n",
        first="<｜DSML｜function_calls>\n", last="</｜DSML｜function_calls>", arguments="members",
        member=('<｜DSML｜parameter name="', '" string="{}">', "</｜DSML｜parameter>\n"),
        special=("｜DSML｜",),
    ),
    "glm45": CallFormat(
        "<tool_call>", "\n", "</tool_call>", separator="\n", arguments="members",
        member=("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        special=(
            "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
        ),
    ),
    "kimi_k2": CallFormat(
        "<|tool_call_begin|>functions.", ":{}<|tool_call_argument_begin|>", "<|tool_call_end|>",
        first="<|tool_calls_section_begin|>", last="<|tool_calls_section_end|>", special=_KIMI,
        names=r"[\w-]+",
    ),
    "openai": CallFormat(
        "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "",
        separator=None, lead="<|channel|>commentary", answer=("<|channel|>final<|message|>", ""),
        thought=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        special=("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>"),
    ),
    "gemma4": CallFormat(
        "<|tool_call>call:", "", "<tool_call|>", arguments="bare", opened="{", closed="}",
        quote='<|"|>', special=("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    "functiongemma": CallFormat(
        "<start_function_call>call:", "", "<end_function_call>", arguments="members",
        opened="{", closed="}", member=("", ":<escape>", "<escape>"), comma=",",
        special=("<start_function_call>", "<end_function_call>", "<escape>"),
        is_typed=False, names=r"\w+",
    ),
    "granite": CallFormat(
        _NAME, _ARGUMENTS, "}", first="<|tool_call|>[", separator=", ", last="]",
        special=("<|tool_call|>",), start=("<tool_call>",),
    ),
    "cohere_command3": CallFormat(
        '    {"tool_call_id": "{}", "tool_name": "', _PARAMETERS, "}",
        first="<|START_ACTION|>[\n", separator=",\n", last="\n]<|END_ACTION|>", special=_COHERE,
        lead="<|START_ACTION|>", answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        thought=("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    "xlam": CallFormat(
        _NAME, _ARGUMENTS, "}", first="[", separator=", ", last="]", lead="[",
        start=_XLAM, reserved=_XLAM,
    ),
    "minimax_m2": CallFormat(
        '<invoke name="', '">\n', "</invoke>\n", first="<minimax:tool_call>\n",
        last="</minimax:tool_call>", arguments="members",
        member=('<parameter name="', '">', "</parameter>\n"),
        special=("<minimax:tool_call>", "</minimax:tool_call>"), start=("<invoke name=",),
        reserved=("<parameter name=", "</parameter>", "<invoke name=", "</invoke>"),
    ),
    "phi4_mini_json": CallFormat(
        _NAME, _ARGUMENTS, "}", first="functools[", separator=", ", last="]",
        lead="functools[", start=("functools[",), reserved=("]",),
    ),
    "internlm": CallFormat(
        "<|action_start|><|plugin|>\n" + _NAME, _PARAMETERS, "}<|action_end|>", separator=None,
        special=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    ),
}
# fmt: on
"""Formats by the name of vLLM's parser; `mistral_json` is its "mistral" for older tokenizers."""
ALIASES = {"granite4": "hermes", "qwen3_json": "hermes", "qwen3_xml": "qwen3_coder"}
ALIASES |= {"llama4_json": "llama3_json", "llama4_pythonic": "pythonic", "glm47": "glm45"}

# Styles that are lists of calls, whatever the model.
LISTS = {
    "json": CallFormat("", "", "", "[", ", ", "]", lead="["),
    "python": CallFormat("", "", "", "[", ", ", "]", arguments="python", lead="["),
}

# Names of models, in lower case, and their formats; the first match counts.
MODELS = (
    (r"qwen-?3.*coder|qwen-?3\.[5-9]", "qwen3_coder"),
    (r"qwen-?(2\.5|3)|qwq|hermes|smollm", "hermes"), (r"xlam", "xlam"),
    (r"llama-?3", "llama3_json"), (r"llama-?4|toolace", "pythonic"),
    (r"mistral.*v0\.3|mistral-7b|mixtral|nemo", "mistral_json"),
    (r"mistral|magistral|devstral|ministral", "mistral"), (r"deepseek.*v3\.2", "deepseek_v32"),
    (r"deepseek.*v3\.1", "deepseek_v31"), (r"deepseek.*(v3|r1)", "deepseek_v3"),
    (r"glm-?4\.[5-9]|glm-?5", "glm45"), (r"kimi-?k2", "kimi_k2"), (r"gpt-?oss", "openai"),
    (r"function-?gemma", "functiongemma"), (r"gemma-?4", "gemma4"), (r"granite-?4", "hermes"),
    (r"granite-?3", "granite"), (r"command-?(a|r7b)", "cohere_command3"),
    (r"minimax-?m2", "minimax_m2"), (r"phi-?4-?mini", "phi4_mini_json"),
    (r"internlm", "internlm"),
)  # fmt: skip


def format_of(style: str | CallFormat) -> CallFormat:
    """Return the format with a name, or raise an error."""
    if isinstance(style, CallFormat):
        return style
    found = LISTS | FORMATS
    if not isinstance(style, str) or ALIASES.get(style, style) not in found:
        raise ConstraintError(
            'expected style to be "json", "python", a gcd.CallFormat or the name of a format '
            f"({', '.join([*FORMATS, *ALIASES])}), got {style!r}"
        )
    return found[ALIASES.get(style, style)]


def render_call(tokenizer: Any, tool: Mapping[str, Any]) -> str:
    """Return the text in which a chat template writes the call `f(x="y")` of a tool.

    Some templates expect the arguments as an object, others as text; some expect ids of nine
    characters, and some write the id as the name. So it is written several times.
    """
    question, texts, failure = {"role": "user", "content": "?"}, [], None
    ways = (({"x": "y"}, "call00000"), ('{"x": "y"}', "call00000"), ({"x": "y"}, "functions.f:0"))
    for arguments, number in ways:
        function = {"name": "f", "arguments": arguments}
        call = {"type": "function", "id": number, "function": function}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        options = {"tools": [tool], "tokenize": False}
        try:
            texts.append(tokenizer.apply_chat_template([question, answer], **options))
        except Exception as error:  # templates raise any kind of error
            failure = error
    if not texts:
        raise ConstraintError(
            f"expected a chat template that writes tool calls, got {type(failure).__name__}: "
            f"{failure}; pass the name of a format as style"
        )
    return "\n".join(texts)
