"""Reader of tool lists in the forms of providers: the name and the JSON schema of each tool.

Wrappers around tools are recognized by their keys, and removed:

    {"tools": [...]}, {"toolConfig": {"tools": [...]}}, {"functions": [...]}    a list with a name
    {"result": {"tools": [...]}}                             MCP's answer to `tools/list`
    {"function_declarations": [...]}                         Gemini: several tools in one object
    {"type": "function", "function": {...}}                  OpenAI's chat completions
    {"toolSpec": {...}}                                      Bedrock

The arguments of a tool are described by a JSON schema of type object under one of these keys:

    parameters              OpenAI, Gemini
    parametersJsonSchema    Gemini
    input_schema            Anthropic
    inputSchema             MCP; Bedrock: {"json": a JSON schema}

A tool without any of them has no arguments. If a schema were under another key, such as a
misspelled `paramters`, it would be ignored without notice. So an error names every other key that
may contain a schema, unless it is a known key for something else, such as the tool's result.

Tools that a provider runs itself, such as a web search, are an error too, because their calls can't
be constrained. Functions and classes become tools of their names. The rest of a tool
(`description`, examples, units) does not constrain its calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from gcd._errors import ConstraintError, UnsupportedSchemaError, at, show
from gcd._languages.json_schema.schema import read_class
from gcd._support.optional import missing

_PARAMETERS = "parameters"
_USUAL = (_PARAMETERS, "input_schema", "inputSchema")
_KEYS = (*_USUAL, "parametersJsonSchema", "parameters_json_schema")
_INNER = "json"  # Bedrock's key inside `inputSchema`
# Keys that don't constrain the calls of a tool, although they may contain a schema.
_UNCONSTRAINING = frozenset(
    [
        *("outputSchema", "output_schema", "return", "returns", "response", "responseJsonSchema"),
        *("response_json_schema", "annotations", "cache_control", "examples", "input_examples"),
        *("metadata", "_meta"),
    ]
)
_SCHEMA_WORDS = ("properties", "$defs", "$schema", "definitions", "allOf", "anyOf", "$ref")
# Beginnings of the names of types, in JSON Schema and in other languages.
_TYPE = re.compile("(?i)str|int|num|float|double|bool|list|dict|array|object|tuple|set|null|any")

_LISTS = ("tools", "functions")
_CONFIGS = ("toolConfig", "tool_config", "result")
_SEVERAL = ("function_declarations", "functionDeclarations")
CONTAINERS = (*_LISTS, *_CONFIGS, *_SEVERAL)
"""Keys of an object under which there are tools, or another such object."""
_SINGLE = ("function", "toolSpec", "tool_spec")
_MARKS = ("cachePoint", "cache_point")  # Bedrock's cache marks, which may occur between tools
_RUN_ELSEWHERE = (
    "remove it if the provider runs the tool itself, because its calls can't be constrained"
)


@dataclass(frozen=True)
class Parameter:
    """Parameter of a tool.

    Attributes:
        name: the name, as written in a call.
        schema: the JSON schema of its values.
        required: whether every call must have this parameter.
    """

    name: str
    schema: dict[str, Any] | bool
    required: bool


@dataclass(frozen=True)
class Tool:
    """Tool whose calls can be compiled to a language; returned by `gcd.parse_tools`.

    Attributes:
        name: the name, as written in a call.
        description: what the tool does, in words; may be empty.
        schema: the JSON schema of the arguments, of type object; its inner schemas are as given.
        pointer: JSON pointer of that schema in the tool list, for messages.
    """

    name: str
    description: str
    schema: dict[str, Any]
    pointer: str

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters of the tool, in the order of their declaration."""
        required = self.schema.get("required") or ()
        properties = self.schema.get("properties") or {}
        return tuple(Parameter(n, schema, n in required) for n, schema in properties.items())


@dataclass(frozen=True)
class ToolList:
    """Parsed list of tools.

    Attributes:
        tools: the tools, in the order of the list.
    """

    tools: tuple[Tool, ...]


def parse_tools(tools: Any) -> ToolList:
    """Parse a list of tools, in any supported form, into names and JSON schemas.

    Args:
        tools: any iterable of mappings, as `json.loads` returns them; or a mapping that has such a
            list under `tools`, `functions` or `function_declarations`. A tool may also be a class
            that pydantic validates, or a function. `transformers.utils.get_json_schema` reads the
            type hints and the docstring of a function.

    Raises:
        ConstraintError: a tool is malformed; the message gives its position in the list and the
            problem.
        UnsupportedSchemaError: a tool or its schema is under an unknown key.
    """
    parsed = [_tool(*declaration) for declaration in _declarations(tools)]
    seen: dict[str, int] = {}
    for i, tool in enumerate(parsed):
        if tool.name in seen:
            raise ConstraintError(
                f"expected tools with different names, got {tool.name!r} for both tool "
                f"{seen[tool.name]} and tool {i}; rename one of them"
            )
        seen[tool.name] = i
    return ToolList(tuple(parsed))


def _tool(entry: Mapping[str, Any], inside: str, called: str) -> Tool:
    """Return the tool of an object, given its JSON pointer and its label in messages."""
    name, description = entry["name"], entry.get("description")
    _check_keys(entry, name, inside)
    keys, parameters = locate_parameters(entry)
    if not is_schema(parameters):
        raise ConstraintError(
            f"tool {called} ({name}): expected {keys[0]!r} to be a JSON schema of type 'object', "
            f'got {show(parameters)}; write {{"type": "object", "properties": {{...}}}} '
            "(experiments/tool_calling/conversion.py converts the tools of xLAM)"
        )
    kind = parameters.get("type", "object")
    if [str(each).lower() for each in (kind if isinstance(kind, list) else [kind])] != ["object"]:
        raise ConstraintError(
            f"tool {called} ({name}): expected the schema of the parameters to have type 'object', "
            f'got {show(kind)}; for an object, write {{"type": "object", "properties": {{...}}}}'
        )
    schema = {**parameters, "type": "object"}
    if not parameters and keys in ((), (_PARAMETERS,)):
        schema |= {"properties": {}, "required": [], "additionalProperties": False}
    text = description if isinstance(description, str) else ""
    return Tool(name, text, schema, inside + "".join(f"/{key}" for key in keys or [_PARAMETERS]))


# -- wrappers around tools ----------------------------------------------------------------------


def _declarations(tools: Any) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Yield each object with a tool's name, its pointer, and a label, "3 (at '/tools/3')"."""
    count = 0
    for tool, pointer in _items(tools, ""):
        called = f"tool {count}"
        if callable(tool):
            tool = _class_tool(tool) if isinstance(tool, type) else _function_tool(tool, called)
        if not isinstance(tool, Mapping):
            raise ConstraintError(
                f"expected {called} to be an object, got {show(tool)}; pass a mapping, a function "
                "or a class"
            )
        if len(tool) == 1 and next(iter(tool)) in _MARKS:
            continue
        for entry, inside in _unwrap(tool, pointer, called):
            is_plain = inside in (f"/{count}", f"/{count}/function")
            label = str(count) if is_plain else f"{count} ({at(inside)})"
            _check_declaration(entry, f"tool {label}")
            yield entry, inside, label
            count += 1


def _class_tool(given: type) -> dict[str, Any]:
    """Return the tool whose arguments are the members of a class that pydantic validates."""
    schema = read_class(given)
    description = schema.get("description")
    return {"name": given.__name__, "description": description, "parameters": schema}


def _function_tool(given: Callable[..., Any], called: str) -> Any:
    """Return the tool that a chat template shows for a Python function."""
    name = getattr(given, "__name__", type(given).__name__)
    try:
        from transformers.utils import get_json_schema

        found = get_json_schema(given)
        return json.loads(json.dumps(found), object_hook=_permit_null)
    except ImportError as error:
        purpose = f"transformers.utils.get_json_schema, which reads the function {name!r},"
        raise ConstraintError(str(missing("transformers", "models", purpose))) from error
    except Exception as error:  # transformers has its own exceptions, and evaluates type hints
        reason = " ".join(str(error).split())
        raise ConstraintError(
            f"{called}: transformers.utils.get_json_schema cannot read the function {name!r}: "
            f'{reason}; correct the function, or pass {{"name": ..., "parameters": schema}}'
        ) from error


def _permit_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace `nullable`, by which transformers writes `Optional`, by a choice."""
    if schema.get("nullable") is not True:
        return schema
    del schema["nullable"]
    return {"anyOf": [schema, {"type": "null"}]}


def _items(tools: Any, pointer: str) -> Iterator[tuple[Any, str]]:
    """Yield the elements of a list, or of the list in a wrapper, with their JSON pointers."""
    if not isinstance(tools, Mapping):
        if isinstance(tools, (str, bytes)) or not isinstance(tools, Iterable):
            is_text = isinstance(tools, (str, bytes))
            remedy = "parse JSON text with json.loads" if is_text else "pass a list of tools"
            raise ConstraintError(
                f"expected the tools {at(pointer)} to be a list of objects, or an object that has "
                f"such a list under 'tools'; got {show(tools)}; {remedy}"
            )
        yield from ((tool, f"{pointer}/{i}") for i, tool in enumerate(tools))
        return
    lists = [key for key in _LISTS if tools.get(key) is not None]
    configs = [key for key in _CONFIGS if _has_list(tools.get(key))]
    if len(lists) + len(configs) > 1:
        raise ConstraintError(
            f"expected tools under one key, got {' and '.join(map(repr, lists + configs))}; "
            "keep one of them"
        )
    if lists or configs:
        (key,) = lists or configs
        yield from _items(tools[key], f"{pointer}/{key}")
    elif any(key in tools for key in _SEVERAL):
        yield tools, pointer
    else:
        is_tool = "name" in tools or any(key in tools for key in _SINGLE)
        remedy = "put the tool into a list" if is_tool else "pass a list of tools"
        raise ConstraintError(
            "expected tools to be a list of objects, or an object that has such a list under "
            f"'tools'; got {show(tools)}; {remedy}"
        )


def _has_list(config: Any) -> bool:
    """Return whether a value is an object with a list of tools, unlike Gemini's `toolConfig`."""
    return isinstance(config, Mapping) and config.get("tools") is not None


def _unwrap(
    tool: Mapping[str, Any], pointer: str, called: str
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the tools in one object of a list, which is often a tool itself."""
    wrappers = [key for key in (*_SEVERAL, *_SINGLE) if tool.get(key) is not None]
    if not wrappers:
        yield tool, pointer
        return
    key = wrappers[0]
    second = "name" if "name" in tool else wrappers[1] if wrappers[1:] else None
    if second is not None:
        raise ConstraintError(
            f"expected one tool in {called}, got both {second!r} and {key!r}; remove one of them"
        )
    inner, inside = tool[key], f"{pointer}/{key}"
    if key in _SINGLE:
        if not isinstance(inner, Mapping):
            raise ConstraintError(f"{called}: expected {key!r} to be an object, got {show(inner)}")
        _check_keys(tool, str(inner.get("name")), pointer, outside=key)
        yield inner, inside
        return
    for other in tool:
        if other != key and tool[other] is not None:
            raise UnsupportedSchemaError(
                str(other),
                pointer,
                f"expected no key beside {key!r}, got {other!r}; {_RUN_ELSEWHERE}",
            )
    if not isinstance(inner, list):
        raise ConstraintError(
            f"{called}: expected {key!r} to be a list of tools, got {show(inner)}"
        )
    for i, each in enumerate(inner):
        if not isinstance(each, Mapping):
            raise ConstraintError(
                f"expected the tool {at(f'{inside}/{i}')} to be an object, got {show(each)}"
            )
        yield each, f"{inside}/{i}"


def _check_declaration(entry: Mapping[str, Any], called: str) -> None:
    """Raise `ConstraintError` unless an object is a tool with a name."""
    name, kind = entry.get("name"), entry.get("type", "function")
    if isinstance(name, str) and name:
        return
    if "name" in entry:
        raise ConstraintError(
            f"{called}: expected 'name' to be a non-empty string, got {show(name)}"
        )
    for key in (*_SEVERAL, *_SINGLE):
        if key in entry:  # its value is None, because other values were unwrapped
            kinds = "a list of tools" if key in _SEVERAL else "an object"
            raise ConstraintError(
                f"{called}: expected {key!r} to be {kinds}, got {show(entry[key])}"
            )
    if kind == "custom":
        raise ConstraintError(
            f"{called} is of type 'custom', which takes free text instead of JSON arguments; "
            "remove it"
        )
    if isinstance(kind, str) and kind.lower() not in ("function", "object"):
        raise ConstraintError(
            f"expected a name for {called} of type {show(kind)}, got none; {_RUN_ELSEWHERE}"
        )
    if any(word in entry for word in _SCHEMA_WORDS):
        name = json.dumps(entry.get("title", "..."), default=str)
        raise ConstraintError(
            f"{called}: expected a tool with a name, got only a JSON schema; write "
            f'{{"name": {name}, "parameters": schema}}'
        )
    keys = ", ".join(repr(key) for key in list(entry)[:8]) or "no keys"
    raise ConstraintError(
        f"{called}: expected a tool with a name, or one under 'function', 'toolSpec' or "
        f"'function_declarations', got an object with {keys}; {_RUN_ELSEWHERE}"
    )


# -- keys of a tool -----------------------------------------------------------------------------


def locate_parameters(tool: Mapping[str, Any]) -> tuple[tuple[str, ...], Any]:
    """Return the keys of the schema of a tool's arguments, and that schema; or none and {}."""
    found = [key for key in _KEYS if tool.get(key) is not None]
    if len(found) > 1:
        raise ConstraintError(
            f"expected one key for the arguments of the tool {show(tool.get('name'))}, got both "
            f"{found[0]!r} and {found[1]!r}; remove one of them"
        )
    if not found:
        return (), {}
    key, value = found[0], tool[found[0]]
    is_wrapped = isinstance(value, Mapping) and value.keys() == {_INNER}
    if key in ("inputSchema", "input_schema") and is_wrapped and isinstance(value[_INNER], Mapping):
        return (key, _INNER), value[_INNER]
    return (key,), value


def is_schema(value: Any) -> bool:
    """Return whether a value is a JSON schema, rather than an object of parameters by name."""
    if not isinstance(value, Mapping):
        return False
    # A parameter may have the name of a keyword; its description then has a type.
    words = (word for word in _SCHEMA_WORDS if word in value and not _has_type(value[word]))
    return not value or isinstance(value.get("type"), (str, list)) or any(words)


def _has_type(description: Any) -> bool:
    return isinstance(description, Mapping) and isinstance(description.get("type"), (str, list))


def _check_keys(tool: Mapping[str, Any], name: str, pointer: str, *, outside: str = "") -> None:
    """Refuse a tool, or its wrapper under the key `outside`, with a schema at an unknown key."""
    for key, value in tool.items():
        if value is None or key in _UNCONSTRAINING or (outside and key == outside):
            continue
        if key in _KEYS:
            if outside:
                raise UnsupportedSchemaError(
                    key,
                    pointer,
                    f"expected the arguments of the tool {name!r} inside {outside!r}, got them "
                    f"beside {outside!r}; move them",
                )
            continue
        near = _near_miss(str(key))
        if near or _holds_schema(value):
            meant = f" (did you mean {near!r}?)" if near else ""
            raise UnsupportedSchemaError(
                str(key),
                pointer,
                f"this key of a tool is unknown{meant}; put the arguments of {name!r} under "
                f"{', '.join(map(repr, _USUAL[:-1]))} or {_USUAL[-1]!r}, or remove this key",
            )
    kind = tool.get("type", "function")
    if not outside and kind != "function" and not locate_parameters(tool)[0]:
        raise ConstraintError(
            f"expected arguments for the tool {name!r} of type {show(kind)} at {pointer!r}, got "
            "none; put their schema under 'parameters', or remove the tool if its provider runs it"
        )


def _near_miss(key: str) -> str | None:
    lower = {name.lower(): name for name in reversed(_KEYS)}
    found = get_close_matches(key.lower(), lower, n=1, cutoff=0.75)
    return lower[found[0]] if found else None


def _holds_schema(value: Any) -> bool:
    """Return whether a value is a JSON schema, or an object or a list of JSON schemas."""
    inner = value if isinstance(value, list) else []
    if isinstance(value, Mapping):
        inner = [value, *value.values()]
    return any(_is_like_schema(each) for each in inner)


def _is_like_schema(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    kinds = value.get("type")
    names = kinds if isinstance(kinds, list) else [kinds]
    is_typed = any(isinstance(name, str) and _TYPE.match(name) for name in names)
    return is_typed or any(word in value for word in _SCHEMA_WORDS)
