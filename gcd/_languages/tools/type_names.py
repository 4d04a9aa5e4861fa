"""Names of types in tool lists, and the JSON schema of each.

Tool lists use the names of types from their authors' programming languages: those of JSON Schema,
Python (`str`, `List`, `dict`), Java (`long`, `ArrayList`, `HashMap`), and JavaScript (`Bigint`,
`Array`). This table contains all of them, case-insensitively (Gemini's `STRING` is JSON Schema's
`string`). A name only determines the kind of value. For example, the width of a Java integer is not
a bound here; use `minimum` and `maximum` for that.
"""

from __future__ import annotations

from typing import Any

from gcd._languages.json_schema.keywords import CONTAINER

Schema = dict[str, Any]

_MEANINGS: tuple[tuple[tuple[str, ...], Schema], ...] = (
    (("string", "str"), {"type": "string"}),
    (("char", "character"), {"type": "string", "minLength": 1, "maxLength": 1}),
    (("integer", "int", "long", "short", "byte", "bigint", "biginteger"), {"type": "integer"}),
    (("number", "float", "double", "bigdecimal"), {"type": "number"}),
    (("boolean", "bool"), {"type": "boolean"}),
    (("null", "none", "nonetype"), {"type": "null"}),
    (
        (
            *("array", "list", "arraylist", "linkedlist", "vector", "collection"),
            *("sequence", "iterable", "queue", "deque", "stack"),
        ),
        {"type": "array"},
    ),
    (("tuple",), {"type": "array", CONTAINER: "tuple"}),
    (
        ("set", "frozenset", "hashset", "linkedhashset", "treeset"),
        {"type": "array", CONTAINER: "set"},
    ),
    (
        ("object", "dict", "mapping", "map", "hashmap", "linkedhashmap", "treemap", "hashtable"),
        {"type": "object"},
    ),
    (("any",), {}),
)

_SCHEMA_OF = {name: schema for names, schema in _MEANINGS for name in names}

TYPE_NAMES = tuple(_SCHEMA_OF)
"""All known names, in lower case."""


def look_up_type(name: str) -> Schema | None:
    """Return a new JSON schema for a type, given its name in any case; None if it is unknown."""
    schema = _SCHEMA_OF.get(name.lower())
    return None if schema is None else dict(schema)
