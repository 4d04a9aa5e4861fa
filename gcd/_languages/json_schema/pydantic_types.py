"""JSON schemas of Python types that describe exactly what pydantic's validator accepts.

pydantic's own JSON schemas omit facts that its core schemas contain: that a `NaiveDatetime` has no
offset, that patterns use Rust's syntax, that a tagged union requires its tag. `TypeSchemas`
overrides methods of `pydantic.json_schema.GenerateJsonSchema`. Strings that pydantic parses, such
as dates, become patterns that stand for their texts (`gcd._languages.text.dialects.TextPattern`).
Types that aren't in the white lists become patterns that raise an error, which has the JSON pointer
of the part that uses the type.

If the JSON schema is narrower than the validator, the JSON schema applies. For example, pydantic
also parses a datetime from a number. These texts are narrower than what pydantic accepts, because
the exact set would need a very large automaton:

| type | texts |
|---|---|
| date, datetime | years 0001 to 9999, no leap seconds, at most six digits behind the second |
| timedelta | ISO 8601 durations, at most 999,999,999 days |
| Decimal | without an exponent and without NaN or Infinity |
| URLs | hosts are names of ASCII letters, digits and hyphens or IP addresses, ports up to 59999 |
| IPv6 networks | whole groups of 16 bits, or a single address |
| email | domains of two to four labels, no quoted names, no reserved domains |
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any

from pydantic import PydanticInvalidForJsonSchema, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticOmit, SchemaError, SchemaValidator, ValidationError

from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price
from gcd._errors import ConstraintError
from gcd._languages.json_schema.keywords import ANNOTATIONS, DEFINITIONS, NAMED, VALIDATOR
from gcd._languages.text.dialects import TextPattern, python, refuse, rust
from gcd._languages.text.formats import text_format
from gcd._languages.text.regex import regex
from gcd._languages.values.numbers import Bound, decimals, integers, multiples

# The white lists: kinds of core schemas, and pydantic's own functions that accept what their JSON
# schemas say.
_KINDS = re.compile(
    "any|bool|bytes|call|arguments|callable|chain|counter|dataclass.*|date|datetime|decimal|default"
    "|definitions|definition-ref|deque|dict|enum|float|frozenset|function-.*|generator|int|json"
    "|json-or-python|lax-or-strict|list|literal|missing-sentinel|model.*|multi-host-url|named-tuple.*|none|nullable"
    "|ordered-dict|set|str|tagged-union|time|timedelta|tuple|typed-dict.*|union|url|uuid"
)
_FUNCTIONS = re.compile(
    r"|ipaddress\.IPv.*|collections\.(Counter|OrderedDict)|pydantic\..*\.(Secret.*|(path|deque"
    r"|defaultdict|sequence)_validator|wrap_val|<lambda>|validate_secret_value"
    r"|init_private_attributes|(EmailStr|NameEmail|IPvAny\w+)\._validate"
    r"|_apply_constraint_with_incompatibility_info)"
)
_OWN = re.compile(r"pydantic\.(types|networks|_internal\.\w+)\.(?!validate_email).*")
# pydantic's name of each bound -> JSON Schema's name.
_FACETS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
}
_LENGTHS = {
    "min_length": ("minLength", "minItems", "minProperties"),
    "max_length": ("maxLength", "maxItems", "maxProperties"),
}
_SIZED = {"str": "string", "list": "array", "tuple": "array", "dict": "object"}
_LARGEST = 10**300  # about the largest float; larger numbers become infinite
_EXACT_DIGITS = 15  # decimal digits that a float represents exactly
_DAY = datetime.timedelta(days=1)


def class_schema(
    given: Any, name: str, compile_schema: Callable[[Any], Automaton]
) -> dict[str, Any]:
    """Return the JSON schema of a type that pydantic validates, or of a `pydantic.TypeAdapter`."""
    generator: Any = partial(TypeSchemas, compile_schema)
    try:
        if isinstance(given, type) and hasattr(given, "model_json_schema"):
            found = given.model_json_schema(schema_generator=generator)
        else:
            adapter = given if isinstance(given, TypeAdapter) else TypeAdapter(given)
            found = adapter.json_schema(schema_generator=generator)
    except PydanticInvalidForJsonSchema as error:
        raise ConstraintError(
            f"expected types that JSON can represent in the class {name}, got another: "
            f"{error.message}; use types that can be parsed from JSON"
        ) from error
    except (PydanticUserError, PydanticOmit, SchemaError, NameError) as error:
        omitted = isinstance(error, PydanticOmit)
        cause = "it has no JSON schema" if omitted else str(error).splitlines()[0]
        raise ConstraintError(f"pydantic cannot parse the type {name}: {cause}") from error
    if found.keys() == {"$ref", "$defs", VALIDATOR}:  # the class has a validator
        own = found["$defs"][found.pop("$ref").removeprefix("#/$defs/")]
        found = {**own, **found}
    return dict(found)


class TypeSchemas(GenerateJsonSchema):
    """Generator of JSON schemas; patterns keep the regex dialect of each pydantic class."""

    def __init__(self, compile_schema: Callable[[Any], Automaton], **options: Any) -> None:
        super().__init__(**options)
        self._compile = compile_schema
        self._configs: list[Mapping[str, Any]] = [{}]
        self._seen: set[str | None] = set()
        self._shared: list[Any] = []  # core schemas of definitions
        self._json_code: list[str] | None = None  # validators inside of a `Json[...]`

    def build_schema_type_to_method(self) -> Any:
        # Hooks of pydantic's own types call these methods without `generate_inner`.
        methods = super().build_schema_type_to_method()
        return {kind: partial(self._generate_type, methods[kind]) for kind in methods}

    def _generate_type(self, generate: Callable[[Any], Any], schema: Any) -> Any:
        """Return the JSON schema of a core schema without the hooks of its type."""
        found = self._unless_refused(generate, schema)
        keys = schema.get("keys_schema")
        return found if keys is None else self._with_keys(found, keys)

    def _unless_refused(self, generate: Callable[[Any], Any], schema: Any) -> Any:
        """Return what `generate` returns for a core schema in the white lists, or a refusal."""
        why = _why_not(schema, self._configs[-1])
        return {"type": "string", "pattern": refuse(*why)} if why else generate(schema)

    def generate_inner(self, schema: Any) -> Any:
        """Return the JSON schema of a core schema, or a refusal of types not in the white lists."""
        self._configs.append(schema.get("config") or self._configs[-1])
        try:
            return self._unless_refused(self._generate, schema)
        finally:
            self._configs.pop()

    def _generate(self, schema: Any) -> Any:
        """Return the JSON schema of a core schema with the Python code that checks its values."""
        try:
            bounds = _bounds_of(schema)
            if bounds:
                return self._with_bounds(schema["schema"], bounds)
            found = self._with_hooks(schema)
            if _FUNCTIONS.fullmatch(_code(schema)):
                return found
            return self._with_validator(found, _code(schema, with_module=False))
        except PydanticOmit:
            if schema["type"].endswith("-field") and self.field_is_required(schema, total=True):
                reason = "that SkipJsonSchema leaves out cannot occur; give it a default"
                return {"pattern": refuse("a required member", reason)}
            raise

    def _with_validator(self, found: Any, name: str) -> Any:
        """Return a JSON schema that names one more Python function among its validators."""
        if self._json_code is not None:
            self._json_code.append(name)
            return found
        found = dict(found)
        marked = self.get_schema_from_definitions(found["$ref"]) if "$ref" in found else None
        target = found if marked is None else marked
        target[VALIDATOR] = ", ".join([*filter(None, [target.get(VALIDATOR)]), name])
        return found

    def _with_bounds(self, core: Any, bounds: Mapping[str, Any]) -> Any:
        """Return a JSON schema with bounds that Python code checks on the parsed value."""
        leaves = list(_leaves(core))
        kinds = {leaf["type"] for leaf in leaves}
        if bounds.keys() <= _LENGTHS.keys():
            is_exact = kinds & _SIZED.keys() and all(map(_keeps_size, leaves))
            limits = {name: bounds[k] for k in bounds for name in _LENGTHS[k]}
            limits["type"] = sorted({_SIZED[kind] for kind in kinds & _SIZED.keys()})
        else:
            numbers = {"int", "float", "decimal"}
            is_exact = kinds & numbers and kinds <= numbers | {"none", "str"}
            is_exact = is_exact and bounds.keys() <= {*_FACETS, "allow_inf_nan"}
            limits = {"type": "number", **_facets(bounds)}
            limits = _finite(limits) if "allow_inf_nan" in bounds else limits
        if is_exact:
            return {"allOf": [self.generate_inner(core), limits]}
        changed = core["type"].startswith("function-")
        what = "a value that Python code changes" if changed else f"type {core['type']!r}"
        reason = f"is not supported on {what}; move the bound to a type inside it, or remove it"
        return {"pattern": refuse(f"a bound ({', '.join(bounds)})", reason)}

    def _with_hooks(self, schema: Any) -> Any:
        """Return the schema after a type's hooks, restricted to what the validator accepts."""
        is_known = "ref" in schema and schema["ref"] in self._seen
        self._seen.add(schema.get("ref"))
        found = _replace_format(super().generate_inner(schema), schema)
        if is_known or not _has_hook(schema):
            return found
        try:
            plain = self._without_hooks(schema)
        except PydanticInvalidForJsonSchema:
            if not _code(schema):
                raise
            return found
        target = self.get_schema_from_definitions(found["$ref"]) if "ref" in schema else None
        changed = found if target is None else dict(target)
        if _bare(changed) == _bare(plain):
            return found
        if target is None:
            return {"allOf": [changed, plain]}
        target.clear()
        target["allOf"] = [changed, plain]
        return found

    def _without_hooks(self, schema: Any) -> Any:
        """Return the JSON schema of a core schema as if the user changed nothing in it."""
        if schema["type"] not in ("model", "dataclass"):
            removed = {"ref", "metadata"} | ({"cls"} if schema["type"] == "typed-dict" else set())
            return super().generate_inner({k: v for k, v in schema.items() if k not in removed})
        found = dict(self.generate_inner(schema["schema"]))
        extra = self._configs[-1].get("extra_fields_behavior")
        if extra in ("allow", "forbid"):
            found.setdefault("additionalProperties", extra == "allow")
        return found

    def _with_keys(self, found: Any, core: Any) -> Any:
        """Return the JSON schema of a mapping whose keys pydantic parses from texts."""
        values = found.pop("patternProperties", None)
        if values is not None:
            (found["additionalProperties"],) = values.values()
        names = self.generate_inner(core)
        target = self.get_schema_from_definitions(names["$ref"]) if "$ref" in names else names
        target = target or {}
        kind = "constants" if target.keys() & {"enum", "const"} else target.get("type")
        if kind in ("integer", "number"):
            bounds = {k: names[name] for k, name in _FACETS.items() if name in names}
            code = {VALIDATOR: names[VALIDATOR]} if VALIDATOR in names else {}
            names = {**_texts(f"{kind} keys", _numerals, kind, **bounds), **code}
        elif target and "string" not in (kind, target.get("type")):
            reason = "are not supported; use str"
            names = {"pattern": refuse(f"keys of {kind or 'several types'}", reason)}
        return {**found, "propertyNames": names} if names not in ({"type": "string"}, {}) else found

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Require a member whose default value isn't valid for its own type."""
        schema = field["schema"]
        checked = schema.get("validate_default", self._configs[-1].get("validate_default"))
        if super().field_is_required(field, total) or "default" not in schema or not checked:
            return super().field_is_required(field, total)
        try:
            SchemaValidator(schema["schema"]).validate_python(schema["default"])
        except ValidationError:
            return True
        except SchemaError:  # part of a recursive type
            return False
        return False

    def definitions_schema(self, schema: Any) -> Any:
        self._shared = schema["definitions"]
        return super().definitions_schema(schema)

    def str_schema(self, schema: Any) -> Any:
        config, schema = self._configs[-1], dict(schema)
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
            patterns.append(rust(r"\A(?:\S(?s:.*\S)?)?\z"))
        if schema.get("ascii_only"):
            patterns.append(rust(r"\A[[:ascii:]]*\z"))
        if patterns:
            found["pattern"] = patterns[0]
        if len(patterns) > 1:
            found["allOf"] = [{"pattern": pattern} for pattern in patterns[1:]]
        return found

    def bytes_schema(self, schema: Any) -> Any:
        return {"type": "string"}

    def float_schema(self, schema: Any) -> Any:
        found = super().float_schema(schema)
        infinite = schema.get("allow_inf_nan", self._configs[-1].get("allow_inf_nan", True))
        return found if infinite else _finite(found)

    def decimal_schema(self, schema: Any) -> Any:
        options = {k: schema[k] for k in _FACETS if schema.get(k) is not None}
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        text = _texts("decimal", _decimal_texts, digits=digits, places=places, **options)
        return {"anyOf": [*_decimal_numbers(schema, digits, places), text]}

    def date_schema(self, schema: Any) -> Any:
        if schema.get("gt") == datetime.date.max or schema.get("lt") == datetime.date.min:
            return {"not": {}}
        lows = [b for b in (schema.get("ge"), schema.get("gt") and schema["gt"] + _DAY) if b]
        highs = (schema.get("le"), schema.get("lt") and schema["lt"] - _DAY, _last_day(schema))
        first, last = max(lows, default=None), min(filter(None, highs), default=None)
        return _texts("date", _dates, first, last)

    def datetime_schema(self, schema: Any) -> Any:
        return _texts("datetime", _datetimes, _timezone(schema), _last_day(schema))

    def time_schema(self, schema: Any) -> Any:
        return _texts("time", _times, _timezone(schema))

    def timedelta_schema(self, schema: Any) -> Any:
        zero = schema.get("gt") is None
        signed = zero and schema.get("ge") is None
        return _texts("timedelta", _timedeltas, signed=signed, zero=zero)

    def uuid_schema(self, schema: Any) -> Any:
        return _texts("uuid", _uuids, schema.get("version"))

    def url_schema(self, schema: Any) -> Any:
        found = super().url_schema(schema)
        del found["format"]
        if "maxLength" in found:  # pydantic counts the trailing slash that it adds to the URL
            found["maxLength"] -= 1
        schemes = tuple(schema.get("allowed_schemes") or ())
        return {**found, **_texts("url", _urls, schemes, bool(schema.get("host_required")))}

    multi_host_url_schema = url_schema

    def json_schema(self, schema: Any) -> Any:
        """Return the JSON schema of a string that contains the JSON text of another type."""
        if self._json_code is not None:
            return {"pattern": refuse("a Json", "inside of another Json is not supported")}
        inner = TypeSchemas(self._compile)
        code: list[str] = []
        inner._json_code = code
        core = {"type": "definitions", "schema": schema.get("schema") or {"type": "any"}}
        content = inner.generate({**core, "definitions": self._shared})
        label = json.dumps(content, default=str)
        pattern = TextPattern(label, "JSON", partial(self._compile, content))
        found = {"type": "string", "pattern": pattern}
        return self._with_validator(found, ", ".join(dict.fromkeys(code))) if code else found

    def tagged_union_schema(self, schema: Any) -> Any:
        """Require the tag in each member of a tagged union, even if it has a default."""
        found = super().tagged_union_schema(schema)
        if callable(schema["discriminator"]):
            name = _name_of(schema["discriminator"])
            return self._with_validator({"anyOf": found["oneOf"]}, name)
        tag = found.get("discriminator", {}).get("propertyName")
        if tag is None:
            reason = "whose tag has several names is not supported; use one"
            return {"pattern": refuse("a union", reason)}
        choices = [{"allOf": [choice], "required": [tag]} for choice in found["oneOf"]]
        return {**found, "oneOf": choices}

    def chain_schema(self, schema: Any) -> Any:
        """Intersect the types of a chain; each type validates the previous type's result."""
        first, *others = schema["steps"]
        found = self.generate_inner(first)
        for step in others:
            if _code(step) and not _OWN.fullmatch(_code(step)):
                found = self._with_validator(found, _code(step, with_module=False))
            elif all(map(_is_kept, _leaves(first))):
                found = {"allOf": [found, self.generate_inner(step)]}
            else:
                reason = "whose first type changes the value is not supported; remove the first"
                return {"pattern": refuse("a chain of types", reason)}
        return found


# -- pydantic's core schemas ---------------------------------------------------------------------


def _why_not(schema: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the name and the problem of a type that isn't supported; None for all others."""
    kind, code = schema["type"], _code(schema)
    bounds = {k: schema[k] for k in _FACETS if schema.get(k) is not None}
    if schema.get("now_op") == "future":
        return f"a {kind} in the future", "depends on the clock; use a type without it"
    match kind:
        case "is-instance" | "is-subclass":
            return f"{schema['cls']!r}", "cannot be parsed from JSON; use another type"
        case "datetime" | "time" if bounds:
            return f"a {kind}", "with bounds is not supported; remove the bounds"
        case "datetime" if isinstance(schema.get("tz_constraint"), int):
            return "a datetime", "with a single offset is not supported; use AwareDatetime"
        case "timedelta" if "multiple_of" in bounds:
            return "a timedelta", "with multiple_of is not supported; remove it"
        case "timedelta" if any(bounds.values()) or bounds.keys() & {"lt", "le"}:
            return "a timedelta", "with bounds other than `gt=0` and `ge=0` is not supported"
        case "bytes" if config.get("val_json_bytes", "utf8") != "utf8":
            return "a bytes value", f"in {config['val_json_bytes']} is not supported; use str"
        case "bytes" if schema.get("min_length") or schema.get("max_length") is not None:
            return "a bytes value", "with a bound is not supported; use str"
        case "literal" | "enum":
            for value in schema.get("expected") or schema.get("members") or ():
                # pydantic parses the members of an `Enum`, but not those that a `Literal` lists.
                plain = value.value if isinstance(value, Enum) and kind == "enum" else value
                if not isinstance(plain, str | int | float | None):
                    name = type(plain).__name__
                    return f"constants of type {name}", "cannot be parsed from JSON; use str or int"
        case "url" | "multi-host-url" if not schema.get("allowed_schemes"):
            for name in ("default_host", "default_port"):
                if schema.get(name) is not None:
                    return "a URL", f"with a {name} needs allowed_schemes; list them"
        case "model-fields" if schema.get("extras_keys_schema") not in (None, {"type": "str"}):
            reason = "is not supported; annotate `__pydantic_extra__` with dict[str, ...]"
            return "the type of undeclared names", reason
        case "set" | "frozenset" if not _is_hashable(schema.get("items_schema") or {"type": "any"}):
            return f"a {kind}", "with elements that Python can't hash is not supported; use a list"
        case "set" | "frozenset" | "dict" | "ordered-dict" | "counter":
            if (schema.get("min_length") or 0) > 1 and not _has_distinct_members(schema):
                reason = "is not supported if members may be equal in Python; use int or str"
                return "a minimum size", reason
    alias = schema.get("validation_alias")
    if isinstance(alias, list):
        paths = alias if isinstance(alias[0], list) else [alias]
        if not any(len(path) == 1 for path in paths):
            return "a member", "at an AliasPath is not supported; use an alias"
    if "PathType." in code:
        return "a path", "that depends on the file system is not supported; use str or Path"
    if code.endswith(".import_string"):
        return "an ImportString", "depends on what can be imported; use str"
    if code.endswith(("pattern_either_validator", "pattern_str_validator")):
        return "a Pattern", "is not supported, as its texts are not a regular language; use str"
    is_own = _OWN.fullmatch(code) and not _FUNCTIONS.fullmatch(code)
    if is_own and not _bounds_of(schema):
        name = _code(schema, with_module=False).partition(".")[0]
        return f"pydantic's {name}", "is not supported; use another type"
    if not _KINDS.fullmatch(kind):
        return f"the type {kind!r}", "is not supported; use another type"
    return None


def _code(schema: Mapping[str, Any], *, with_module: bool = True) -> str:
    """Return the name of the Python code that validates values of a core schema, or ""."""
    given, kind = schema.get("function"), schema["type"]
    code = None
    if kind in ("model", "dataclass"):
        cls, name = schema["cls"], "model_post_init" if kind == "model" else "__post_init__"
        if schema.get("custom_init"):
            code = cls.__init__
        elif cls.__new__ is not object.__new__:
            code = cls.__new__
        elif schema.get("post_init"):
            # If a model has private attributes, pydantic wraps the model's method in its own.
            code = getattr(getattr(cls, name), "__wrapped__", getattr(cls, name))
    elif kind.startswith("function-") and isinstance(given, Mapping):
        code = given["function"]
    elif kind in ("call", "named-tuple"):
        code = given or schema["cls"]
        if isinstance(code, type):  # a plain named tuple has no code
            own = next(cls for cls in code.__mro__ if "__new__" in vars(cls))
            code = None if own.__bases__ == (tuple,) else own.__new__
    if code is None:
        return ""
    while isinstance(code, partial):
        code = code.func
    name = _name_of(code)
    return f"{getattr(code, '__module__', None) or ''}.{name}" if with_module else name


def _name_of(code: Any) -> str:
    return str(getattr(code, "__qualname__", type(code).__qualname__)).rpartition("<locals>.")[2]


def _bounds_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds that one of pydantic's own functions checks, by pydantic's names."""
    given = schema.get("function")
    code = given["function"] if isinstance(given, Mapping) else None
    if getattr(code, "__name__", "") == "forbid_inf_nan_check":
        return {"allow_inf_nan": False}
    named = code.keywords if isinstance(code, partial) and _OWN.fullmatch(_code(schema)) else {}
    known = {*_FACETS, *_LENGTHS, "max_digits", "decimal_places"}
    return dict(named) if named.keys() <= known else {}


def _leaves(core: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the core schemas of a value inside unions and wrappers that don't change it."""
    kind = core["type"]
    if kind == "union" and core.get("mode", "smart") == "smart":
        for choice in core["choices"]:
            yield from _leaves(choice[0] if isinstance(choice, tuple) else choice)
    elif kind == "nullable":
        yield from ({"type": "none"}, *_leaves(core["schema"]))
    elif kind in ("json-or-python", "lax-or-strict"):
        yield from _leaves(core["json_schema" if kind == "json-or-python" else "lax_schema"])
    elif kind == "default" or _bounds_of(core):
        yield from _leaves(core["schema"])
    else:
        yield core


def _is_kept(core: Mapping[str, Any]) -> bool:
    """Return whether pydantic leaves the JSON values of a core schema unchanged."""
    changes = ("strip_whitespace", "to_lower", "to_upper")
    is_text = core["type"] == "str" and not any(core.get(change) for change in changes)
    return is_text or core["type"] in ("any", "bool", "float", "int", "none")


def _keeps_size(core: Mapping[str, Any]) -> bool:
    """Return whether a parsed value has the size of the JSON value, if it has a size."""
    if core["type"] == "dict":
        return _has_distinct_members(core)
    return core["type"] in ("list", "tuple") or (core["type"] != "any" and _is_kept(core))


def _has_distinct_members(core: Mapping[str, Any]) -> bool:
    """Return whether different members of a set, or keys of a dict, differ in Python.

    In a set of numbers and booleans they may be equal, because `1 == True`. So may strings that are
    stripped, and the keys "1" and "1.0".
    """
    member = core.get("items_schema") or core.get("keys_schema") or {"type": "any"}
    kind = member["type"]
    if kind in ("literal", "enum"):
        values = member.get("expected") or member.get("members") or ()
        return len({*values}) == len(values)
    return _is_kept(member) and kind != "any" and (kind != "float" or "items_schema" in core)


def _is_hashable(core: Mapping[str, Any]) -> bool:
    """Return whether values of a type may be elements of a set, as far as its schema shows."""
    if core["type"] in ("list", "dict", "set", "typed-dict"):
        return False
    return "cls" not in core or core["cls"].__hash__ is not None


def _has_hook(schema: Mapping[str, Any]) -> bool:
    """Return whether the user changes the JSON schema of a type, by annotations or in its class."""
    metadata, cls = schema.get("metadata") or {}, schema.get("cls")
    config = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}
    root = getattr(cls, "model_fields", {}).get("root")
    extra = config.get("json_schema_extra") or getattr(root, "json_schema_extra", None)
    hooks = [
        *metadata.get("pydantic_js_functions", ()),
        *metadata.get("pydantic_js_annotation_functions", ()),
    ]
    modules = [getattr(hook, "__module__", None) or "" for hook in hooks]
    # pydantic.json_schema has the hooks that users write as annotations.
    return bool(extra or metadata.get("pydantic_js_extra")) or not all(
        module.startswith("pydantic.") and module != "pydantic.json_schema" for module in modules
    )


# -- JSON schemas --------------------------------------------------------------------------------


def _texts(name: str, build: Callable[..., Automaton], *args: Any, **options: Any) -> Any:
    """Return a JSON schema of the strings in a language; messages describe them by `name`."""
    shown = ", ".join([*map(str, args), *(f"{k}={v}" for k, v in options.items())])
    label = f"{name}({shown})" if shown else name
    built = partial(_build, build, *args, **options)
    return {"type": "string", "pattern": TextPattern(label, "texts", built)}


@cache_with_price(64)
def _build(build: Callable[..., Automaton], *args: Any, **options: Any) -> Automaton:
    return build(*args, **options)


def _replace_format(found: dict[str, Any], core: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON schema with a pattern in place of a format that only pydantic has."""
    name = found.get("format")
    if not isinstance(name, str):
        return found
    rest = {keyword: value for keyword, value in found.items() if keyword != "format"}
    address = re.fullmatch("ipv(4|6|any)(address|interface|network)", name)
    if address:
        return rest | _texts(name, _addresses, address[1].replace("any", "46"), address[2])
    if re.fullmatch("uuid[1-8]", name):
        return rest | _texts("uuid", _uuids, int(name[4:]))
    if name in ("email", "name-email"):
        return rest | _texts("email", _emails)
    if name in ("password", "path"):
        return rest
    is_own = (core.get("metadata") or {}).get("pydantic_js_functions") and not _has_hook(core)
    if is_own and name not in ("ipv4", "ipv6"):
        return {"pattern": refuse(f"pydantic's format {name!r}", "is not supported; use str")}
    return found


def _bare(schema: Any) -> Any:
    """Return a schema without annotations, at every depth."""
    if isinstance(schema, list):
        return [_bare(value) for value in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {}
    for keyword, value in schema.items():
        if keyword in (*NAMED, *DEFINITIONS) and isinstance(value, Mapping):
            kept[keyword] = {name: _bare(inner) for name, inner in value.items()}
        elif keyword not in ANNOTATIONS:
            kept[keyword] = value if keyword in ("const", "enum") else _bare(value)
    return kept


# -- numbers -------------------------------------------------------------------------------------


def _finite(found: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of numbers with bounds that make the numbers finite as floats."""
    lows = {} if found.keys() & {"minimum", "exclusiveMinimum"} else {"minimum": -_LARGEST}
    highs = {} if found.keys() & {"maximum", "exclusiveMaximum"} else {"maximum": _LARGEST}
    return {**found, **lows, **highs}


def _facets(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds in a core schema under JSON Schema's names."""
    return {_FACETS[k]: _number(schema[k]) for k in _FACETS if schema.get(k) is not None}


def _number(value: Any) -> int | float:
    """Return a bound as a number of JSON; whole numbers of any size are exact."""
    exact = Decimal(value)
    is_whole = exact.is_finite() and exact == exact.to_integral_value()
    return int(exact) if is_whole else float(exact)


def _decimal_numbers(
    schema: Mapping[str, Any], digits: int | None, places: int | None
) -> list[dict[str, Any]]:
    """Return JSON schemas whose union is the numbers that a `Decimal` accepts."""
    plain = _finite({"type": "number", **_facets(schema)})
    if digits is None and places is None:
        return [plain]
    most = min(_EXACT_DIGITS if digits is None else digits, _EXACT_DIGITS)
    found = []
    for behind in range(min(most, most if places is None else places) + 1):
        whole = min(most - behind, most if digits is None or places is None else digits - places)
        limit = 10 ** max(whole, 0)
        step = {"multipleOf": _number(f"1e-{behind}"), "type": "number"}
        limits = {"exclusiveMinimum": -limit, "exclusiveMaximum": limit}
        found.append({"allOf": [plain, step], "type": "number", **limits})
    if digits is not None and places is not None and digits <= places:  # 0 has a digit before them
        found = [{**each, "not": {"const": 0}} for each in found]
    return found


def _decimal_texts(
    digits: int | None, places: int | None, multiple_of: Any = None, **bounds: Any
) -> Automaton:
    """Return decimal numbers without an exponent, with limits on their digits and their value."""
    if digits is None:
        pairs: list[tuple[int | None, int | None]] = [(None, places)]
    else:
        most = digits if places is None else max(digits - places, 0)
        behind = digits if places is None else places
        pairs = [(n, min(digits - n, behind)) for n in range(most + 1)]
    options = []
    for n, behind_point in pairs:
        before = "0|[1-9][0-9]*" if n is None else f"[1-9][0-9]{{{n - 1}}}" if n else "0"
        after = "+" if behind_point is None else f"{{1,{behind_point}}}"
        fraction = "" if behind_point == 0 else rf"(\.[0-9]{after})"
        needs_fraction = digits is not None and places is not None and digits <= places
        options.append(f"({before}){fraction}" + ("?" if fraction and not needs_fraction else ""))
    return regex(f"-?({'|'.join(options)})") & _within(decimals, multiple_of, bounds, wide=True)


def _numerals(kind: str, multiple_of: Any = None, **bounds: Any) -> Automaton:
    """Return the numerals of a JSON type, "integer" or "number", within bounds."""
    return _within(integers if kind == "integer" else decimals, multiple_of, bounds)


def _within(
    build: Callable[..., Automaton], multiple_of: Any, given: Mapping[str, Any], **options: Any
) -> Automaton:
    """Return the numbers of a language within pydantic's bounds."""
    exact = {k: v if isinstance(v, Decimal) else Decimal(str(v)) for k, v in given.items()}
    lows = [Bound(exact[k], k == "gt") for k in ("gt", "ge") if k in exact]
    highs = [Bound(exact[k], k == "lt") for k in ("lt", "le") if k in exact]
    low = max(lows, key=lambda bound: (bound.value, bound.strict), default=None)
    high = min(highs, key=lambda bound: (bound.value, not bound.strict), default=None)
    found = build(low, high, **options)
    return found if multiple_of is None else found & multiples(Decimal(str(multiple_of)))


# -- texts that pydantic parses ------------------------------------------------------------------

_HEX = "[0-9A-Fa-f]"
_SPECIAL = ("http", "https", "ws", "wss", "ftp")  # schemes whose URLs have a host


def _timezone(schema: Mapping[str, Any]) -> str:
    """Return whether times have a UTC offset: "none", "free" (may have one) or "needed"."""
    return {"naive": "none", None: "free"}.get(schema.get("tz_constraint"), "needed")


def _last_day(schema: Mapping[str, Any]) -> datetime.date | None:
    """Return the latest date of a past-date type: two days ago, which is past everywhere."""
    return datetime.date.today() - 2 * _DAY if schema.get("now_op") == "past" else None


def _dates(first: datetime.date | None, last: datetime.date | None) -> Automaton:
    """Return the dates from `first` to `last`, inclusive; None for no bound."""
    found = _format("date") - regex("0000.*")
    if first is not None:
        found &= _compare(first.isoformat(), "greater")
    return found if last is None else found & _compare(last.isoformat(), "less")


def _compare(text: str, how: str) -> Automaton:
    """Return `text`, and all texts that first differ from it by a "greater" or a "less" digit."""
    options = [re.escape(text)]
    for at, character in enumerate(text):
        digits = [d for d in "0123456789" if (d > character if how == "greater" else d < character)]
        if character.isdigit() and digits:
            options.append(f"{re.escape(text[:at])}[{''.join(digits)}].*")
    return regex("|".join(options))


def _datetimes(offset: str, last: datetime.date | None) -> Automaton:
    return Automaton.concatenate([_dates(None, last), regex("[Tt]"), _times(offset)])


def _times(offset: str) -> Automaton:
    """Return times of day; `offset` from UTC is "none", "needed" or "free" (optional)."""
    found = "([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
    clock = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
    return regex(clock + {"none": "", "needed": found, "free": f"{found}?"}[offset])


def _timedeltas(*, signed: bool, zero: bool) -> Automaton:
    """Return ISO 8601 durations that fit into a `timedelta`, with or without a sign and zero."""
    second = r"([0-9]{1,8}(\.[0-9]{1,6})?S)"
    clock = f"(T(?=[0-9])([0-9]{{1,6}}H)?([0-9]{{1,6}}M)?{second}?)"
    within = r"(T(?=[0-9])((1?[0-9]|2[0-3])H)?([1-5]?[0-9]M)?([1-5]?[0-9](\.[0-9]{1,6})?S)?)"
    years = f"(?=[0-9T])([0-9]{{1,6}}Y)?([0-9]{{1,7}}M)?([0-9]{{1,8}}D)?{clock}?"
    weeks = regex("[0-9]{1,8}") | (regex("[0-9]{9}") & _compare("142857142", "less"))
    found = regex(f"P({years}|[0-9]{{1,9}}D{within}?)")
    found |= Automaton.concatenate([Automaton.literal("P"), weeks, Automaton.literal("W")])
    if not zero:
        found &= regex(".*[1-9].*")
    return Automaton.literal("-").optional() + found if signed else found


def _uuids(version: int | None) -> Automaton:
    """Return UUIDs of one version, or of any version if `version` is None."""
    third = f"{version}{_HEX}{{3}}-[89ABab]{_HEX}{{3}}" if version else f"{_HEX}{{4}}-{_HEX}{{4}}"
    return regex(f"{_HEX}{{8}}-{_HEX}{{4}}-{third}-{_HEX}{{12}}")


def _format(name: str) -> Automaton:
    found = text_format(name)
    assert found is not None
    return found


def _addresses(versions: str, form: str) -> Automaton:
    """Return IP addresses of versions "4", "6" or "46", or interfaces or networks."""
    longest = {"4": "([12]?[0-9]|3[0-2])", "6": "([1-9]?[0-9]|1[01][0-9]|12[0-8])"}
    options = []
    for version in versions:
        address = _format(f"ipv{version}")
        options.append(address)
        if form == "interface":
            options.append(address + regex(f"/{longest[version]}"))
        if form == "network":
            options.append(_networks_4() if version == "4" else _networks_6())
    return Automaton.union(options)


def _networks_4() -> Automaton:
    """Return IPv4 networks as address and prefix length; bits after the prefix are zero."""
    options = []
    for length in range(33):
        fixed = [min(max(length - 8 * at, 0), 8) for at in range(4)]
        octets = ["|".join(map(str, range(0, 256, 1 << (8 - bits)))) for bits in fixed]
        options.append(r"\.".join(f"({octet})" for octet in octets) + f"/{length}")
    return Automaton.union([regex(option) for option in options])


def _networks_6() -> Automaton:
    group = f"{_HEX}{{1,4}}"
    prefixes = [f"{group}(:{group}){{{n - 1}}}::/{16 * n}" for n in range(1, 8)]
    return (_format("ipv6") + regex("/128")) | regex("|".join(["::/0", *prefixes]))


def _urls(schemes: tuple[str, ...], needs_host: bool) -> Automaton:
    """Return URLs with one of the given schemes, or with any scheme if none are given."""
    character = rf"([A-Za-z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
    after = rf"(\?({character}|[/?])*)?(#({character}|[/?])*)?"
    label = "[0-9A-Za-z]([0-9A-Za-z-]*[0-9A-Za-z])?"
    name = regex(rf"({label}\.)*[A-Za-z]([0-9A-Za-z-]*[0-9A-Za-z])?") - regex(r"([^.]+\.)*..--.*")
    bracketed = Automaton.literal("[") + _format("ipv6") + Automaton.literal("]")
    user = regex("//([A-Za-z0-9._~-]+(:[A-Za-z0-9._~-]*)?@)?")
    rest = regex(rf"(:([0-9]{{1,4}}|[1-5][0-9]{{4}}))?(/{character}*)*{after}")
    authority = Automaton.concatenate([user, name | _format("ipv4") | bracketed, rest])
    path = regex(f"(/({character}+(/{character}*)*)?|{character}+(/{character}*)*)?{after}")
    file = Automaton.literal("file:") + regex(f"///({character}+(/{character}*)*)?{after}")
    if schemes:
        with_host = [s for s in schemes if s != "file"]
        found = Automaton.from_strings(f"{s}:" for s in with_host) + authority
        return found | file if "file" in schemes and not needs_host else found
    others = regex("[A-Za-z][A-Za-z0-9+.-]*:") - regex(f"(?i-u:{'|'.join((*_SPECIAL, 'file'))}):")
    special = regex(f"(?i-u:{'|'.join(_SPECIAL)}):")
    if needs_host:
        return (special | others) + authority
    return Automaton.union([special + authority, others + (authority | path), file])


def _emails() -> Automaton:
    """Return email addresses that `email-validator` accepts."""
    atom = r"[A-Za-z0-9!#$%&'*+\-/=?^_`{|}~]"
    label = "[0-9A-Za-z]([0-9A-Za-z-]{0,28}[0-9A-Za-z])?"
    reserved = "arpa|example|internal|invalid|local|localhost|onion|test"
    local = regex(rf"{atom}+(\.{atom}+)*") & regex(".{1,64}")
    domain = regex(rf"({label}\.){{1,3}}[A-Za-z]{{2,24}}")
    domain -= regex(rf"(?i-u:.*\.({reserved})|([^.]+\.)*..--.*)")
    return Automaton.concatenate([local, Automaton.literal("@"), domain])
