"""Causes of differences between our masks and xgrammar's, byte by byte.

Both engines get the same language: compact JSON with only declared members. A token on which they
differ is reduced to the first byte on which they do. The position of this byte (in which string,
number or separator, under which schema) and the engine that allows it determine the cause. A
difference without a matching rule has no cause, and fails the tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

CAUSES = {
    "escapes": "strings with a pattern, format or length: xgrammar excludes escapes in them",
    "raw": (
        "strings with a pattern or length: xgrammar allows control characters, which JSON does not"
    ),
    "surrogates": "xgrammar allows the bytes of lone surrogates, which are not valid UTF-8",
    "anchors": (
        "by the standard a pattern may match anywhere in the text; xgrammar anchors it at both ends"
    ),
    "formats": "`format`: 31 February, leap seconds, the grammar of a URI and so on",
    "depth": (
        "values that the schema doesn't describe: nested up to `max_depth` here, without a "
        "limit in xgrammar"
    ),
    "implied type": "a keyword for one type allows all other types; xgrammar excludes them",
    "ignored": (
        "xgrammar does not enforce `not`, `if`, `multipleOf`, `uniqueItems` and similar keywords"
    ),
    "one of": "`oneOf` means exactly one; xgrammar treats it as `anyOf`",
    "enum": (
        "an `enum` beside other keywords: xgrammar allows values that don't satisfy the other "
        "keywords"
    ),
    "required": (
        "names in `required` that are not in `properties`: xgrammar treats them as optional"
    ),
    "spellings": (
        "names and constants that are not ASCII can be written with or without escapes; "
        "xgrammar allows one way"
    ),
    "digits": "numbers with bounds: xgrammar limits the digits after the decimal point",
}
IGNORED = {
    "not", "if", "then", "else", "multipleOf", "uniqueItems", "contains", "dependencies",
    "dependentRequired", "dependentSchemas", "propertyNames", "minContains", "maxContains",
}  # fmt: skip
_IN_STRINGS = {"pattern", "format", "minLength", "maxLength"}
_BY_TYPE = {
    "object": {"properties", "required", "additionalProperties", "patternProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": _IN_STRINGS,
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}


@dataclass
class Place:
    """End of a text: the kind of value it is inside, and the path of members and elements."""

    path: list[str | int] = field(default_factory=list)
    expects: str = "value"  # or key, string, scalar, colon, after
    spelled: bytes = b""  # of the incomplete string, key, number or word


def place(text: bytes) -> Place:
    """Parse the beginning of a JSON text, with or without whitespace."""
    here, escaped = Place(), False
    containers: list[int] = []
    for byte in text:
        c = bytes([byte])
        if here.expects in ("string", "key in"):
            if escaped or c != b'"':
                here.spelled += c
                escaped = c == b"\\" and not escaped
            elif here.expects == "string":
                here.expects, here.spelled = "after", b""
            else:
                here.path[-1] = json.loads(b'"' + here.spelled + b'"', strict=False)
                here.expects, here.spelled = "colon", b""
            continue
        if here.expects == "scalar" and c not in b" ,]}":
            here.spelled += c
            continue
        if c in b" \n\r\t":
            continue
        if c in b"{[":
            containers.append(byte)
            here.path.append("" if c == b"{" else 0)
            here.expects = "key" if c == b"{" else "value"
        elif c in b"]}":
            containers.pop()
            here.path.pop()
            here.expects, here.spelled = "after", b""
        elif c == b":":
            here.expects = "value"
        elif c == b",":
            in_object = containers[-1] == ord("{")
            here.expects, here.spelled = "key" if in_object else "value", b""
            here.path[-1] = "" if in_object else here.path[-1] + 1  # type: ignore[operator]
        elif c == b'"':
            here.expects = "key in" if here.expects == "key" else "string"
        else:
            here.expects, here.spelled = "scalar", c
    return here


def spread(root: Any, schema: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the schema and all others for the same value: by reference, or in any combination."""
    if not isinstance(schema, dict) or depth > 12:
        return
    yield schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        target = root
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            target = target[int(part) if isinstance(target, list) else part]
        yield from spread(root, target, depth + 1)
    for keyword in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(keyword, ()):
            yield from spread(root, part, depth + 1)


def at(root: Any, path: list[str | int]) -> list[dict[str, Any]]:
    """Return the schemas for the value at a path; empty if it is unconstrained."""
    schemas = list(spread(root, root))
    for step in path:
        below: list[Any] = []
        for schema in schemas:
            if isinstance(step, str):
                named = [s for n, s in schema.get("properties", {}).items() if n == step]
                patterns = schema.get("patternProperties", {}).items()
                named += [s for pattern, s in patterns if re.search(pattern, step)]
                below += named or [schema.get("additionalProperties")]
            else:
                items = schema.get("items", {})
                first = schema.get("prefixItems", items if isinstance(items, list) else [])
                rest = schema.get("additionalItems") if isinstance(items, list) else items
                below.append(first[step] if step < len(first) else rest)
        schemas = [s for schema in below for s in spread(root, schema)]
    return schemas


def cause(root: Any, text: bytes, c: bytes, is_ours: bool) -> str | None:
    """Return the key in `CAUSES` for a byte (b"": the end) that only one allows, or None."""
    here = place(text)
    schemas = at(root, here.path)
    has = {keyword for schema in schemas for keyword in schema}
    container = at(root, here.path[:-1]) if here.path else []
    in_string = here.expects == "string"
    in_key = here.expects == "key in"
    if in_string and is_ours and c == b"\\" and has & _IN_STRINGS:
        return "escapes"
    if in_key and is_ours and c == b"\\":
        names = {keyword for schema in container for keyword in schema}
        return "escapes" if names & {"patternProperties", "propertyNames"} else "spellings"
    if in_string and is_ours and c == b"\\" and has & {"enum", "const"}:
        return "spellings"
    if in_string and "format" in has:
        return "formats"
    if in_string and is_ours and "pattern" in has:
        return "anchors"
    around = [schema for n in range(len(here.path) + 1) for schema in at(root, here.path[:n])]
    is_ignored = any(set(s) & IGNORED or len(s.get("allOf", ())) > 1 for s in around)
    is_choice = any("oneOf" in s for s in around)
    if is_ours and here.expects == "scalar" and b"." in here.spelled and has & _BY_TYPE["number"]:
        return "digits"
    if is_ours and here.expects == "value":
        untyped = [schema for schema in schemas if "type" not in schema]
        if any(set(schema) & words for schema in untyped for words in _BY_TYPE.values()):
            return "implied type"
    if is_ours:
        return None
    if (in_string or in_key) and text[-1:] == b"\xed" and c >= b"\xa0":
        return "surrogates"
    if in_string and c < b"\x20" and has & _IN_STRINGS:
        return "raw"
    if c in (b"[", b"{") and here.path and _is_free(container):
        return "depth"
    if is_ignored:
        return "ignored"
    if is_choice:
        return "one of"
    below = [part for schema in container for part in schema.get("properties", {}).values()]
    if any(isinstance(s, dict) and "enum" in s and "type" in s for s in [*around, *below]):
        return "enum"
    if any(set(s.get("required", ())) - set(s.get("properties", ())) for s in around):
        return "required"
    return None


def _is_free(schemas: list[dict[str, Any]]) -> bool:
    """Return whether the members and elements of a value are unconstrained."""
    return not any(
        s.get(keyword) not in (None, True)
        for s in schemas
        for keyword in ("properties", "items", "prefixItems", "enum", "const", "patternProperties",
                        "additionalProperties")
    )  # fmt: skip
