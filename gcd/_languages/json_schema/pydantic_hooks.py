"""Changes to JSON schemas that pydantic's hooks have altered, so that they match its validators."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gcd._automata.automaton import Automaton
from gcd._languages.json_schema.keywords import DEFINITIONS, LISTS, NAMED, SINGLE, VALIDATOR
from gcd._languages.json_schema.pydantic_values import (
    NO_FILES,
    number_bounds,
    numerals,
    refusal,
    texts,
)
from gcd._languages.text import class_texts
from gcd._languages.text.dialects import TextPattern, refuse, rust

# Keywords that `class_schemas` writes for `Finisher`, which removes them.
BYTES, KEYS = "~ bytes", "~ keys"
_HOOKS = "pydantic.json_schema"  # module of the hooks that users write as annotations
_ANNOTATIONS = (
    "title",
    "description",
    "examples",
    "default",
    "deprecated",
    "readOnly",
    "writeOnly",
)
_BYTE_SIZE = r"^\s*(\d*\.?\d+)\s*(\w+)?"


class Finisher:
    """Converter of pydantic-specific formats and keywords to patterns.

    Args:
        definitions: JSON schemas under `$defs`, by name.
        compile_schema: function that compiles a JSON schema to a language, for strings that contain
            JSON.
    """

    def __init__(
        self, definitions: Mapping[str, Any], compile_schema: Callable[[Any], Automaton]
    ) -> None:
        self._definitions = definitions
        self._compile = compile_schema

    def finish(self, schema: Any) -> Any:
        """Return the schema with patterns in place of pydantic-specific formats and keywords."""
        if not isinstance(schema, Mapping):
            return schema
        found = {}
        for keyword, value in schema.items():
            if keyword in (*NAMED, *DEFINITIONS) and isinstance(value, Mapping):
                value = {name: self.finish(inner) for name, inner in value.items()}
            elif keyword in LISTS and isinstance(value, list):
                value = [self.finish(inner) for inner in value]
            elif keyword in SINGLE:
                value = self.finish(value)
            found[keyword] = value
        of_bytes = found.pop(BYTES, False)
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
            names = self._validators(content, set())
            content = _without(content, VALIDATOR)
            label = json.dumps(content, default=str)
            build = partial(self._json_texts, content)
            if names:
                found[VALIDATOR] = ", ".join(names)
            found["pattern"] = TextPattern(label, "JSON", build)
        if found.get("pattern") == rust(_BYTE_SIZE) or found.get("pattern") == _BYTE_SIZE:
            found |= texts("ByteSize", class_texts.byte_sizes)
        if found.pop(KEYS, False):
            names = found["allOf"][0]
            code = {VALIDATOR: names[VALIDATOR]} if VALIDATOR in names else {}
            return {**self._key_schema(names), **code}
        return found

    def _key_schema(self, schema: Any) -> Any:
        """Return the JSON schema of an object's keys, which are always strings.

        `schema` describes the values that pydantic parses from these strings.
        """
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/")
            return self._key_schema(self.finish(self._definitions[name]))
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
                    "pattern": refuse(f"keys of {kind or 'any type'}", "are not supported; use str")
                }

    def _json_texts(self, content: Any) -> Automaton:
        """Return the JSON texts that satisfy the schema `content`."""
        definitions = {k: _without(v, VALIDATOR) for k, v in self._definitions.items()}
        return self._compile(self.finish({**content, "$defs": definitions}))

    def _validators(self, schema: Any, seen: set[str]) -> list[str]:
        """Return the Python validators of a schema, and of the schemas to which it refers."""
        if isinstance(schema, list):
            return [name for inner in schema for name in self._validators(inner, seen)]
        if not isinstance(schema, Mapping):
            return []
        found = [schema[VALIDATOR]] if VALIDATOR in schema else []
        reference = str(schema.get("$ref", "")).removeprefix("#/$defs/")
        if reference in self._definitions and reference not in seen:
            seen.add(reference)
            found += self._validators(self._definitions[reference], seen)
        return found + [name for inner in schema.values() for name in self._validators(inner, seen)]


def has_hook(metadata: Mapping[str, Any], cls: Any) -> bool:
    """Return whether the user changes the JSON schema of a type, by annotations or in its class.

    Args:
        metadata: metadata of the type's core schema.
        cls: the type's class, or None.
    """
    config = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}
    root = getattr(cls, "model_fields", {}).get("root")
    extra = config.get("json_schema_extra") or getattr(root, "json_schema_extra", None)
    if extra or metadata.get("pydantic_js_extra"):
        return True
    hooks = [
        hook
        for name in ("pydantic_js_functions", "pydantic_js_annotation_functions")
        for hook in metadata.get(name, ())
    ]
    return not all(_is_pydantics(hook) for hook in hooks)


def _is_pydantics(hook: Any) -> bool:
    module = getattr(hook, "__module__", None) or ""
    return module.partition(".")[0] == "pydantic" and module != _HOOKS


def conjunction(changed: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Return the intersection of a hook's schema and what the type's validator accepts."""
    if _without(changed, *_ANNOTATIONS) == _without(plain, *_ANNOTATIONS):
        return changed
    return {"allOf": [changed, plain]}


def _without(schema: Any, *keywords: str) -> Any:
    """Return a schema without the given keywords, at every depth."""
    if isinstance(schema, list):
        return [_without(value, *keywords) for value in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {}
    for keyword, value in schema.items():
        if keyword in keywords:
            continue
        if keyword in (*NAMED, *DEFINITIONS) and isinstance(value, Mapping):
            kept[keyword] = {name: _without(inner, *keywords) for name, inner in value.items()}
        else:
            kept[keyword] = _without(value, *keywords) if keyword in (*LISTS, *SINGLE) else value
    return kept


def _of_format(name: str, of_bytes: bool) -> dict[str, Any] | None:
    """Return the schema of the strings that pydantic accepts for a format; None if unknown."""
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
            return refusal(f"the format {name}", NO_FILES)
        case "regex":
            return refusal(
                "a Pattern",
                "is not supported, because regular expressions are not a regular language; use str",
            )
        case "email" | "name-email":
            return texts("email", class_texts.emails)
        case "base64" | "base64url":
            url_safe = name == "base64url"
            return texts(name, class_texts.base64_texts, url_safe=url_safe, ascii_only=not of_bytes)
    return None
