"""Tool-calling task, `+task=xlam`: methods, algorithms and particles on the same requests.

The tools of each record become an automaton over the model's tokens, each method samples answers
under it, and accuracy compares the calls with the gold calls.

**Records.** A record has a request, the available tools (as given; `conversion` makes their JSON
schemas), and the gold calls. Public data sets differ in format: xLAM stores tools and answers as
JSON strings, Hammer's conversions use `name`/`arguments` or `tool`/`parameters`, and a request may
be a dialogue. All formats become a `ToolRecord`.

**Prompts.** `compact` is the format that adapters are trained on: one signature per line (types,
defaults, a short description), the request, and the style. Descriptions of parameters are left out
to keep the prompt short, as names and types mostly suffice.

    get_weather(city: str, days: int = 3) - Weather forecast for a city
    book_table(restaurant: str, guests: int, time: str) - Book a table
    Request: How will the weather be in Oslo over the next 5 days?
    Calls in JSON:

`chat` is for instruction-tuned models: the complete tools as JSON with an instruction, in the
tokenizer's chat template. `auto` is `chat` if the tokenizer has a template, otherwise `compact`.

**Answers** are calls as text. There are two styles for the same calls:

- `json`: the output of `json.dumps(..., ensure_ascii=False)`,
  `[{"name": "f", "arguments": {"a": 1, "b": "x"}}, {"name": "g", "arguments": {}}]`
- `python`: `[f(a=1, b="x"), g()]`, with values as Python literals and strings in double quotes.
  Arguments whose names aren't Python identifiers go into a dictionary:
  `[f(a=1, **{"page-size": 2})]`.

Arguments are in the order of the tool's declaration, followed by undeclared arguments in the given
order. Equal calls with keys in the same order have exactly one text.

Reading accepts more than writing produces: any JSON whitespace and any Python literal. Nothing is
evaluated. Language models also write tool and argument names that aren't Python identifiers
(`createIn-AppMessage`, `from=1`, `max-results=3`), so a list of calls may not be a Python
expression. The reader therefore finds the names itself and uses `ast` only for the values.
"""

from __future__ import annotations

import ast
import json
import logging
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from omegaconf import DictConfig

import gcd
import smc
from experiments.config import (
    DataConfig,
    RecordConfig,
    at_least,
    budgets_in,
    distinct,
    one_of,
)
from experiments.evaluate import (
    Example,
    ReadResult,
    RecordHandler,
    check_fields,
    check_records,
    evaluate,
    identity,
    load_engine,
    read_file,
    read_hub,
    refuse_unwritable,
)
from experiments.models import ROOT, chat, dialogue, is_chat
from experiments.results import report
from experiments.tables import Metric
from experiments.tasks import ExperimentTask, Row, Run
from experiments.tool_calling.conversion import declaration_of, to_json_schema_tools
from gcd._automata.automaton import SPECIAL
from gcd._automata.horizon import refuse_unchecked
from gcd._languages.tools.call_formats import ALIASES, FORMATS, format_of
from gcd._languages.tools.tool_lists import is_schema, locate_parameters
from gcd._languages.values.python_values import is_python_name
from gcd._replies import read_reply

STYLES = ("json", "python")
NATIVE = (*FORMATS, *ALIASES)
"""Models' own formats, which `gcd._replies` reads."""
_WRITTEN_IN = {"json": "JSON", "python": "Python"}  # styles, in titles
_LOG = logging.getLogger(__name__)
T = TypeVar("T")

_SURROGATE = re.compile("[\ud800-\udfff]")
_FIRST = r"""[^\s(),='"\[\]{}]"""  # a name may contain quotes and brackets but not start with one
_NAME = {  # by the character behind it
    "(": re.compile(rf"\s*({_FIRST}[^(),]*?)\s*\("),
    "=": re.compile(rf"\s*({_FIRST}[^(),=]*?)\s*="),
}
_UNPACKED = re.compile(r"\s*\*\*\s*(?=\{)")
_END = re.compile("[,)]")


@dataclass(frozen=True)
class Call:
    """One call: the name of the tool and its arguments by parameter name."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def parameters_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the declared parameters of an xLAM or JSON Schema tool, by name."""
    parameters = get_parameters(tool)
    if is_schema(parameters):
        return dict(parameters.get("properties", {}))
    return dict(parameters) if isinstance(parameters, Mapping) else {}


def get_parameters(tool: Mapping[str, Any]) -> Any:
    """Return the value that describes the parameters of a tool: a JSON schema, or one by name."""
    return locate_parameters(declaration_of(tool))[1]


def name_of(tool: Mapping[str, Any]) -> str:
    """Return the tool's name."""
    return str(declaration_of(tool)["name"])


def in_declared_order(call: Call, tools: Sequence[Mapping[str, Any]]) -> Call:
    """Sort the arguments of a call by the declaration of the first tool of that name."""
    for tool in tools:
        if name_of(tool) == call.name:
            declared = [name for name in parameters_of(tool) if name in call.arguments]
            others = [name for name in call.arguments if name not in declared]
            return Call(call.name, {name: call.arguments[name] for name in declared + others})
    return call


def write_answer(calls: Sequence[Call], tools: Sequence[Mapping[str, Any]], style: str) -> str:
    """Write calls as text in one style.

    Raises:
        ValueError: the style is unknown, or a value isn't JSON (NaN, infinity, an object).
    """
    one_of("style", style, STYLES)
    ordered = [in_declared_order(call, tools) for call in calls]
    if style == "json":
        return _dumps([{"name": call.name, "arguments": call.arguments} for call in ordered])
    return "[" + ", ".join(_python_call(call) for call in ordered) + "]"


def parse_answer(text: str, style: str) -> tuple[Call, ...]:
    """Read the calls in a text.

    Raises:
        ValueError: the style is unknown, or the text isn't a list of calls in it.
    """
    one_of("style", style, STYLES)
    return _parse_json(text) if style == "json" else _parse_python(text)


def parses(text: str, style: str) -> bool:
    """Return whether a text is JSON or a list of Python calls, of any tools.

    This is the most that an engine without the schema can guarantee.
    """
    try:
        json.loads(text) if style == "json" else parse_answer(text, style)
    except ValueError:
        return False
    return True


def makes_calls(answer: str | bytes, calls: Sequence[Call], style: str) -> bool:
    """Return whether an answer makes exactly these calls, in any order."""
    try:
        said = parse_answer(answer if isinstance(answer, str) else answer.decode(), style)
    except ValueError:  # includes UnicodeDecodeError
        return False
    return same_calls(said, calls)


def same_calls(left: Sequence[Call], right: Sequence[Call]) -> bool:
    """Return whether two answers make the same multiset of calls, arguments compared as values.

    1 equals 1.0, and True doesn't equal 1. A tuple equals the list of its items. A set equals a
    list, tuple or set with the same items in any order, as JSON has no sets. The order of keys is
    ignored.
    """
    return _can_pair(
        left, right, lambda a, b: a.name == b.name and same_values(a.arguments, b.arguments)
    )


def _can_pair(left: Iterable[T], right: Iterable[T], same: Callable[[T, T], bool]) -> bool:
    """Return whether the items can be matched one to one with equal items."""
    rest = list(right)
    for item in left:
        match = next((i for i, other in enumerate(rest) if same(item, other)), None)
        if match is None:
            return False
        del rest[match]
    return not rest


def same_values(left: Any, right: Any) -> bool:
    """Return whether two arguments are equal by the rules of `same_calls`."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same_values(left[k], right[k]) for k in left)
    sequences = (list, tuple, set, frozenset)
    if isinstance(left, sequences) and isinstance(right, sequences):
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            return len(left) == len(right) and all(map(same_values, left, right))
        return _can_pair(left, right, same_values)
    return type(left) is type(right) and left == right


def _dumps(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"expected a JSON value, got {error}") from error
    # Lone surrogates can't be encoded in UTF-8; their escapes are valid in both styles.
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _python_call(call: Call) -> str:
    written = []
    for is_bare, group in groupby(call.arguments.items(), lambda item: is_python_name(item[0])):
        if is_bare:
            written += [f"{name}={_literal(value)}" for name, value in group]
        else:
            written.append(f"**{_literal(dict(group))}")
    return f"{call.name}({', '.join(written)})"


def _literal(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return _dumps(value)  # every JSON escape is valid in Python
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items())
        return "{" + pairs + "}"
    raise ValueError(f"expected a JSON value, got {value!r} of type {type(value).__name__}")


def _parse_json(text: str) -> tuple[Call, ...]:
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("the answer is nested too deeply") from error
    if not isinstance(value, list):
        raise ValueError(f"expected a list of calls, got {type(value).__name__}")
    calls = []
    for item in value:
        if not isinstance(item, dict) or item.keys() != {"name", "arguments"}:
            raise ValueError(f'expected a call as {{"name": ..., "arguments": ...}}, got {item!r}')
        if not isinstance(item["name"], str) or not isinstance(item["arguments"], dict):
            raise ValueError(
                f"expected a name that is a string, and arguments that are an object, got {item!r}"
            )
        calls.append(Call(item["name"], item["arguments"]))
    return tuple(calls)


def _parse_python(text: str) -> tuple[Call, ...]:
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        raise ValueError("expected a list of calls to begin with [ and to end with ]")
    rest, calls = text[1:-1].strip(), []
    more = bool(rest)
    while more:
        call, rest = _read_call(rest)
        calls.append(call)
        more = rest.startswith(",")
        rest = rest.removeprefix(",")
    if rest:
        raise ValueError(f"expected a comma between calls, got {rest!r}")
    return tuple(calls)


def _read_call(text: str) -> tuple[Call, str]:
    """Split off the call at the start of a text."""
    name, rest = _read_name(text, "(")
    arguments: dict[str, Any] = {}
    more = not rest.lstrip().startswith(")")
    while more:
        unpacked = _UNPACKED.match(rest)
        if unpacked:
            found, rest = _read_literal(rest[unpacked.end() :])
            if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
                raise ValueError(f"expected a dictionary of arguments after **, got {found!r}")
        else:
            parameter, rest = _read_name(rest, "=")
            value, rest = _read_literal(rest)
            found = {parameter: value}
        twice = arguments.keys() & found.keys()
        if twice:
            raise ValueError(f"expected each argument once, got {min(twice)!r} twice")
        arguments.update(found)
        more = rest.startswith(",")
        rest = rest.removeprefix(",")
    # The text ends with a bracket, so every literal is followed by a bracket or a comma.
    return Call(name, arguments), rest.lstrip()[1:].lstrip()


def _read_name(text: str, end: str) -> tuple[str, str]:
    """Split off the name at the start of a text, up to and including a delimiter."""
    found = _NAME[end].match(text)
    if found is None:
        raise ValueError(f"expected a name followed by {end}, got {text!r}")
    return found[1], text[found.end() :]


def _read_literal(text: str) -> tuple[Any, str]:
    """Split off the Python literal at the start of a text.

    The literal ends at the first comma or bracket before which it is complete; commas and brackets
    within strings or other brackets leave it incomplete.
    """
    for end in _END.finditer(text):
        try:
            return ast.literal_eval(text[: end.start()].strip()), text[end.start() :]
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    raise ValueError(f"expected a Python literal, got {text!r}")


# -- records

OWN = ROOT / "data" / "xlam" / "records_500_599.jsonl"
"""Records in the repository that no adapter or HMM is trained on."""
_NEEDS = "the fields query, tools and answers"


@dataclass(frozen=True)
class ToolRecord:
    """A request with its tools and the calls that answer it.

    Attributes:
        id: unique within the source.
        query: the request; a dialogue has one line `role: content` per turn.
        tools: the declarations as in the source.
        calls: the gold answer.
    """

    id: str
    query: str
    tools: tuple[dict[str, Any], ...]
    calls: tuple[Call, ...]


def read_xlam(path: str | Path) -> ReadResult[ToolRecord]:
    """Read the records of a file: JSON lines in xLAM's format, or a JSON list in any of Hammer's.

    Raises:
        DataError: the file doesn't exist, is named *.json and isn't a list, or has no well-formed
            record.
    """
    return read_file(path, record_of, _NEEDS, prefix=f"{Path(path).stem}-")


def record_of(row: Any, default_id: str) -> ToolRecord:
    """Make a record from a parsed row; raise a `ValueError` if it is malformed."""
    fields = check_fields(row, ("query", "tools", "answers"))
    tools, answers = (_parse(fields[key], key) for key in ("tools", "answers"))
    for tool in tools:
        _check_tool(tool)
    identity = fields.get("id")
    record = ToolRecord(
        id=default_id if identity is None else str(identity),
        query=_query_of(fields["query"]),
        tools=tuple(dict(tool) for tool in tools),
        calls=tuple(_call_of(answer) for answer in answers),
    )
    refuse_unwritable(record, [call.arguments for call in record.calls])
    return record


def _parse(value: Any, field: str) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"expected JSON in {field}, got {error}") from error
    if not isinstance(value, list):
        raise ValueError(f"expected {field} to be a list, got {type(value).__name__}")
    return value


def _check_tool(tool: Any) -> None:
    if not isinstance(tool, Mapping):
        raise ValueError(f"expected a tool to be an object, got {type(tool).__name__}")
    if not isinstance(declaration_of(tool).get("name"), str):
        raise ValueError(f"expected a tool with a name, got {str(tool)[:80]}")
    if not isinstance(get_parameters(tool), Mapping):
        raise ValueError(f"expected the parameters of {name_of(tool)!r} to be an object")


def _call_of(answer: Any) -> Call:
    if not isinstance(answer, Mapping):
        raise ValueError(f"expected an answer to be an object, got {type(answer).__name__}")
    name = answer.get("name", answer.get("tool"))
    arguments = answer.get("arguments", answer.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise ValueError(
            f"expected an answer with a name and an object of arguments, got {str(answer)[:80]}"
        )
    return Call(name, dict(arguments))


def _query_of(query: Any) -> str:
    if isinstance(query, str):
        text = query
    elif isinstance(query, list) and all(isinstance(turn, Mapping) for turn in query):
        text = "\n".join(f"{turn.get('role', 'user')}: {turn.get('content', '')}" for turn in query)
    else:
        raise ValueError(f"expected a query to be a text or a list, got {type(query).__name__}")
    if not text.strip():
        raise ValueError("expected a query, got an empty text")
    return text


def load_records(data: DataConfig, num_examples: int) -> ReadResult[ToolRecord]:
    """Load at most `num_examples` records after `data.offset`; malformed ones are skipped."""
    if data.hub is None:
        found = read_xlam(data.path or OWN)
    else:
        wanted = data.offset + num_examples
        found = read_hub(data.hub, data.split, record_of, _NEEDS, wanted)
    return found.part(data.offset, num_examples)


_DESCRIPTION_WORDS = 12
_ENUM_VALUES = 6
_DEFAULT_CHARACTERS = 20
CUES = {"json": "Calls in JSON:\n", "python": "Calls in Python:\n"}
_FORMATS = {
    "json": '[{"name": "tool_name", "arguments": {"parameter": "value"}}]',
    "python": '[tool_name(parameter="value", other=1)]',
}


def build_prompt(
    record: ToolRecord, style: str, *, tokenizer: Any = None, kind: str = "auto"
) -> str:
    """Build a prompt, to be tokenized without adding special tokens.

    A chat template that knows tools writes them, if the style is a model's own format.

    Raises:
        ValueError: the style or kind is unknown, or the kind is `chat` without a chat template.
    """
    one_of("style", style, STYLES + NATIVE)
    if not is_chat(kind, tokenizer):
        return compact_prompt(record, style)
    return _chat_prompt(record, style, tokenizer)


def compact_prompt(record: ToolRecord, style: str) -> str:
    """Build a prompt of signatures, the request, and the final cue."""
    lines = [signature(tool) for tool in record.tools]
    return "\n".join([*lines, f"Request: {record.query}", CUES.get(style, "Calls:\n")])


def signature(tool: Mapping[str, Any]) -> str:
    """Write a tool as `name(parameter: type, other: type = default) - description`."""
    parameters = parameters_of(tool)
    required = _list_required(tool)
    described = ", ".join(
        _parameter(name, declaration, required) for name, declaration in parameters.items()
    )
    words = str(declaration_of(tool).get("description") or "").split()
    text = " ".join(words[:_DESCRIPTION_WORDS])
    return f"{name_of(tool)}({described})" + (f" - {text}" if text else "")


def _list_required(tool: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names of required parameters; None if the tool doesn't list them."""
    parameters = get_parameters(tool)
    for schema in (parameters, declaration_of(tool)):
        if isinstance(schema, Mapping) and isinstance(schema.get("required"), list):
            return frozenset(str(name) for name in schema["required"])
    return frozenset() if is_schema(parameters) else None


def _parameter(name: str, declaration: Any, required: frozenset[str] | None) -> str:
    if not isinstance(declaration, Mapping):
        return f"{name}: {declaration}"
    kind = _type_name(declaration).removesuffix(", optional")
    optional = str(declaration.get("type")).endswith(", optional")
    optional = optional or (required is not None and name not in required)
    if "default" in declaration:
        text = json.dumps(declaration["default"], ensure_ascii=False, default=str)
        if len(text) <= _DEFAULT_CHARACTERS:
            return f"{name}: {kind} = {text}"
        optional = True
    return f"{name}?: {kind}" if optional else f"{name}: {kind}"


def _type_name(declaration: Mapping[str, Any]) -> str:
    options = declaration.get("enum")
    if isinstance(options, list) and options:
        shown = [json.dumps(option, ensure_ascii=False) for option in options[:_ENUM_VALUES]]
        return " | ".join(shown) + (" | ..." if len(options) > _ENUM_VALUES else "")
    kind = declaration.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(map(str, kind))
    items = declaration.get("items")
    if kind == "array" and isinstance(items, Mapping):
        return f"array[{_type_name(items)}]"
    return str(kind)


def _chat_prompt(record: ToolRecord, style: str, tokenizer: Any) -> str:
    if style in NATIVE and "tools" in str(tokenizer.chat_template):
        tools = [
            {"type": "function", "function": {"description": "", **tool}}
            for tool in to_json_schema_tools(record.tools)
        ]
        return dialogue(tokenizer, [{"role": "user", "content": record.query}], tools=tools)
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in record.tools)
    instruction = (
        "You answer requests by calling tools. Reply with nothing but a list of calls in this "
        f"form:\n{_FORMATS.get(style) or _example(style)}\nUse only these tools, and give their "
        f"parameters in the order in which they are listed:\n{listed}"
    )
    joined = f"{instruction}\n\nRequest: {record.query}"
    return chat(tokenizer, instruction, record.query, joined)


def _example(style: str) -> str:
    """Return a call in a model's own format."""
    only = {"properties": {"parameter": {"const": "value"}}, "required": ["parameter"]}
    tool = {"name": "tool_name", "parameters": {"type": "object", **only}}
    return gcd.tool_calls([tool], style=style).shortest().replace(SPECIAL, b"").decode()


# -- the task


@dataclass
class XlamConfig(RecordConfig):
    """Tool calling: methods x algorithms x particle counts on the same requests."""

    name: str = "xlam"
    styles: list[str] = field(default_factory=lambda: ["json"])  # every request in each style
    num_examples: int = 24
    algorithms: list[str] = field(default_factory=lambda: ["smc"])
    literals: str = "canonical"  # tokenization of literal text; "all": every tokenization
    max_calls: int | None = None  # None: limited by the budget only
    formats: str = "assert"  # see `gcd.tool_calls`; "ignore": as annotations
    max_bytes: int | None = None  # longest answer that is compiled; None: no limit


def check(config: DictConfig) -> None:
    """Check the settings; raise a `ValueError` with the invalid value and the remedy."""
    task = config.task
    distinct("task.styles", task.styles)
    for style in task.styles:
        one_of("task.styles", style, STYLES + NATIVE)
        if style in NATIVE and any("gold" in str(each) for each in budgets_in(task.budget)):
            raise ValueError(
                f"expected task.budget without gold in the style {style}, in which right answers "
                f"aren't written, got {task.budget}; use fewest:1.25"
            )
    check_records(config)
    at_least("task.max_calls", task.max_calls, 1)
    one_of("task.formats", task.formats, ("assert", "ignore"))
    at_least("task.max_bytes", task.max_bytes, 1)


def _read(config: DictConfig) -> ReadResult[ToolRecord]:
    return load_records(config.data, config.task.num_examples)


class Request(NamedTuple):
    """A record with the style of its calls; rows are per request."""

    record: ToolRecord
    style: str

    @property
    def id(self) -> str:
        """Id of the record; the style is a separate column."""
        return self.record.id

    @property
    def written(self) -> str:
        """Style of the calls after reading: those in a model's own format are read into JSON."""
        return self.style if self.style in STYLES else "json"


PARSES = Metric(
    "parses",
    "parses %",
    "the share of rows whose most probable answer is JSON, or Python calls in that style",
    interval=False,
)
METRICS = (PARSES,)
"""Metrics of tool calls; `record_handler` adds their columns to the rows."""


def record_handler(
    config: DictConfig, tokenizer: Any, unknown_types: Counter[str]
) -> RecordHandler:
    """Return the functions that define the task, and count unknown parameter types."""

    def language(request: Request) -> gcd.Automaton:
        record, style = request
        tools = to_json_schema_tools(record.tools, unknown_types)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calls = gcd.tool_calls(
                tools,
                style=style,
                max_calls=config.task.max_calls,
                formats=config.task.formats,
                max_bytes=config.task.max_bytes,
            )
        refuse_unchecked(calls.caveats, "an answer is valid by its constraint", "remove it")
        return calls

    def prompt(request: Request) -> str:
        return build_prompt(*request, tokenizer=tokenizer, kind=config.model.prompt)

    def read(request: Request, answer: bytes) -> bytes:
        """Return an answer in a model's own format as a list of calls in JSON."""
        if request.style in STYLES:
            return answer
        tools = gcd.parse_tools(to_json_schema_tools(request.record.tools)).tools
        try:
            return (read_reply(answer, format_of(request.style), tools, None).calls or "").encode()
        except ValueError:
            return answer

    def is_correct(request: Request, answer: bytes) -> bool:
        return makes_calls(read(request, answer), request.record.calls, request.written)

    def columns(example: Example, posterior: smc.Posterior) -> Row:
        request: Any = example.record
        answer = read(request, posterior.answers[0]) if posterior.answers else b""
        return {
            "style": request.style,
            "gold": gold(request),
            "parses": parses(answer.decode(errors="replace"), request.written),
        }

    def gold(request: Request) -> str:
        return write_answer(request.record.calls, request.record.tools, request.written)

    return RecordHandler(
        language=language,
        prompt=prompt,
        is_correct=is_correct,
        columns=columns,
        gold=gold,
    )


def _run(run: Run, read: ReadResult[ToolRecord]) -> None:
    """Compile the constraints, sample the missing rows, and report."""
    config, task = run.config, run.config.task
    lm, tokenizer = load_engine(config)
    unknown = Counter[str]()
    requests = tuple(Request(record, style) for style in task.styles for record in read.records)
    prepared, rows = evaluate(
        run,
        ReadResult(requests, read.skipped, read.total),
        record_handler(config, tokenizer, unknown),
        lm,
        tokenizer,
    )
    if unknown:
        listed = ", ".join(f"{name} ({n})" for name, n in unknown.most_common())
        _LOG.warning("parameter types read as any JSON value: %s", listed)
    source = config.data.path or config.data.hub or "xLAM 500 to 599"
    report(
        run,
        read,
        prepared,
        rows,
        title=(
            f"Tool calls: {len({each.record.id for each in prepared.examples})} requests "
            f"({source}), in {' and '.join(_WRITTEN_IN.get(s, s) for s in task.styles)}"
        ),
        metrics=METRICS,
        notes=[
            "Accuracies are in percent, with 95% bootstrap intervals over requests. Rows whose "
            "particles all died count as wrong."
        ],
        more={"unknown_types": dict(unknown)},
    )


TASK = ExperimentTask("xlam", XlamConfig, check, _read, identity, _run)
