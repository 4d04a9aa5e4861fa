"""Translation of schemas in tool lists into standard JSON schemas.

Benchmarks write schemas in their own dialects, such as BFCL's:

    {"type": "dict", "properties": {"at": {"type": "tuple", "items": {"type": "float"}},
                                    "note": {"type": "String", "optional": true}}}

Its structure is that of JSON Schema. The differences are the names of types, at any depth, and the
keyword `optional`. `standard_schema` replaces the names of types by their schemas (from the table
of `gcd._languages.tools.type_names`, or from a Python type such as `List[str]`), and applies
`optional`. Everything else is left unchanged, at the same JSON pointer, so that the JSON schema
compiler can support or refuse it. An unknown type raises an error with its name and location.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gcd._errors import ConstraintError, UnsupportedSchemaError, show
from gcd._languages.json_schema.keywords import DEFINITIONS, LISTS, NAMED, SINGLE, TYPES
from gcd._languages.json_schema.reader import escape
from gcd._languages.tools.type_names import TYPE_NAMES, Schema
from gcd._languages.tools.type_strings import any_of, parse_type

# Keywords that contain schemas, including older spellings. `items` may be a schema or a list of
# schemas.
_NAMED = (*NAMED, *DEFINITIONS, "dependencies")
_SINGLE = (*SINGLE, "additionalItems")
_LISTS = (*LISTS, "items")
_TRUTH = {"true": True, "false": False}
_MAX_NESTING = 64  # the JSON schema compiler refuses schemas that are nested deeper


def standard_schema(schema: Any, pointer: str, depth: int = 0) -> Any:
    """Return the standard JSON schema for a schema of a tool list.

    Args:
        schema: the schema. A value that isn't an object is returned unchanged.
        pointer: its JSON pointer in the tool list, for messages.
        depth: number of schemas around it.

    Raises:
        UnsupportedSchemaError: the name of a type is unknown.
        ConstraintError: two keywords of a schema contradict each other.
    """
    if not isinstance(schema, Mapping) or depth > _MAX_NESTING:
        return schema
    found = type_schema(schema["type"], pointer) if "type" in schema else {}
    for keyword, value in schema.items():
        if not isinstance(keyword, str):
            raise UnsupportedSchemaError(
                str(keyword), pointer, "expected a keyword as a string, got another type; quote it"
            )
        if keyword not in ("type", "optional"):
            add_keyword(found, keyword, value, schema, pointer, depth)
    _check_optional(schema, pointer)
    return found


def add_keyword(
    found: Schema,
    keyword: str,
    value: Any,
    schema: Mapping[str, Any],
    pointer: str,
    depth: int = 0,
) -> None:
    """Add a keyword of a schema to `found`, which already contains the schema's type."""
    value = _inside(keyword, value, f"{pointer}/{escape(keyword)}", depth + 1)
    if keyword in found and found[keyword] != value:
        raise ConstraintError(
            f"keyword {keyword!r} at {pointer!r} is {show(value)}, but the type "
            f"{schema.get('type')!r} requires {show(found[keyword])}; keep one of them"
        )
    found[keyword] = value


def type_schema(kind: Any, pointer: str) -> Schema:
    """Return the JSON schema for a value of `type`: the name of a type, or a list of names.

    Other values are left to the JSON schema compiler, which reports them.
    """
    if isinstance(kind, str):
        return _look_up(kind, pointer)
    if not isinstance(kind, list) or not all(isinstance(name, str) for name in kind):
        return {"type": kind}
    if all(name in TYPES for name in kind):
        return {"type": kind}
    return any_of([_look_up(name, pointer) for name in kind])


def _look_up(name: str, pointer: str) -> Schema:
    if name in TYPES:
        return {"type": name}
    parsed = parse_type(name)
    if parsed.unknown:
        raise UnsupportedSchemaError(
            "type",
            pointer,
            f"the type {show(name)} is unknown; use a Python type such as List[str] or "
            f"Optional[int], or one of these names in lower or upper case: {', '.join(TYPE_NAMES)}",
        )
    return dict(parsed.schema)


def _inside(keyword: str, value: Any, pointer: str, depth: int) -> Any:
    """Return the value of a keyword after translating the schemas inside it."""
    if keyword in _NAMED and isinstance(value, Mapping):
        return {
            name: standard_schema(inner, f"{pointer}/{escape(str(name))}", depth)
            for name, inner in value.items()
        }
    if keyword in _LISTS and isinstance(value, list):
        return [standard_schema(inner, f"{pointer}/{i}", depth) for i, inner in enumerate(value)]
    return standard_schema(value, pointer, depth) if keyword in _SINGLE else value


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
        says = isinstance(inner, Mapping) and says_optional(
            inner, f"{pointer}/properties/{escape(str(name))}"
        )
        if name in required and (says or (isinstance(listed, list) and name in listed)):
            raise ConstraintError(
                f"the property {name!r} at {pointer!r} is marked optional, but 'required' also "
                "names it; remove one of the two"
            )


def says_optional(schema: Mapping[str, Any], pointer: str) -> bool:
    """Return whether a property is marked as optional. BFCL also writes "True" for true.

    Raises:
        ConstraintError: `optional` is neither true nor false.
    """
    says = schema.get("optional", False)
    if isinstance(says, str):
        says = _TRUTH.get(says.lower(), says)
    if isinstance(says, list):  # the names of optional properties inside this one
        return False
    if not isinstance(says, bool):
        raise ConstraintError(
            f"expected keyword 'optional' at {pointer!r} to be true or false, got {show(says)}"
        )
    return says
