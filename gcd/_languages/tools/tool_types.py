"""Parser of tool lists in common forms; it returns a name and a JSON schema for each tool.

Wrappers around tools are removed first (`gcd._languages.tools.tool_wrappers`). Each tool is in one
of two forms (`docs/tools.md` has the details):

* **OpenAI** and compatible formats: `parameters` is a JSON schema of type object
  (`gcd._languages.tools.tool_schemas`). Anthropic, MCP and others have the schema under another key
  (`gcd._languages.tools.tool_keys`).
* **xLAM** and similar formats: `parameters` maps the name of each parameter to a description with a
  `type`. The type is a Python type as a string (`gcd._languages.tools.type_strings`), or the name
  of a type. If the tool has a list `required`, or any parameter of the tool list has `"required":
  true`, all other parameters are optional. Otherwise, only parameters that are marked as
  optional are.

The rest of a tool (`description`, `return`, examples, units) does not constrain its calls.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gcd._errors import ConstraintError, UnsupportedSchemaError, show
from gcd._languages.json_schema.keywords import HONORED, TYPES
from gcd._languages.json_schema.reader import escape
from gcd._languages.tools.tool_keys import (
    BY_NAME,
    check_keys,
    get_parameters,
    is_schema,
    schema_key,
    schema_path,
)
from gcd._languages.tools.tool_schemas import (
    add_keyword,
    says_optional,
    standard_schema,
    type_schema,
)
from gcd._languages.tools.tool_wrappers import Declaration, declarations
from gcd._languages.tools.type_names import Schema
from gcd._languages.tools.type_strings import parse_type

_DESCRIPTIONS = frozenset(
    ["type", "description", "title", "default", "example", "examples", "unit", "optional"]
)
# Matches "default is 10", "defaults to 'en'", "default: metric.", and "(default 10)", but not
# "no default is set".
_LITERAL = r"""[-+]?\.?\d | ['"`\[{] | (?:true|false|none|null)\b"""
_LAST_WORD = r"(?!\w+ed\b) [\w./-]+ \s* (?: $ | [,;)] | \.(?:\s|$) )"
_STATED_DEFAULT = re.compile(
    rf"""(?<!\bno\ ) \bdefault (?: s\ to\s | (?:\ value)? (?: \ is\s | \s*[:=] ) )
         \s* (?: {_LITERAL} | {_LAST_WORD} )
         | \(default\ (?: {_LITERAL} )""",
    re.IGNORECASE | re.VERBOSE,
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
    schema: Schema | bool
    required: bool


@dataclass(frozen=True)
class Tool:
    """Tool whose calls can be compiled to a language; returned by `gcd.parse_tools`.

    Attributes:
        name: the name, as written in a call.
        description: what the tool does, in words; may be empty.
        schema: the JSON schema of the arguments, of type object.
        pointer: JSON pointer of that schema in the tool list, for messages.
        flat: whether the tool list describes each parameter directly, without "properties".
    """

    name: str
    description: str
    schema: Schema
    pointer: str
    flat: bool

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters of the tool, in the order of their declaration."""
        required = self.schema.get("required") or ()
        properties = self.schema.get("properties") or {}
        return tuple(Parameter(n, schema, n in required) for n, schema in properties.items())


@dataclass(frozen=True)
class ToolList:
    """Parsed list of tools, and the unknown types of their parameters.

    Attributes:
        tools: the tools, in the order of the list.
        unknown_types: for each unknown type, the number of parameters with this type. Their values
            may be any JSON value.
    """

    tools: tuple[Tool, ...]
    unknown_types: Counter[str]


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
        UnsupportedSchemaError: a keyword or the type of a parameter is not supported.
    """
    found = declarations(tools)
    marked = any(
        isinstance(parameter, Mapping) and parameter.get("required") is True
        for declaration in found
        for parameter in _parameters(declaration.entry).values()
    )
    unknown: Counter[str] = Counter()
    parsed = [_tool(declaration, marked, unknown) for declaration in found]
    seen: dict[str, int] = {}
    for i, tool in enumerate(parsed):
        if tool.name in seen:
            raise ConstraintError(
                f"expected tools with different names, got {tool.name!r} for both tool "
                f"{seen[tool.name]} and tool {i}; rename one of them"
            )
        seen[tool.name] = i
    return ToolList(tuple(parsed), unknown)


def _parameters(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = get_parameters(entry)
    return parameters if isinstance(parameters, Mapping) else {}


def _tool(declaration: Declaration, marked: bool, unknown: Counter[str]) -> Tool:
    entry, inside, called = declaration
    name = entry["name"]
    check_keys(entry, name, inside)
    called = f"{called} ({name})"
    key, parameters = schema_key(entry) or BY_NAME, get_parameters(entry)
    if not isinstance(parameters, Mapping):
        raise ConstraintError(
            f"{called}: expected {key!r} to be an object, got {show(parameters)}; pass a "
            "JSON schema"
        )
    pointer = inside + schema_path(entry)
    flat = key == BY_NAME and not is_schema(parameters)
    if parameters and not flat and not is_schema(parameters):
        raise ConstraintError(
            f"{called}: expected {key!r} to be a JSON schema of type 'object', got "
            f"{show(parameters)}; correct it"
        )
    if flat:
        required = entry.get("required")
        schema = _flat_schema(parameters, required, called, pointer, marked, unknown)
    else:
        schema = _object_schema(parameters, called, pointer)
    description = entry.get("description")
    return Tool(name, description if isinstance(description, str) else "", schema, pointer, flat)


def _object_schema(parameters: Mapping[str, Any], called: str, pointer: str) -> Schema:
    kind = parameters.get("type", "object")
    if type_schema(kind, pointer) not in ({"type": "object"}, {"type": ["object"]}):
        raise ConstraintError(
            f"{called}: expected the schema of the parameters to have type 'object', got "
            f"{show(kind)}; wrap the schema in an object"
        )
    return standard_schema({**parameters, "type": "object"}, pointer)


def _flat_schema(
    parameters: Mapping[str, Any],
    required: Any,
    called: str,
    pointer: str,
    marked: bool,
    unknown: Counter[str],
) -> Schema:
    if required is not None and not (
        isinstance(required, (list, tuple)) and all(isinstance(n, str) for n in required)
    ):
        raise ConstraintError(
            f"{called}: expected 'required' to be a list of names, got {show(required)}; pass a "
            "list of str"
        )
    properties: Schema = {}
    mandatory = []
    for name, description in parameters.items():
        if not isinstance(name, str) or not isinstance(description, Mapping):
            raise ConstraintError(
                f"{called}: expected parameter {name!r} to be described by an object, got "
                f'{show(description)}; write {{"type": ...}}'
            )
        properties[name], optional = _parameter(description, f"{pointer}/{escape(name)}", unknown)
        says = description.get("required")
        if isinstance(says, list):  # the names of required members of an object
            says = None
        if required is not None:
            optional = optional or name not in required
        elif says is not None or marked:
            optional = optional or says is not True
        if not optional:
            mandatory.append(name)
    return {
        "type": "object",
        "properties": properties,
        "required": mandatory,
        "additionalProperties": False,
    }


def _parameter(
    description: Mapping[str, Any], pointer: str, unknown: Counter[str]
) -> tuple[Schema, bool]:
    """Return the schema of a parameter, and whether its own description makes it optional."""
    kind = description.get("type")
    optional = "default" in description or bool(
        _STATED_DEFAULT.search(str(description.get("description", "")))
    )
    optional = optional or says_optional(description, pointer)
    schema: Schema = {}
    if isinstance(kind, str) and kind not in TYPES:
        parsed = parse_type(kind)
        unknown.update(parsed.unknown)
        schema, optional = dict(parsed.schema), optional or parsed.optional
    elif isinstance(kind, (str, list)):
        schema = type_schema(kind, pointer)
    elif kind is not None:
        raise ConstraintError(
            f"expected the type at {pointer!r} to be a string, got {show(kind)}; write its name"
        )
    for keyword, value in description.items():
        if keyword in _DESCRIPTIONS or (keyword == "required" and not isinstance(value, list)):
            continue
        if keyword not in HONORED:
            raise UnsupportedSchemaError(
                str(keyword),
                pointer,
                "expected a keyword that describes a parameter; remove this one",
            )
        add_keyword(schema, keyword, value, description, pointer)
    return schema, optional
