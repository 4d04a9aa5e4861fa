"""Parser of Python type expressions into JSON schemas.

Tool lists in the style of xLAM describe a parameter by a string: `str, optional`, `List[Union[int,
float]]`, `Tuple[float, float]`, `str, optional, default 'London'`. The part before the first comma
outside of brackets is a Python expression, which is parsed but never evaluated. The parts after it
may contain `optional` and `default`. A name that is not in the table of
`gcd._languages.tools.type_names`, such as `Callable`, is treated as any JSON value. Such names are
reported to the user.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import NamedTuple

from gcd._languages.json_schema.keywords import CONTAINER
from gcd._languages.tools.type_names import Schema, look_up_type

_NULL: Schema = {"type": "null"}
_CHOICES = ("Union", "Optional")


class TypeString(NamedTuple):
    """Parsed type string.

    Attributes:
        schema: the JSON schema of the type's values.
        optional: whether the parameter may be omitted.
        unknown: the unknown types in the string; each is treated as any JSON value.
    """

    schema: Schema
    optional: bool
    unknown: tuple[str, ...]


def parse_type(text: str) -> TypeString:
    """Parse a type string.

    If the string isn't a Python expression, the whole string is an unknown type, and stands for any
    JSON value.
    """
    first, *flags = _split(text)
    words = [flag.strip().lower() for flag in flags]
    optional = any(word.startswith(("optional", "default")) for word in words)
    unknown: list[str] = []
    try:
        schema = _schema(ast.parse(first.strip(), mode="eval").body, unknown.append)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return TypeString({}, optional, (text,))
    return TypeString(schema, optional or _admits_none(schema), tuple(unknown))


def _split(text: str) -> list[str]:
    """Split a text at the commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "[(":
            depth += 1
        elif character in "])":
            depth -= 1
        if character == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _schema(tree: ast.expr, unknown: Callable[[str], None]) -> Schema:
    """Return the schema of a type, given its syntax tree; call `unknown` with unknown names."""
    match tree:
        case ast.Constant(value=None):
            return dict(_NULL)
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="typing" | "t"), attr=name):
            return _look_up(name, [], unknown)
        case ast.Constant(value=str(name)) if name.isidentifier():
            return _look_up(name, [], unknown)
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=inner)):
            return _generic(outer, inner, tree, unknown)
        case ast.Subscript(value=outer, slice=single):
            return _generic(outer, [single], tree, unknown)
        case ast.Call(func=outer, args=inner, keywords=[]):  # `list(str)`
            return _generic(outer, inner, tree, unknown)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return any_of([_schema(left, unknown), _schema(right, unknown)])
    unknown(ast.unparse(tree))
    return {}


def _generic(
    outer: ast.expr, inner: list[ast.expr], tree: ast.expr, unknown: Callable[[str], None]
) -> Schema:
    """Return the schema of a type with arguments in brackets."""
    name = outer.attr if isinstance(outer, ast.Attribute) else getattr(outer, "id", "")
    if name == "Literal" and all(isinstance(e, ast.Constant) for e in inner):
        return {"enum": [e.value for e in inner if isinstance(e, ast.Constant)]}
    base = look_up_type(name) or {}
    is_tuple = base.get(CONTAINER) == "tuple"
    if is_tuple and len(inner) == 2 and _is_ellipsis(inner[1]):
        return {**base, "items": _schema(inner[0], unknown)}
    if name == "Annotated" and inner:
        return _schema(inner[0], unknown)
    takes_arguments = base.get("type") in ("array", "object") or name in _CHOICES
    if not takes_arguments or any(_is_ellipsis(e) for e in inner):
        unknown(ast.unparse(tree))
        return {}
    return _look_up(name, [_schema(e, unknown) for e in inner], unknown)


def _look_up(name: str, inner: list[Schema], unknown: Callable[[str], None]) -> Schema:
    """Return the schema of a type, given its name and the schemas of its arguments."""
    if name in _CHOICES and inner:
        return any_of([*inner, dict(_NULL)] if name == "Optional" else inner)
    base = look_up_type(name)
    if base is not None:
        match base.get("type"), inner:
            case _, []:
                return base
            case "array", _ if base.get(CONTAINER) == "tuple":
                return {**base, "prefixItems": inner, "items": False, "minItems": len(inner)}
            case "array", [items]:
                return {**base, "items": items}
            case "object", [key, value] if _is_text_key(key):
                return {**base, "additionalProperties": value}
    unknown(name)
    return {}


def _is_text_key(key: Schema) -> bool:
    """Return whether the keys of a dictionary may be strings, the only keys in JSON."""
    return key.get("type", "string") == "string"


def any_of(schemas: list[Schema]) -> Schema:
    """Return the schema of the values that satisfy any of the given schemas."""
    different = [s for i, s in enumerate(schemas) if s not in schemas[:i]]
    return different[0] if len(different) == 1 else {"anyOf": different}


def _admits_none(schema: Schema) -> bool:
    return schema == _NULL or any(map(_admits_none, schema.get("anyOf", ())))


def _is_ellipsis(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Constant) and tree.value is Ellipsis
