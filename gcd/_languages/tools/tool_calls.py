"""Compiler from a tool list to the byte language of its calls.

    style="json"      [{"name": "weather", "arguments": {"city": "Rome", "days": 3}}, ...]
    style="python"    [weather(city="Rome", days=3), ...]

    style="hermes"    <tool_call>{"name": "weather", "arguments": {...}}</tool_call>

All styles are built in the same steps. They differ in the notation of values
(`gcd._languages.values.json_values`, `gcd._languages.values.python_values`) and in the delimiters
of calls and arguments (`gcd._languages.tools.native_calls`). The language of the arguments is the
language that `gcd.json_schema` compiles from their schema. `docs/tools.md` specifies the texts.

By default, the number of calls is unbounded, because the token budget ends every answer. The
automaton then contains each tool only once. With `max_calls=n`, it contains n copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import Automaton
from gcd._automata.horizon import Caveat, warn_of_caveats
from gcd._errors import (
    ConstraintError,
    EmptyLanguageError,
    LimitError,
    WorkLimitError,
    at,
    check_count,
    show,
)
from gcd._languages.json_schema.document import Document
from gcd._languages.json_schema.emptiness import why_empty
from gcd._languages.json_schema.languages import Options, SchemaLanguages
from gcd._languages.json_schema.reader import warn_of
from gcd._languages.json_schema.schema import check_depth, check_options, refuse_validators
from gcd._languages.json_schema.upper_bounds import compile_or_relax, restrict_length
from gcd._languages.tools.call_formats import (
    FORMATS,
    LISTS,
    MODELS,
    CallFormat,
    format_of,
    render_call,
)
from gcd._languages.tools.native_calls import (
    frame_of,
    longest_call,
    native_call,
    notation_of,
    replies,
)
from gcd._languages.tools.tool_lists import Tool, parse_tools
from gcd._languages.values.notation import mark, separators
from gcd._languages.values.objects import Frame
from gcd._languages.values.python_values import PYTHON_BLANKS, is_python_name, why_no_python_name


def tool_calls(
    tools: Iterable[Any] | Mapping[str, Any],
    *,
    style: str | CallFormat = "json",
    choice: str = "required",
    answer: Automaton | None = None,
    min_calls: int = 1,
    max_calls: int | None = None,
    whitespace: str = "spaced",
    max_depth: int = 2,
    escapes: str = "canonical",
    formats: str = "assert",
    max_bytes: int | None = None,
    unknown: str = "warn",
    unsupported: str = "warn",
) -> Automaton:
    """Return the language of all lists of valid calls of the given tools, in a format of calls.

    Args:
        tools: each is a mapping in the format of OpenAI, Anthropic, MCP, Gemini or Bedrock, or a
            function, or a class that pydantic validates; see `gcd.parse_tools`.
        style: "json" or "python", a list of calls; the name of a model's own format, which is that
            of vLLM's parser, such as "hermes" or "mistral" (`gcd.call_format`); or a
            `gcd.CallFormat`.
        choice: "required": only calls. "auto": calls, or an answer without calls. Otherwise the
            name of the only tool to call.
        answer: for "auto", the language of answers without calls, such as
            `gcd.json_schema(schema)`. None: any text that isn't read as calls, which may also
            precede calls.
        min_calls, max_calls: minimum and maximum number of calls; `max_calls=None` means no limit.
        whitespace: "spaced", "compact" or "flexible", as in `gcd.json_schema`.
        max_depth: greatest nesting depth of values whose type is not described.
        escapes, formats, unknown, unsupported: as in `gcd.json_schema`, for the schemas of all
            tools.
        max_bytes: compile only answers of at most this many bytes in total, as in
            `gcd.json_schema`.

    Raises:
        UnsupportedSchemaError: a keyword in a schema is not supported.
        ConstraintError: the tool list is malformed, there is no such tool to choose, or a name
            cannot be written in the style.
        EmptyLanguageError: there is no valid answer, for example because there are no tools.
        StateLimitError: the automaton has more states than `gcd.state_limit` allows.

    Warns:
        IgnoredKeywordWarning: once, naming the keywords without effect.
        CaveatWarning: once, naming the keywords that the automaton doesn't enforce in every text.
    """
    form = format_of(style)
    is_list = form in LISTS.values()
    check_count("min_calls", min_calls, 0 if is_list else 1)
    if max_calls is not None:
        check_count("max_calls (at least min_calls)", max_calls, min_calls)
    check_depth(max_depth)
    check_options(whitespace, escapes, unknown, formats, max_bytes, unsupported)
    parsed = _chosen(parse_tools(tools).tools, choice)
    if answer is not None and choice != "auto":
        raise ConstraintError(
            f'expected an answer only with choice="auto", got choice={choice!r}; omit the answer'
        )
    notation = notation_of(form, whitespace, escapes)
    write: Callable[[Tool, SchemaLanguages], list[Automaton]] = partial(
        native_call, form, frame_of(form, notation)
    )
    if form == LISTS["json"]:
        write = _json_call
    elif is_list:
        equals = separators(whitespace, "=", after="", blanks=PYTHON_BLANKS).colon
        write = partial(_python_call, equals=equals)
    documents = [
        Document(
            tool.schema,
            base=tool.pointer,
            max_depth=max_depth,
            assert_formats=formats == "assert",
            refuse_unknown=unknown == "refuse",
        )
        for tool in parsed
    ]
    if unsupported == "refuse":
        for document in documents:
            refuse_validators(document)
    if unknown == "warn":
        warn_of(tuple(dict.fromkeys(each for d in documents for each in d.ignored)))

    options = Options(max_depth, max_bytes, unsupported)

    def build(counted: float) -> Automaton:
        graph = Assembly()
        start, end = graph.node(), graph.node()
        why_none = ""  # why the first tool without valid calls has none
        caveats: list[Caveat] = []
        sizes: list[int] = []
        for tool, document in zip(parsed, documents, strict=True):
            caveats += document.validators
            values = SchemaLanguages(document, notation, options._replace(counted=counted))
            try:
                parts = write(tool, values)
                if not why_none and any(part.is_empty for part in parts):
                    why_none = why_empty(values)
                graph.insert(start, end, *parts)
            except LimitError as error:
                if isinstance(error, WorkLimitError):
                    values.cache.blame_most_costly(error)
                error.add(f"; this is the tool {show(tool.name)}, of {len(documents)}")
                raise
            sizes.append(sum(part.num_states for part in parts))
            caveats += values.cache.caveats
        try:
            call = graph.build(start, end)
        except LimitError as error:
            largest = parsed[max(range(len(sizes)), key=sizes.__getitem__)]
            error.add(
                f"; the largest of {len(sizes)} tools is {show(largest.name)} {at(largest.pointer)}"
            )
            raise
        most = max_calls
        if max_bytes is not None and not call.is_empty:  # no such text exceeds a larger `max_calls`
            reach = max_bytes // len(call.shortest())
            if min_calls > reach:
                raise EmptyLanguageError(
                    f"at most {reach} calls fit into max_bytes={max_bytes} bytes, but min_calls is "
                    f"{min_calls}; raise max_bytes or lower min_calls"
                )
            most = None if most is not None and most > reach else most
        most = 1 if form.separator is None else most
        if (call.is_empty and min_calls) or (most is not None and most < min_calls):
            within = "" if max_bytes is None else f" within max_bytes={max_bytes}"
            reason = f"none of the tools can be called{within}{why_none}"
            reason = reason if parsed else "there are no tools; add one"
            raise EmptyLanguageError(f"no list of at least {min_calls} calls is valid: {reason}")
        language = replies(form, notation, call, (min_calls, most), choice == "auto", answer)
        return restrict_length(language, max_bytes, "a list of valid calls", caveats)

    bounds = [bound for document in documents for bound in document.bounds]
    found = compile_or_relax(build, bounds, unsupported=unsupported)
    if unsupported == "warn":
        warn_of_caveats(found.caveats)
    return found


def call_format(model: Any) -> str:
    """Return the name of the format in which a model writes tool calls.

    Args:
        model: a model's name, such as "Qwen/Qwen3-8B"; or a tokenizer of `transformers`, whose
            chat template writes a call. If the call is in no known format, the tokenizer's
            `name_or_path` decides.

    Raises:
        ConstraintError: the format is unknown, or the chat template raises an error.
    """
    name = model if isinstance(model, str) else str(getattr(model, "name_or_path", ""))
    found: dict[str, int] = {}
    if getattr(model, "chat_template", None):
        schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
        function = {"name": "f", "description": "", "parameters": schema}
        text = render_call(model, {"type": "function", "function": function})
        for each, form in FORMATS.items():
            calls = tool_calls([function], style=form, max_calls=1, whitespace="flexible")
            found[each] = longest_call(form, calls, text)
    best = max(found, key=found.__getitem__, default="")
    named = (form for pattern, form in MODELS if re.search(pattern, name.lower()))
    known = best if found.get(best) else next(named, None)
    if known is None:
        raise ConstraintError(
            f"expected a model whose format of tool calls is known, got {show(name)}; pass the "
            f"name of a format as style ({', '.join(FORMATS)}), or a gcd.CallFormat"
        )
    return known


def _chosen(tools: tuple[Tool, ...], choice: str) -> tuple[Tool, ...]:
    """Return the tools that may be called."""
    if choice in ("auto", "required"):
        return tools
    found = tuple(tool for tool in tools if tool.name == choice)
    if not found:
        raise ConstraintError(
            f'expected choice to be "auto", "required" or the name of a tool, got {show(choice)}; '
            f"the tools are {', '.join(tool.name for tool in tools) or 'none'}"
        )
    return found


def _json_call(tool: Tool, values: SchemaLanguages) -> list[Automaton]:
    """Return the languages of the parts of `{"name": "f", "arguments": {...}}`."""
    at = values.notation
    name = [at.spell("name"), at.colon, at.spell(tool.name)]
    arguments = [at.spell("arguments"), at.colon, values.language(values.document.root())]
    return [mark("{"), at.gap, *name, at.comma, *arguments, at.gap, mark("}")]


def _python_call(tool: Tool, values: SchemaLanguages, equals: Automaton) -> list[Automaton]:
    """Return the languages of the parts of `f(a=1, b="x", **{"page-size": 2})`."""
    _check_name(tool.name)
    frame = Frame("(", ")", equals, is_python_name)
    arguments = values.language(values.document.root(), frame=frame)
    return [Automaton.literal(tool.name), arguments]


def _check_name(name: str) -> None:
    """Raise `ConstraintError` unless a name is made of identifiers that Python reads unchanged."""
    for part in name.split("."):
        why = why_no_python_name(part)
        if why is not None:
            raise ConstraintError(
                "expected a tool name in Python style, made of identifiers joined by dots, got "
                f'{name!r}, in which {part!r} {why}; rename the tool, or use style="json"'
            )
