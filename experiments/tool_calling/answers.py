"""Tool calls as text: writing, reading and comparing.

There are two styles for the same calls:

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
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from experiments.config import one_of
from experiments.tables import Metric
from gcd._languages.tools.call_formats import ALIASES, FORMATS
from gcd._languages.tools.tool_lists import is_schema, locate_parameters
from gcd._languages.values.python_values import is_python_name

STYLES = ("json", "python")
NATIVE = (*FORMATS, *ALIASES)
"""Models' own formats, which `gcd._replies` reads."""
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


def declaration_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the declaration of a tool, also from OpenAI's nested `function`."""
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


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


PARSES = Metric(
    "parses",
    "parses %",
    "the share of rows whose most probable answer is JSON, or Python calls in that style",
    interval=False,
)


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
