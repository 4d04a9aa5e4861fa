"""Removal of the wrappers that providers put around tools.

    {"tools": [...]}, {"toolConfig": {"tools": [...]}}, {"functions": [...]}    a list with a name
    {"result": {"tools": [...]}}                             MCP's answer to `tools/list`
    {"function_declarations": [...]}                         Gemini: several tools in one object
    {"type": "function", "function": {...}}                  OpenAI's chat completions
    {"toolSpec": {...}}                                      Bedrock

Wrappers are recognized by their keys. An object that is neither a wrapper nor a tool raises an
error that lists its keys. Tools that a provider runs itself, such as a web search, also raise an
error, because their calls can't be constrained. Functions and classes become tools of their names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gcd._errors import ConstraintError, UnsupportedSchemaError, at, show
from gcd._languages.json_schema.schema import read_class
from gcd._languages.tools.tool_keys import SCHEMA_WORDS, check_keys
from gcd._support.optional import missing

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


class Declaration(NamedTuple):
    """Tool without its wrappers.

    Attributes:
        entry: the object that contains the tool's name.
        pointer: its JSON pointer in the input.
        called: its label in messages, such as "tool 3" or "tool 3 (at '/tools/3')".
    """

    entry: Mapping[str, Any]
    pointer: str
    called: str


def declarations(tools: Any) -> list[Declaration]:
    """Return the tools of a list, or of a wrapper around a list, in their order.

    Raises:
        ConstraintError: the input has another form; the message contains the expected form and the
            input.
        UnsupportedSchemaError: a tool or an argument schema is in an unsupported location.
    """
    found: list[Declaration] = []
    for tool, pointer in _items(tools, ""):
        called = f"tool {len(found)}"
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
            number = f"tool {len(found)}"
            is_plain = inside in (f"/{len(found)}", f"/{len(found)}/function")
            where = number if is_plain else f"{number} ({at(inside)})"
            _check_declaration(entry, where)
            found.append(Declaration(entry, inside, where))
    return found


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
    """Return whether a value is an object with a list of tools.

    Gemini's `toolConfig`, which may be beside `tools`, has no such list.
    """
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
        check_keys(tool, str(inner.get("name")), pointer, outside=key)
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
    if any(word in entry for word in SCHEMA_WORDS):
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
