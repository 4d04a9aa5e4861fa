"""JSON schemas of pydantic classes that say what the class's validator accepts.

pydantic's own JSON schema leaves out what its core schema knows: that a `NaiveDatetime` has no
offset, that patterns are Rust's, that the keys of a `dict[int, ...]` are numerals. The public
interface `GenerateJsonSchema` is told the core schema of each type, and here puts a pattern in its
place that stands for exactly those texts (`gcd.languages.text.dialects.TextPattern`). What a type's
own hooks add afterwards, such as `"format": "uuid4"`, is replaced in the finished schema.

Where the JSON schema is narrower than the validator, as for a datetime that pydantic also reads
from a number, the JSON schema holds. Types that no automaton can decide (existing files, future
dates, `Pattern`) become patterns that are refused with the pointer of the place that uses them.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from typing import Any

from gcd.automata.automaton import Automaton
from gcd.errors import ConstraintError
from gcd.languages.json_schema.keywords import DEFINITIONS, LISTS, NAMED, SINGLE
from gcd.languages.text import class_texts
from gcd.languages.text.dialects import TextPattern, python, refused, rust
from gcd.languages.values.multiples import multiples
from gcd.languages.values.numbers import Bound, decimals, integers

_LARGEST = 10**300  # numbers beyond are infinite to a float, or soon will be
_EXACT_DIGITS = 15  # of a float
_BOUNDS = ("gt", "ge", "lt", "le")
_NO_FILES = "depend on the file system; use str or Path"
# Keywords of this module, which no finished schema has.
_BYTES, _KEYS = "~ bytes", "~ keys"
_STRIPPED = r"\A(?:\S(?s:.*\S)?)?\z"
_BYTE_SIZE = r"^\s*(\d*\.?\d+)\s*(\w+)?"


def class_schema(model: Any, compile_schema: Callable[[Any], Automaton]) -> dict[str, Any]:
    """Return the JSON schema of a pydantic model class.

    Args:
        model: the class.
        compile_schema: makes the language of a JSON schema, for strings that hold JSON.

    Raises:
        ConstraintError: pydantic has no JSON schema for a type, such as `Callable`.
    """
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        schema = model.model_json_schema(schema_generator=_generator())
    except PydanticInvalidForJsonSchema as error:
        raise ConstraintError(
            f"class {model.__name__} has a member that no JSON describes: {error.message}; "
            "expected types that can be read from JSON"
        ) from error
    found: dict[str, Any] = _Finisher(schema.get("$defs", {}), compile_schema).finished(schema)
    return found


def _texts(
    name: str, build: Callable[..., Automaton], *args: Any, **options: Any
) -> dict[str, Any]:
    """The schema of the strings that are as a builder says."""
    shown = ", ".join([*map(str, args), *(f"{k}={v}" for k, v in options.items())])
    label = f"{name}({shown})" if shown else name
    return {
        "type": "string",
        "pattern": TextPattern(label, "texts", partial(build, *args, **options)),
    }


def _refused(name: str, reason: str) -> dict[str, Any]:
    return {"type": "string", "pattern": refused(name, reason)}


# -- from pydantic's core schemas -------------------------------------------------------------


@lru_cache(maxsize=1)
def _generator() -> type:
    """The class that generates; pydantic is imported when a class needs it."""
    from pydantic.json_schema import GenerateJsonSchema

    class ClassSchemas(GenerateJsonSchema):
        """JSON schemas with patterns in the dialect of each class."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._configs: list[Mapping[str, Any]] = [{}]

        def _inside(self, schema: Any, generate: Callable[[Any], Any]) -> Any:
            self._configs.append(schema.get("config") or self._configs[-1])
            try:
                return generate(schema)
            finally:
                self._configs.pop()

        def model_schema(self, schema: Any) -> Any:
            return self._inside(schema, super().model_schema)

        def typed_dict_schema(self, schema: Any) -> Any:
            return self._inside(schema, super().typed_dict_schema)

        def dataclass_schema(self, schema: Any) -> Any:
            return self._inside(schema, super().dataclass_schema)

        def str_schema(self, schema: Any) -> Any:
            config = self._configs[-1]
            schema = dict(schema)
            for key in ("min_length", "max_length", "strip_whitespace"):
                if schema.get(key) is None and config.get(f"str_{key}"):
                    schema[key] = config[f"str_{key}"]
            pattern = schema.pop("pattern", None)
            found = super().str_schema(schema)
            patterns = []
            if isinstance(pattern, re.Pattern):
                patterns.append(python(pattern.pattern, pattern.flags))
            elif pattern is not None:
                engine = schema.get("regex_engine") or config.get("regex_engine")
                patterns.append(python(pattern) if engine == "python-re" else rust(pattern))
            if schema.get("strip_whitespace") and (patterns or "minLength" in found):
                patterns.append(rust(_STRIPPED))
            if schema.get("ascii_only"):
                patterns.append(rust(r"\A[[:ascii:]]*\z"))
            if patterns:
                found["pattern"] = patterns[0]
            if len(patterns) > 1:
                found["allOf"] = [{"pattern": pattern} for pattern in patterns[1:]]
            return found

        def tagged_union_schema(self, schema: Any) -> Any:
            """A member of such a union must have its tag, even if its class has a default."""
            if callable(schema["discriminator"]):
                return _refused(
                    "a union with a callable discriminator",
                    "depend on a Python function; name a member as discriminator",
                )
            found = super().tagged_union_schema(schema)
            tag = found.get("discriminator", {}).get("propertyName")
            if tag is None:
                return _refused("a union", "whose tag has several names are not supported")
            choices = [{"allOf": [choice], "required": [tag]} for choice in found["oneOf"]]
            return {**found, "oneOf": choices}

        def _field(self, schema: Any, generate: Callable[[Any], Any]) -> Any:
            alias = schema.get("validation_alias")
            if isinstance(alias, list):
                paths = alias if isinstance(alias[0], list) else [alias]
                if not any(len(path) == 1 for path in paths):
                    return _refused("a member", "at an AliasPath are not supported; use an alias")
            return generate(schema)

        def model_field_schema(self, schema: Any) -> Any:
            return self._field(schema, super().model_field_schema)

        def typed_dict_field_schema(self, schema: Any) -> Any:
            return self._field(schema, super().typed_dict_field_schema)

        def dataclass_field_schema(self, schema: Any) -> Any:
            return self._field(schema, super().dataclass_field_schema)

        def literal_schema(self, schema: Any) -> Any:
            return _constants(schema["expected"]) or super().literal_schema(schema)

        def enum_schema(self, schema: Any) -> Any:
            return _constants(schema["members"]) or super().enum_schema(schema)

        def is_subclass_schema(self, schema: Any) -> Any:
            return _refused("a class", "cannot be read from JSON")

        def is_instance_schema(self, schema: Any) -> Any:
            return _refused(f"instances of {schema['cls']!r}", "cannot be read from JSON")

        def custom_error_schema(self, schema: Any) -> Any:
            if schema.get("custom_error_type") == "is_hashable":
                return {"not": {"type": ["array", "object"]}}
            return super().custom_error_schema(schema)

        def bytes_schema(self, schema: Any) -> Any:
            encoding = self._configs[-1].get("val_json_bytes", "utf8")
            if encoding != "utf8":
                return _refused("bytes", f"in {encoding} are not supported; use Base64Bytes")
            found: dict[str, Any] = {"type": "string", "format": "binary", _BYTES: True}
            fewest, most = schema.get("min_length") or 0, schema.get("max_length")
            if fewest or most is not None:
                found |= _texts("bytes", class_texts.texts_of_bytes, fewest, most)
            return found

        def float_schema(self, schema: Any) -> Any:
            found = super().float_schema(schema)
            finite = schema.get("allow_inf_nan", self._configs[-1].get("allow_inf_nan", True))
            return found if finite else _finite(found)

        def decimal_schema(self, schema: Any) -> Any:
            return {"anyOf": [*_decimal_numbers(schema), _decimal_text(schema)]}

        def complex_schema(self, schema: Any) -> Any:
            number = r"(0|[1-9][0-9]*)(\.[0-9]+)?"
            return {"type": "string", "pattern": rust(rf"\A-?{number}([+-]{number})?j\z")}

        def date_schema(self, schema: Any) -> Any:
            return _dates("date", schema)

        def datetime_schema(self, schema: Any) -> Any:
            return _datetimes(schema)

        def time_schema(self, schema: Any) -> Any:
            if any(schema.get(bound) is not None for bound in _BOUNDS):
                return _refused("a time", "between bounds are not supported; remove the bounds")
            return _texts("time", class_texts.times, _offset(schema))

        def timedelta_schema(self, schema: Any) -> Any:
            bounds = {k: schema[k] for k in _BOUNDS if schema.get(k) is not None}
            if any(bounds.values()) or bounds.keys() & {"lt", "le"}:
                return _refused(
                    "a timedelta", "between bounds are not supported but `gt=0`, `ge=0`"
                )
            return _texts(
                "timedelta", class_texts.timedeltas, signed=not bounds, zero="gt" not in bounds
            )

        def uuid_schema(self, schema: Any) -> Any:
            return _texts("uuid", class_texts.uuids, schema.get("version"))

        def url_schema(self, schema: Any) -> Any:
            found = super().url_schema(schema)
            del found["format"]
            if not schema.get("allowed_schemes"):
                for default in ("default_host", "default_port"):
                    if schema.get(default) is not None:
                        return _refused(
                            "a URL", f"with a {default} but no schemes are not supported"
                        )
            schemes = tuple(schema.get("allowed_schemes") or ())
            return {**found, **_texts("url", class_texts.urls, schemes)}

        def multi_host_url_schema(self, schema: Any) -> Any:
            return self.url_schema(schema)

        def dict_schema(self, schema: Any) -> Any:
            return self._mapping(schema, super().dict_schema)

        def ordered_dict_schema(self, schema: Any) -> Any:
            return self._mapping(schema, super().ordered_dict_schema)

        def counter_schema(self, schema: Any) -> Any:
            return self._mapping(schema, super().counter_schema)

        def _mapping(self, schema: Any, generate: Callable[[Any], Any]) -> Any:
            found = generate(schema)
            keys = schema.get("keys_schema")
            if keys is None:
                return found
            values = found.pop("patternProperties", None)
            if values is not None:
                (found["additionalProperties"],) = values.values()
            names = self.generate_inner(keys)
            if names != {"type": "string"}:
                found["propertyNames"] = {_KEYS: True, "allOf": [names]}
            return found

        def fraction_schema(self, schema: Any) -> Any:
            text = {"type": "string", "pattern": rust(r"\A-?[0-9]+(/[1-9][0-9]*)?\z")}
            return {"anyOf": [_finite({"type": "number"}), text]}

        def generate_inner(self, schema: Any) -> Any:
            function = schema.get("function")
            named = function.get("function") if isinstance(function, Mapping) else None
            match getattr(named, "__name__", ""):
                case "import_string":
                    return _refused("an ImportString", "depend on what can be imported; use str")
                case "validate_new":
                    return _refused("a NewPath", _NO_FILES)
            return super().generate_inner(schema)

    return ClassSchemas


def _constants(values: Sequence[Any]) -> dict[str, Any] | None:
    """Refuse constants that JSON has no notation for; None for all others."""
    for value in values:
        plain = value.value if isinstance(value, Enum) else value
        if not isinstance(plain, str | int | float | None):
            kind = type(plain).__name__
            return _refused(f"constants of type {kind}", "are read by Python alone; use str or int")
    return None


def _offset(schema: Mapping[str, Any]) -> str:
    constraint = schema.get("tz_constraint")
    return {"naive": "none", None: "free"}.get(constraint, "needed")


def _dates(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    if schema.get("now_op") == "future":
        return _refused(f"a {name} in the future", "depend on the clock; use a plain one")
    first, last = None, None
    if schema.get("now_op") == "past":  # whatever the time zone
        last = datetime.date.today() - datetime.timedelta(days=2)
    day = datetime.timedelta(days=1)
    lows = [b for b in (schema.get("ge"), schema.get("gt") and schema["gt"] + day) if b]
    highs = [b for b in (schema.get("le"), schema.get("lt") and schema["lt"] - day, last) if b]
    first, last = max(lows, default=None), min(highs, default=None)
    return _texts("date", class_texts.dates, first, last)


def _datetimes(schema: Mapping[str, Any]) -> dict[str, Any]:
    if any(schema.get(bound) is not None for bound in _BOUNDS):
        return _refused("a datetime", "between bounds are not supported; remove the bounds")
    if schema.get("now_op") == "future":
        return _refused("a datetime in the future", "depend on the clock; use AwareDatetime")
    if isinstance(schema.get("tz_constraint"), int):
        return _refused("a datetime", "with one offset alone are not supported; use AwareDatetime")
    last = None
    if schema.get("now_op") == "past":
        last = datetime.date.today() - datetime.timedelta(days=2)
    return _texts("datetime", class_texts.datetimes, _offset(schema), last)


def _finite(found: dict[str, Any]) -> dict[str, Any]:
    """The schema of numbers that are finite as floats."""
    if not found.keys() & {"minimum", "exclusiveMinimum"}:
        found["minimum"] = -_LARGEST
    if not found.keys() & {"maximum", "exclusiveMaximum"}:
        found["maximum"] = _LARGEST
    return found


def _decimal_numbers(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
    plain: dict[str, Any] = {"type": "number"}
    plain |= {names[k]: _number(schema[k]) for k in _BOUNDS if schema.get(k) is not None}
    if schema.get("multiple_of") is not None:
        plain["multipleOf"] = _number(schema["multiple_of"])
    digits, places = schema.get("max_digits"), schema.get("decimal_places")
    if digits is None and places is None:
        return [_finite(plain)]
    most = min(_EXACT_DIGITS if digits is None else digits, _EXACT_DIGITS)
    found = []
    for behind in range(min(most, most if places is None else places) + 1):
        whole = min(most - behind, most if digits is None or places is None else digits - places)
        step = {"multipleOf": _number(f"1e-{behind}"), "type": "number"}
        limit = 10 ** max(whole, 0)
        found.append({"allOf": [_finite(dict(plain)), step], "type": "number",
                      "exclusiveMinimum": -limit, "exclusiveMaximum": limit})  # fmt: skip
    return found


def _number(value: Any) -> int | float:
    number = float(value)
    return int(number) if number.is_integer() else number


def _decimal_text(schema: Mapping[str, Any]) -> dict[str, Any]:
    options = {k: schema[k] for k in (*_BOUNDS, "multiple_of") if schema.get(k) is not None}
    digits, places = schema.get("max_digits"), schema.get("decimal_places")
    return _texts("decimal", _decimals_between, digits=digits, places=places, **options)


def _decimals_between(
    digits: int | None, places: int | None, multiple_of: Any = None, **bounds: Any
) -> Automaton:
    whole = None if digits is None or places is None else max(digits - places, 0)
    found = class_texts.decimals(whole, places, digits)
    found &= decimals(*_bounds(bounds), wide=True)
    return found if multiple_of is None else found & multiples(_exact(multiple_of))


def _exact(value: Any) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(str(value))


def _bounds(given: Mapping[str, Any]) -> tuple[Bound | None, Bound | None]:
    lows = [Bound(_exact(given[k]), k == "gt") for k in ("gt", "ge") if given.get(k) is not None]
    highs = [Bound(_exact(given[k]), k == "lt") for k in ("lt", "le") if given.get(k) is not None]
    return (
        max(lows, key=lambda b: (b.value, b.strict), default=None),
        min(highs, key=lambda b: (b.value, not b.strict), default=None),
    )


# -- what hooks of types have added ------------------------------------------------------------


class _Finisher:
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
        of_bytes = found.pop(_BYTES, False)
        bounds = _decoded_bounds(found)
        if bounds:
            return _refused(
                "an encoded value", f"with a bound ({bounds}) are not supported; remove it"
            )
        name = found.get("format")
        if isinstance(name, str):
            texts = _of_format(name, of_bytes)
            if texts is not None:
                del found["format"]
                found |= texts
        if found.get("contentMediaType") == "application/json" and "contentSchema" in schema:
            content = schema["contentSchema"]
            found.pop("contentSchema")
            del found["contentMediaType"]
            label = json.dumps(content, default=str)
            build = partial(self._json_texts, content)
            found["pattern"] = TextPattern(label, "JSON", build)
        if found.get("pattern") == rust(_BYTE_SIZE) or found.get("pattern") == _BYTE_SIZE:
            found |= _texts("ByteSize", class_texts.byte_sizes)
        if found.pop(_KEYS, False):
            return self._key_schema(found["allOf"][0])
        return found

    def _key_schema(self, schema: Any) -> Any:
        """The schema of the names of members whose keys are validated by a schema of values."""
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/")
            return self._key_schema(self.finished(self._definitions[name]))
        options = schema.get("anyOf")
        if options is not None:
            texts = [option for option in options if option.get("type") == "string"]
            return {"anyOf": [self._key_schema(option) for option in texts or options]}
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None and all(isinstance(value, str) for value in values):
            return schema
        match schema.get("type") if values is None else "constants":
            case "string":
                return schema
            case "integer" | "number" as kind:
                return _texts(f"{kind} keys", _numerals, kind, **_number_facets(schema))
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
    encoded = "contentSchema" in schema or schema.get("format") in ("base64", "base64url")
    lengths = ("minLength", "maxLength", "minItems", "maxItems") if encoded else ()
    return ", ".join(name for name in (*_BOUNDS, "multiple_of", *lengths) if name in schema)


def _of_format(name: str, of_bytes: bool) -> dict[str, Any] | None:
    """What the validator takes for a format of pydantic's; None for all others."""
    address = re.fullmatch("ipv(4|6|any)(address|interface|network)", name)
    if address:
        versions = address[1].replace("any", "46")
        return _texts(name, class_texts.addresses, versions, address[2])
    if re.fullmatch("uuid[1-8]", name):
        return _texts("uuid", class_texts.uuids, int(name[4:]))
    match name:
        case "binary" | "password" | "path" | "json-string":  # any text
            return {}
        case "file-path" | "directory-path" | "socket-path":
            return _refused(f"format {name}", _NO_FILES)
        case "regex":
            return _refused("a Pattern", "are not a regular language; use str")
        case "email" | "name-email":
            return _texts("email", class_texts.emails)
        case "base64" | "base64url":
            url_safe = name == "base64url"
            return _texts(
                name, class_texts.base64_texts, url_safe=url_safe, ascii_only=not of_bytes
            )
    return None


def _number_facets(schema: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "exclusiveMinimum": "gt", "minimum": "ge", "exclusiveMaximum": "lt", "maximum": "le",
        "multipleOf": "multiple_of",
    }  # fmt: skip
    return {short: schema[name] for name, short in names.items() if name in schema}


def _numerals(kind: str, multiple_of: Any = None, **bounds: Any) -> Automaton:
    found = (integers if kind == "integer" else decimals)(*_bounds(bounds))
    return found if multiple_of is None else found & multiples(_exact(multiple_of))
