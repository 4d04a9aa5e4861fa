"""Type names in tool lists, and the JSON schema that each of them means.

Tool lists use type names of their authors' programming languages: JSON Schema's own, Python's
(`str`, `List`, `dict`), Java's (`long`, `ArrayList`, `HashMap`), JavaScript's (`Bigint`, `Array`).
This table contains all of them, case-insensitively (Gemini's `STRING` is JSON Schema's `string`). A
name determines only the kind of value: the width of a Java integer isn't a bound here; use
`minimum` and `maximum` for that.
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
"""Every known name, in lower case."""


def named_type(name: str) -> Schema | None:
    """Return a new JSON schema for the type of this name in any case, or None if it is unknown."""
    schema = _SCHEMA_OF.get(name.lower())
    return None if schema is None else dict(schema)
