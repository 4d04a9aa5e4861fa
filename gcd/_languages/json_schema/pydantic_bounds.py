"""Bounds that pydantic checks in Python code, on types whose own schema has no such bound.

`Annotated[str | list[int], Field(min_length=2)]` calls `len` on the value after validation, and
`Annotated[int | float, Field(gt=3)]` compares it. Such a bound is translated only if the Python
value has the same size or order as the JSON value from which it was parsed. Other bounds are
refused. For example, a `UUID` has no length, and a set of `1` and `true` has one element.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from gcd._languages.json_schema.pydantic_values import FACETS, facets, finite, refusal

_LENGTHS = {
    "min_length": ("minLength", "minItems", "minProperties"),
    "max_length": ("maxLength", "maxItems", "maxProperties"),
}
_BOUNDS = {*FACETS, *_LENGTHS, "max_digits", "decimal_places"}
_NO_LENGTH: frozenset[str] = frozenset()
_SIZED = {"list": "array", "tuple": "array", "set": "array", "frozenset": "array", "dict": "object"}
_NUMBERS = ("int", "float", "decimal", "fraction", "literal", "any")
_WITHOUT_LENGTH = ("int", "float", "bool", "none")
_WITHOUT_ORDER = ("bool", "none", "str", "list", "tuple", "set", "frozenset", "dict")
_VALIDATORS = "pydantic._internal._validators"
_TRANSPARENT = (
    f"{_VALIDATORS}.defaultdict_validator",
    "pydantic.types.ByteSize._validate",
    "pydantic.types.SecretStr",
)
_CHANGES = ("strip_whitespace", "to_lower", "to_upper")


def bounds_of(code: Any) -> dict[str, Any] | None:
    """Return the bounds that one of pydantic's own functions checks; None for other functions."""
    function, named = (code.func, code.keywords) if isinstance(code, partial) else (code, {})
    if getattr(function, "__module__", None) != _VALIDATORS:
        return None
    if function.__name__ == "forbid_inf_nan_check":
        return {"allow_inf_nan": False}
    return dict(named) if named and named.keys() <= _BOUNDS else None


def add_bounds(found: dict[str, Any], core: Mapping[str, Any], bounds: Mapping[str, Any]) -> Any:
    """Return a JSON schema with bounds added, or a refusal if they can't be translated.

    Args:
        found: the JSON schema of the type without these bounds.
        core: pydantic's core schema of that type.
        bounds: the bounds, by pydantic's names.
    """
    names = ", ".join(bounds)
    if bounds.keys() <= _LENGTHS.keys():
        kinds = _with_length(core)
        if kinds:
            keywords = {name: bounds[k] for k in bounds for name in _LENGTHS[k]}
            return {"allOf": [found, {"type": sorted(kinds), **keywords}]}
    elif _has_numbers(core):
        if bounds.keys() == {"allow_inf_nan"}:
            return {"allOf": [found, finite({"type": "number"})]}
        if bounds.keys() <= FACETS.keys() and all(
            isinstance(b, int | float) for b in bounds.values()
        ):
            return {"allOf": [found, {"type": "number", **facets(bounds)}]}
    kind = core["type"]
    what = "a value that Python code changes" if kind.startswith("function-") else f"type {kind!r}"
    return refusal(
        f"a bound ({names})",
        f"is not supported on {what}; move the bound to one of the types inside it, or remove it",
    )


def has_distinct_values(core: Mapping[str, Any] | None) -> bool:
    """Return whether different JSON values of a type are still different as Python values.

    In a set of numbers and booleans they may be equal, because `1 == True`. So may strings that are
    stripped.
    """
    if core is None:
        return False
    match core["type"]:
        case "int" | "float" | "bool" | "none":
            return True
        case "str":
            return not any(core.get(change) for change in _CHANGES)
        case "literal" | "enum":
            values = core.get("expected") or core.get("members") or ()
            return len({*values}) == len(values)
        case "nullable":
            return has_distinct_values(core["schema"])
    return False


def indistinct(schema: Mapping[str, Any], members: str) -> Any:
    """Return a refusal of a minimum size, or None if different JSON members differ in Python.

    Python counts equal members of a set or dict once, so the size could be smaller than in JSON.

    Args:
        schema: the core schema of a set or dict.
        members: key of the schema of its members: "items_schema" or "keys_schema".
    """
    is_safe = _has_distinct(schema.get(members), is_key=members == "keys_schema")
    if (schema.get("min_length") or 0) < 2 or is_safe:
        return None
    return refusal(
        "a minimum size",
        "is not supported for a set or dict whose members may be equal in Python; "
        "use int, str or an enum as the type of the members",
    )


def _has_distinct(core: Mapping[str, Any] | None, *, is_key: bool) -> bool:
    return has_distinct_values(core) and not (is_key and core and core["type"] == "float")


def _choices(core: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [choice[0] if isinstance(choice, tuple) else choice for choice in core["choices"]]


def _inner(core: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the core schema that `core` wraps, if both have the same JSON values; or None."""
    match core["type"]:
        case "json-or-python":
            inner: Mapping[str, Any] = core["json_schema"]
        case "lax-or-strict":
            inner = core["lax_schema"]
        case "nullable" | "default":
            inner = core["schema"]
        case "function-after" | "function-wrap" if _is_transparent(core["function"]["function"]):
            inner = core["schema"]
        case _:
            return None
    return inner


def _is_transparent(code: Any) -> bool:
    """Return whether one of pydantic's functions preserves the size and order of a value."""
    while isinstance(code, partial):
        if bounds_of(code) is not None:
            return True
        code = code.func
    name = f"{getattr(code, '__module__', '')}.{getattr(code, '__qualname__', '')}"
    return bounds_of(code) is not None or name in _TRANSPARENT


def _with_length(core: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types in `core` whose values have the same length in Python.

    The result is empty if this is uncertain.
    """
    kinds = _lengths(core)
    return _NO_LENGTH if kinds is None else kinds


def _lengths(core: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the JSON types in `core` whose values have the same length in Python.

    The result is empty for types without a length, and None if it is uncertain.
    """
    kind = core["type"]
    inner = _inner(core)
    if inner is not None:
        return _lengths(inner)
    if kind == "any":
        return frozenset(["string", "array", "object"])
    if kind in _WITHOUT_LENGTH:
        return _NO_LENGTH
    if kind == "enum" and core.get("sub_type") == "str":
        return frozenset(["string"])
    if kind in ("str", "literal"):
        texts = core["expected"] if kind == "literal" else [""]
        plain = kind == "literal" or has_distinct_values(core)
        has_texts = any(isinstance(text, str) for text in texts)
        return (frozenset(["string"]) if has_texts else _NO_LENGTH) if plain else None
    if kind in ("set", "frozenset", "dict"):
        members = core.get("keys_schema" if kind == "dict" else "items_schema")
        is_safe = _has_distinct(members, is_key=kind == "dict")
        return frozenset([_SIZED[kind]]) if is_safe else None
    if kind in _SIZED:
        return frozenset([_SIZED[kind]])
    if kind == "union" and core.get("mode", "smart") == "smart":
        found = _NO_LENGTH
        for choice in _choices(core):
            more = _lengths(choice)
            if more is None:
                return None
            found |= more
        return found
    return None


def _has_numbers(core: Mapping[str, Any]) -> bool | None:
    """Return whether values are numbers, in the same order as in JSON; None if uncertain."""
    inner = _inner(core)
    if inner is not None:
        return _has_numbers(inner)
    kind = core["type"]
    if kind == "union":
        found = [_has_numbers(choice) for choice in _choices(core)]
        return None if None in found else any(found)
    if kind == "enum":
        return True if core.get("sub_type") in ("int", "float") else None
    return kind in _NUMBERS if kind in (*_NUMBERS, *_WITHOUT_ORDER) else None
