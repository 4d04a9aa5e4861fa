"""Replace what pydantic's hooks write into a JSON schema by what its validators accept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gcd.automata.automaton import Automaton
from gcd.languages.json_schema.class_values import (
    BOUNDS,
    NO_FILES,
    number_bounds,
    numerals,
    refusal,
    texts,
)
from gcd.languages.json_schema.keywords import DEFINITIONS, LISTS, NAMED, SINGLE, VALIDATOR
from gcd.languages.text import class_texts
from gcd.languages.text.dialects import TextPattern, refused, rust

# Keywords that the generator leaves for the finisher; no finished schema has them.
BYTES, KEYS = "~ bytes", "~ keys"
_BYTE_SIZE = r"^\s*(\d*\.?\d+)\s*(\w+)?"


class Finisher:
    """Patterns for the formats and keywords that only pydantic gives a meaning."""

    def __init__(
        self, definitions: Mapping[str, Any], compile_schema: Callable[[Any], Automaton]
    ) -> None:
        self._definitions = definitions
        self._compile = compile_schema

    def finished(self, schema: Any) -> Any:
        """The schema with patterns for what only pydantic gives a meaning."""
        if not isinstance(schema, Mapping):
            return schema
        found = {}
        for keyword, value in schema.items():
            if keyword in (*NAMED, *DEFINITIONS) and isinstance(value, Mapping):
                value = {name: self.finished(inner) for name, inner in value.items()}
            elif keyword in LISTS and isinstance(value, list):
                value = [self.finished(inner) for inner in value]
            elif keyword in SINGLE:
                value = self.finished(value)
            found[keyword] = value
        of_bytes = found.pop(BYTES, False)
        bounds = _decoded_bounds(found)
        if bounds:
            return refusal(
                "an encoded value", f"with a bound ({bounds}) are not supported; remove it"
            )
        name = found.get("format")
        if isinstance(name, str):
            replacement = _of_format(name, of_bytes)
            if replacement is not None:
                del found["format"]
                found |= replacement
        if found.get("contentMediaType") == "application/json" and "contentSchema" in schema:
            content = schema["contentSchema"]
            found.pop("contentSchema")
            del found["contentMediaType"]
            label = json.dumps(content, default=str)
            build = partial(self._json_texts, content)
            found["pattern"] = TextPattern(label, "JSON", build)
        if found.get("pattern") == rust(_BYTE_SIZE) or found.get("pattern") == _BYTE_SIZE:
            found |= texts("ByteSize", class_texts.byte_sizes)
        if found.pop(KEYS, False):
            names = found["allOf"][0]
            code = {VALIDATOR: names[VALIDATOR]} if VALIDATOR in names else {}
            return {**self._key_schema(names), **code}
        return found

    def _key_schema(self, schema: Any) -> Any:
        """The schema of the names of members whose keys are validated by a schema of values."""
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/")
            return self._key_schema(self.finished(self._definitions[name]))
        options = schema.get("anyOf")
        if options is not None:
            strings = [option for option in options if option.get("type") == "string"]
            return {"anyOf": [self._key_schema(option) for option in strings or options]}
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None and all(isinstance(value, str) for value in values):
            return schema
        match schema.get("type") if values is None else "constants":
            case "string":
                return schema
            case "integer" | "number" as kind:
                return texts(f"{kind} keys", numerals, kind, **number_bounds(schema))
            case "boolean":
                return {"enum": ["true", "false"]}
            case kind:
                return {
                    "pattern": refused(
                        f"keys of {kind or 'any type'}", "are not supported; use str"
                    )
                }

    def _json_texts(self, content: Any) -> Automaton:
        """The JSON texts of a schema, which a string holds."""
        return self._compile(self.finished({**content, "$defs": self._definitions}))


def _decoded_bounds(schema: Mapping[str, Any]) -> str:
    """The bounds on what a text stands for, as pydantic's hooks leave them in a schema."""
    encoded = "contentSchema" in schema or schema.get("format") in ("base64", "base64url", "path")
    lengths = ("minLength", "maxLength", "minItems", "maxItems") if encoded else ()
    return ", ".join(name for name in (*BOUNDS, "multiple_of", *lengths) if name in schema)


def _of_format(name: str, of_bytes: bool) -> dict[str, Any] | None:
    """What the validator takes for a format of pydantic's; None for all others."""
    address = re.fullmatch("ipv(4|6|any)(address|interface|network)", name)
    if address:
        versions = address[1].replace("any", "46")
        return texts(name, class_texts.addresses, versions, address[2])
    if re.fullmatch("uuid[1-8]", name):
        return texts("uuid", class_texts.uuids, int(name[4:]))
    match name:
        case "binary" | "password" | "path" | "json-string":  # any text
            return {}
        case "file-path" | "directory-path" | "socket-path":
            return refusal(f"format {name}", NO_FILES)
        case "regex":
            return refusal("a Pattern", "are not a regular language; use str")
        case "email" | "name-email":
            return texts("email", class_texts.emails)
        case "base64" | "base64url":
            url_safe = name == "base64url"
            return texts(name, class_texts.base64_texts, url_safe=url_safe, ascii_only=not of_bytes)
    return None
