"""Conversion of the tool lists of benchmarks to JSON Schema.

BFCL writes JSON schemas with other names of types, at any depth, and the keyword `optional`:

    {"type": "dict", "properties": {"at": {"type": "tuple", "items": {"type": "float"}},
                                    "note": {"type": "String", "optional": true}}}

xLAM and its relatives describe each parameter under its name. The type is such a name, or a Python
type, which is parsed but never evaluated:

    {"city": {"type": "str"}, "days": {"type": "int, optional"}, "at": {"type": "List[float]"}}

All names of `_NAMES` are known, in upper and lower case. A name only determines the kind of value:
the width of a Java integer is not a bound. Everything else in a schema is left unchanged.

A parameter of xLAM is optional in these cases:

* its type or another mark says so, or it has a default (also in words: "default is 10");
* the tool has a list `required` that lacks it;
* another parameter in the tool list has `"required": true`, and this one doesn't.

An unknown type of xLAM, such as `Callable[[float], float]`, stands for any JSON value. In a JSON
schema, it is an error.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gcd import ConstraintError, UnsupportedSchemaError
from gcd._languages.json_schema.keywords import (
    ANNOTATIONS,
    CONTAINER,
    DEFINITIONS,
    HONORED,
    LISTS,
    NAMED,
    SINGLE,
    TYPES,
)
from gcd._languages.tools.tool_lists import is_schema

Schema = dict[str, Any]

_NULL: Schema = {"type": "null"}
_NAMES: tuple[tuple[str, Schema], ...] = (
    ("string str", {"type": "string"}),
    ("char character", {"type": "string", "minLength": 1, "maxLength": 1}),
    ("integer int long short byte bigint biginteger", {"type": "integer"}),
    ("number float double bigdecimal", {"type": "number"}),
    ("boolean bool", {"type": "boolean"}),
    ("null none nonetype", _NULL),
    ("array list arraylist linkedlist vector collection", {"type": "array"}),
    ("sequence iterable queue deque stack", {"type": "array"}),
    ("tuple", {"type": "array", CONTAINER: "tuple"}),
    ("set frozenset hashset linkedhashset treeset", {"type": "array", CONTAINER: "set"}),
    ("object dict mapping map hashmap linkedhashmap treemap hashtable", {"type": "object"}),
    ("any", {}),
)
_SCHEMA_OF = {name: schema for names, schema in _NAMES for name in names.split()}
_MARKS = ("type", "optional", "unit")  # keys of a parameter that its schema doesn't have
_MAX_NESTING = 64  # gcd refuses schemas that are nested deeper
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


def declaration_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the declaration of a tool, also from OpenAI's nested `function`."""
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


def to_json_schema_tools(
    tools: Sequence[Mapping[str, Any]], unknown_types: Counter[str] | None = None
) -> list[dict[str, Any]]:
    """Return the tools of a benchmark's record with JSON schemas under `parameters`.

    Args:
        tools: mappings with a name and `parameters`, or such a mapping under `function`. Malformed
            tools are returned unchanged, for `gcd.tool_calls` to report.
        unknown_types: counter to which the unknown types of parameters are added.

    Raises:
        UnsupportedSchemaError: a type in a JSON schema, or a keyword of a parameter, is unknown.
        ConstraintError: two parts of a description contradict each other.
    """
    marked = any(
        isinstance(parameter, Mapping) and parameter.get("required") is True
        for tool in tools
        for parameter in _parameters(tool).values()
    )
    unknown_types = Counter() if unknown_types is None else unknown_types
    found = []
    for i, tool in enumerate(tools):
        inner, parameters = declaration_of(tool), _parameters(tool)
        pointer = f"/{i}/parameters" if inner is tool else f"/{i}/function/parameters"
        converted = dict(inner)
        if parameters and is_schema(parameters):
            converted["parameters"] = _standard(parameters, pointer)
        elif parameters:
            converted["parameters"] = _by_name(
                parameters, inner.get("required"), pointer, marked, unknown_types
            )
        found.append(converted if inner is tool else {**tool, "function": converted})
    return found


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description of a tool's parameters; empty if there is none or it is malformed."""
    found = declaration_of(tool).get("parameters")
    return found if isinstance(found, Mapping) else {}


def _join(pointer: str, key: object) -> str:
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


# -- parameters by name ---------------------------------------------------------------------------


def _by_name(
    parameters: Mapping[str, Any],
    required: Any,
    pointer: str,
    marked: bool,
    unknown_types: Counter[str],
) -> Schema:
    """Return the schema of all parameters of a tool."""
    if required is not None and not isinstance(required, list):
        raise ConstraintError(
            f"expected 'required' beside {pointer!r} to be a list of names, got {required!r}"
        )
    properties: Schema = {}
    mandatory = []
    for name, description in parameters.items():
        inside = _join(pointer, name)
        if not isinstance(description, Mapping):
            raise ConstraintError(
                f"expected the parameter {inside!r} to be described by an object, got "
                f'{description!r}; write {{"type": ...}}'
            )
        properties[name], optional = _parameter(description, inside, unknown_types)
        says = description.get("required")
        says = None if isinstance(says, list) else says  # required members of an object
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
    description: Mapping[str, Any], pointer: str, unknown_types: Counter[str]
) -> tuple[Schema, bool]:
    """Return the schema of a parameter, and whether its own description makes it optional."""
    kind = description.get("type")
    optional = _says_optional(description, pointer) or "default" in description
    optional = optional or bool(_STATED_DEFAULT.search(str(description.get("description", ""))))
    schema: Schema = {}
    if isinstance(kind, str):
        schema, may_lack, unknown = _parse(kind)
        unknown_types.update(unknown)
        optional = optional or may_lack
    elif kind is not None:
        schema = _type_schema(kind, pointer)
    for keyword, value in description.items():
        is_mark = keyword in _MARKS or (keyword == "required" and not isinstance(value, list))
        if not is_mark and keyword not in {*HONORED, *ANNOTATIONS}:
            raise UnsupportedSchemaError(
                str(keyword), pointer,
                "expected a keyword that describes a parameter; remove this one",
            )  # fmt: skip
        if not is_mark:
            _add(schema, keyword, value, description, pointer)
    return schema, optional


# -- JSON schemas with other types ----------------------------------------------------------------


def _standard(schema: Any, pointer: str, depth: int = 0) -> Any:
    """Return the standard JSON schema for a schema at some depth inside a tool's schema."""
    if not isinstance(schema, Mapping) or depth > _MAX_NESTING:
        return schema
    _check_optional(schema, pointer)
    found = _type_schema(schema["type"], pointer) if "type" in schema else {}
    for keyword, value in schema.items():
        if keyword not in ("type", "optional"):
            _add(found, keyword, value, schema, pointer, depth)
    return found


def _add(
    found: Schema,
    keyword: str,
    value: Any,
    schema: Mapping[str, Any],
    pointer: str,
    depth: int = 0,
) -> None:
    """Add a keyword of a schema to `found`, which already has the keywords of the schema's type."""
    inside, depth = _join(pointer, keyword), depth + 1
    if keyword in (*NAMED, *DEFINITIONS, "dependencies") and isinstance(value, Mapping):
        value = {k: _standard(each, _join(inside, k), depth) for k, each in value.items()}
    elif keyword in (*LISTS, "items") and isinstance(value, list):
        value = [_standard(each, f"{inside}/{i}", depth) for i, each in enumerate(value)]
    elif keyword in (*SINGLE, "additionalItems"):
        value = _standard(value, inside, depth)
    if found.setdefault(keyword, value) != value:
        raise ConstraintError(
            f"keyword {keyword!r} at {pointer!r} is {value!r}, but the type {schema['type']!r} "
            f"requires {found[keyword]!r}; keep one of them"
        )


def _type_schema(kind: Any, pointer: str) -> Schema:
    """Return the JSON schema for a value of `type`: the name of a type, or a list of names."""
    names = kind if isinstance(kind, list) else [kind]
    if not all(isinstance(name, str) for name in names) or set(names) <= set(TYPES):
        return {"type": kind}
    parsed = [_parse(name) for name in names]
    for name, (_, _, unknown) in zip(names, parsed, strict=True):
        if unknown:
            raise UnsupportedSchemaError(
                "type",
                pointer,
                f"the type {name!r} is unknown; use a Python type such as List[str], or one of "
                f"these names in lower or upper case: {', '.join(_SCHEMA_OF)}",
            )
    return _any_of([schema for schema, _, _ in parsed])


def _check_optional(schema: Mapping[str, Any], pointer: str) -> None:
    """Raise `ConstraintError` if a property is marked optional, but is also named by `required`.

    `required` alone decides which properties are required. `optional`, in a property or as a list
    of the names of properties, must agree with it.
    """
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return
    listed = schema.get("optional")
    for name, inner in properties.items():
        says = isinstance(inner, Mapping) and _says_optional(
            inner, _join(f"{pointer}/properties", name)
        )
        if name in required and (says or (isinstance(listed, list) and name in listed)):
            raise ConstraintError(
                f"the property {name!r} at {pointer!r} is marked optional, but 'required' also "
                "names it; remove one of the two"
            )


def _says_optional(schema: Mapping[str, Any], pointer: str) -> bool:
    """Return whether a property is marked as optional; BFCL also writes "True" for true."""
    says = schema.get("optional", False)
    if isinstance(says, list):  # the names of optional properties inside this one
        return False
    if str(says).lower() not in ("true", "false"):
        raise ConstraintError(
            f"expected keyword 'optional' at {pointer!r} to be true or false, got {says!r}"
        )
    return str(says).lower() == "true"


# -- Python types as texts ------------------------------------------------------------------------


def _parse(text: str) -> tuple[Schema, bool, list[str]]:
    """Return a type's schema, whether the parameter may be omitted, and the unknown types in it.

    The text is a Python type, and flags behind commas outside of brackets (`optional`, `default`).
    If it isn't a Python expression, it is an unknown type itself.
    """
    commas = (i for i, character in enumerate(text) if character == ",")
    end = next((i for i in commas if _is_balanced(text[:i])), len(text))
    flags = [flag.strip().lower() for flag in text[end:].split(",")]
    optional = any(flag.startswith(("optional", "default")) for flag in flags)
    unknown: list[str] = []
    try:
        schema = _schema(ast.parse(text[:end].strip(), mode="eval").body, unknown)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}, optional, [text]
    return schema, optional or _admits_none(schema), unknown


def _is_balanced(text: str) -> bool:
    return text.count("[") + text.count("(") == text.count("]") + text.count(")")


def _schema(tree: ast.expr, unknown: list[str]) -> Schema:
    """Return the schema of a type, given its syntax tree; add unknown types to `unknown`."""
    outer, inner = tree, list[ast.expr]()
    match tree:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _any_of([_schema(left, unknown), _schema(right, unknown)])
        case ast.Constant(value=(None | str()) as text):
            outer = ast.Name(str(text))
        case (
            ast.Subscript(value=outer, slice=ast.Tuple(elts=inner))
            | ast.Call(func=outer, args=inner, keywords=[])  # `list(str)`
        ):
            pass
        case ast.Subscript(value=outer, slice=single):
            inner = [single]
    if isinstance(outer, ast.Attribute) and ast.unparse(outer.value) in ("typing", "t"):
        outer = ast.Name(outer.attr)
    name = outer.id if isinstance(outer, ast.Name) else ""
    base = _SCHEMA_OF.get(name.lower(), {})
    if not inner and name.lower() in _SCHEMA_OF:
        return dict(base)
    constants = [each.value for each in inner if isinstance(each, ast.Constant)]
    if name == "Literal" and inner and len(constants) == len(inner):
        return {"enum": constants}
    if name == "Annotated" and inner:
        return _schema(inner[0], unknown)
    is_tuple = base.get(CONTAINER) == "tuple"
    if is_tuple and len(inner) == 2 and constants == [...]:  # `Tuple[int, ...]`
        is_tuple, inner = False, inner[:1]
    if inner and (base.get("type") in ("array", "object") or name in ("Union", "Optional")):
        parts = [_schema(each, unknown) for each in inner]
        match base.get("type"), parts:
            case None, _:
                return _any_of([*parts, dict(_NULL)] if name == "Optional" else parts)
            case "array", _ if is_tuple:
                return {**base, "prefixItems": parts, "items": False, "minItems": len(parts)}
            case "array", [items]:
                return {**base, "items": items}
            case "object", [key, value] if key.get("type", "string") == "string":
                return {**base, "additionalProperties": value}
    unknown.append(ast.unparse(tree))
    return {}


def _any_of(schemas: list[Schema]) -> Schema:
    """Return the schema of the values that satisfy any of the given schemas."""
    different = [s for i, s in enumerate(schemas) if s not in schemas[:i]]
    return different[0] if len(different) == 1 else {"anyOf": different}


def _admits_none(schema: Schema) -> bool:
    return schema == _NULL or any(map(_admits_none, schema.get("anyOf", ())))
