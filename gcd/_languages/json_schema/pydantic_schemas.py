"""JSON schemas of Python types that describe exactly what pydantic's validator accepts.

pydantic's own JSON schema omits facts that its core schema contains: that a `NaiveDatetime` has no
offset, that patterns use Rust's syntax, that the keys of a `dict[int, ...]` are numerals. The
public class `GenerateJsonSchema` receives the core schema of each type. The subclass in this module
returns a pattern that stands for exactly the accepted texts
(`gcd._languages.text.dialects.TextPattern`). Hooks of a type may add keywords afterwards, such as
`"format": "uuid4"`; `pydantic_hooks.Finisher` replaces them.

If the JSON schema is narrower than the validator, the JSON schema applies. For example, pydantic
also parses a datetime from a number, but its JSON schema only has strings. Types that an automaton
can't check (existing files, future dates, `Pattern`) become patterns that raise an error. The error
has the JSON pointer of the part that uses the type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, get_origin

from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError
from gcd._languages.json_schema.keywords import VALIDATOR
from gcd._languages.json_schema.pydantic_bounds import (
    add_bounds,
    bounds_of,
    has_distinct_values,
    indistinct,
)
from gcd._languages.json_schema.pydantic_hooks import BYTES, KEYS, Finisher, conjunction, has_hook
from gcd._languages.json_schema.pydantic_values import (
    BOUNDS,
    NO_FILES,
    dates,
    datetimes,
    decimal_numbers,
    decimal_text,
    facets,
    finite,
    refusal,
    refuse_constants,
    texts,
    timezone,
)
from gcd._languages.text import class_texts
from gcd._languages.text.dialects import python, rust
from gcd._support.optional import missing

# Modules of pydantic's own types. Code elsewhere in pydantic calls functions that users passed.
_OWN = (
    "pydantic.types",
    "pydantic.networks",
    "pydantic._internal._validators",
    "pydantic._internal._generate_schema",
    "pydantic._internal._model_construction",
)
_PATTERN_CHECK = "_apply_constraint_with_incompatibility_info"  # wraps its own schema
_STRIPPED = r"\A(?:\S(?s:.*\S)?)?\z"


def is_class(given: Any) -> bool:
    """Return whether a value is a type or a pydantic adapter rather than a JSON schema."""
    adapted = hasattr(given, "core_schema") and hasattr(given, "json_schema")
    special = type(given).__module__ in ("typing", "typing_extensions")  # NewType, `type X = ...`
    return isinstance(given, type) or get_origin(given) is not None or adapted or special


def class_schema(given: Any, compile_schema: Callable[[Any], Automaton]) -> dict[str, Any]:
    """Return the JSON schema of a type that pydantic validates.

    Args:
        given: a model, dataclass, TypedDict, enum, `Literal[...]`, `list[...]`, `A | B` or other
            type; or a `pydantic.TypeAdapter`.
        compile_schema: function that compiles a JSON schema, for strings that contain JSON.

    Raises:
        ConstraintError: pydantic isn't installed (extra `pydantic`), or has no JSON schema for a
            type, such as `Callable`.
    """
    name = repr(given) if get_origin(given) else getattr(given, "__name__", repr(given))
    try:
        from pydantic import PydanticInvalidForJsonSchema, PydanticUserError, TypeAdapter
        from pydantic_core import PydanticOmit, SchemaError
    except ImportError as error:
        needed = missing("pydantic", "pydantic", f"a schema given as the type {name}")
        raise ConstraintError(str(needed)) from error
    try:
        if isinstance(given, type) and hasattr(given, "model_json_schema"):
            schema = given.model_json_schema(schema_generator=_generator())
        else:
            adapter = given if isinstance(given, TypeAdapter) else TypeAdapter(given)
            schema = adapter.json_schema(schema_generator=_generator())
    except PydanticInvalidForJsonSchema as error:
        raise ConstraintError(
            f"expected types that JSON can represent in the class {name}, got another: "
            f"{error.message}; use types that can be parsed from JSON"
        ) from error
    except (PydanticUserError, PydanticOmit, SchemaError, NameError) as error:
        omitted = isinstance(error, PydanticOmit)
        cause = "it has no JSON schema" if omitted else str(error).splitlines()[0]
        raise ConstraintError(f"pydantic cannot parse the type {name}: {cause}") from error
    if schema.keys() == {"$ref", "$defs", VALIDATOR}:  # the class has a validator
        own = schema["$defs"][schema.pop("$ref").removeprefix("#/$defs/")]
        schema = {**own, **schema}
    found: dict[str, Any] = Finisher(schema.get("$defs", {}), compile_schema).finish(schema)
    return found


@lru_cache(maxsize=1)
def _generator() -> type:
    """Return the class that generates JSON schemas; pydantic is imported on first use."""
    from pydantic import PydanticInvalidForJsonSchema
    from pydantic.json_schema import GenerateJsonSchema
    from pydantic_core import PydanticOmit, SchemaError, SchemaValidator, ValidationError

    class ClassSchemas(GenerateJsonSchema):
        """Generator of JSON schemas; patterns keep the regex dialect of each pydantic class."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._configs: list[Mapping[str, Any]] = [{}]
            self._seen: set[str | None] = set()

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

        def model_fields_schema(self, schema: Any) -> Any:
            keys = schema.get("extras_keys_schema")
            if keys is not None and keys != {"type": "str"}:
                return refusal("the type of undeclared names", "is not supported; annotate "
                               "`__pydantic_extra__` with dict[str, ...]")  # fmt: skip
            return super().model_fields_schema(schema)

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
            """Require the tag in each member of a tagged union, even if it has a default."""
            found = super().tagged_union_schema(schema)
            if callable(schema["discriminator"]):
                name = _name_of(schema["discriminator"])
                return self._with_validator({"anyOf": found["oneOf"]}, name)
            tag = found.get("discriminator", {}).get("propertyName")
            if tag is None:
                return refusal("a union", "whose tag has several names is not supported; use one")
            choices = [{"allOf": [choice], "required": [tag]} for choice in found["oneOf"]]
            return {**found, "oneOf": choices}

        def _field(self, schema: Any, generate: Callable[[Any], Any]) -> Any:
            alias = schema.get("validation_alias")
            if isinstance(alias, list):
                paths = alias if isinstance(alias[0], list) else [alias]
                if not any(len(path) == 1 for path in paths):
                    return refusal("a member", "at an AliasPath is not supported; use an alias")
            try:
                return generate(schema)
            except PydanticOmit:
                if self.field_is_required(schema, total=True):
                    return refusal("a required member", "that SkipJsonSchema leaves out cannot "
                                   "occur in an answer; give it a default")  # fmt: skip
                raise

        def model_field_schema(self, schema: Any) -> Any:
            return self._field(schema, super().model_field_schema)

        def typed_dict_field_schema(self, schema: Any) -> Any:
            return self._field(schema, super().typed_dict_field_schema)

        def dataclass_field_schema(self, schema: Any) -> Any:
            return self._field(schema, super().dataclass_field_schema)

        def field_is_required(self, field: Any, total: bool) -> bool:
            """Require a member whose default value isn't valid for its own type."""
            return super().field_is_required(field, total) or self._has_bad_default(field["schema"])

        def _has_bad_default(self, schema: Any) -> bool:
            checked = schema.get("validate_default", self._configs[-1].get("validate_default"))
            if schema["type"] != "default" or "default" not in schema or not checked:
                return False
            try:
                SchemaValidator(schema["schema"]).validate_python(schema["default"])
            except ValidationError:
                return True
            except SchemaError:  # part of a recursive type
                return False
            return False

        def literal_schema(self, schema: Any) -> Any:
            return refuse_constants(schema["expected"], of_enum=False) or super().literal_schema(
                schema
            )

        def enum_schema(self, schema: Any) -> Any:
            return refuse_constants(schema["members"], of_enum=True) or super().enum_schema(schema)

        def is_subclass_schema(self, schema: Any) -> Any:
            return refusal("a class", "cannot be parsed from JSON; use another type")

        def is_instance_schema(self, schema: Any) -> Any:
            return refusal(f"{schema['cls']!r}", "cannot be parsed from JSON; use another type")

        def custom_error_schema(self, schema: Any) -> Any:
            if schema.get("custom_error_type") == "is_hashable":
                return {"not": {"type": ["array", "object"]}}
            return super().custom_error_schema(schema)

        def bytes_schema(self, schema: Any) -> Any:
            encoding = self._configs[-1].get("val_json_bytes", "utf8")
            if encoding != "utf8":
                return refusal("a bytes value", f"in {encoding} is not supported; use Base64Bytes")
            found: dict[str, Any] = {"type": "string", "format": "binary", BYTES: True}
            fewest, most = schema.get("min_length") or 0, schema.get("max_length")
            if fewest or most is not None:
                found |= texts("bytes", class_texts.texts_of_bytes, fewest, most)
            return found

        def float_schema(self, schema: Any) -> Any:
            found = super().float_schema(schema)
            infinite = schema.get("allow_inf_nan", self._configs[-1].get("allow_inf_nan", True))
            return found if infinite else finite(found)

        def set_schema(self, schema: Any) -> Any:
            return indistinct(schema, "items_schema") or super().set_schema(schema)

        def frozenset_schema(self, schema: Any) -> Any:
            return indistinct(schema, "items_schema") or super().frozenset_schema(schema)

        def chain_schema(self, schema: Any) -> Any:
            """Intersect the types of a chain; each type validates the previous type's result."""
            first, *others = schema["steps"]
            found = self.generate_inner(first)
            for step in others:
                code = _validator(step)
                if code is not None and code[0] != "pydantic":
                    found = self._with_validator(found, code[1])
                elif _is_kept(first):
                    found = {"allOf": [found, self.generate_inner(step)]}
                else:
                    return refusal("a chain of types", "whose first type changes the value is "
                                   "not supported; remove the first type")  # fmt: skip
            return found

        def decimal_schema(self, schema: Any) -> Any:
            return {"anyOf": [*decimal_numbers(schema), decimal_text(schema)]}

        def complex_schema(self, schema: Any) -> Any:
            number = r"(0|[1-9][0-9]*)(\.[0-9]+)?"
            return {"type": "string", "pattern": rust(rf"\A-?{number}([+-]{number})?j\z")}

        def date_schema(self, schema: Any) -> Any:
            return dates(schema)

        def datetime_schema(self, schema: Any) -> Any:
            return datetimes(schema)

        def time_schema(self, schema: Any) -> Any:
            if any(schema.get(bound) is not None for bound in BOUNDS):
                return refusal("a time", "with bounds is not supported; remove the bounds")
            return texts("time", class_texts.times, timezone(schema))

        def timedelta_schema(self, schema: Any) -> Any:
            bounds = {k: schema[k] for k in BOUNDS if schema.get(k) is not None}
            if schema.get("multiple_of") is not None:
                return refusal("a timedelta", "with multiple_of is not supported; remove it")
            if any(bounds.values()) or bounds.keys() & {"lt", "le"}:
                return refusal(
                    "a timedelta",
                    "with bounds is only supported for `gt=0` and `ge=0`; remove them",
                )
            return texts(
                "timedelta", class_texts.timedeltas, signed=not bounds, zero="gt" not in bounds
            )

        def uuid_schema(self, schema: Any) -> Any:
            return texts("uuid", class_texts.uuids, schema.get("version"))

        def url_schema(self, schema: Any) -> Any:
            found = super().url_schema(schema)
            del found["format"]
            if not schema.get("allowed_schemes"):
                for default in ("default_host", "default_port"):
                    if schema.get(default) is not None:
                        return refusal(
                            "a URL", f"with a {default} needs allowed_schemes; list them"
                        )
            schemes = tuple(schema.get("allowed_schemes") or ())
            # pydantic counts the trailing slash that it adds to the URL.
            if "maxLength" in found:
                found["maxLength"] -= 1
            return {**found, **texts("url", class_texts.urls, schemes)}

        multi_host_url_schema = url_schema

        def dict_schema(self, schema: Any) -> Any:
            return self._mapping(schema, super().dict_schema)

        def ordered_dict_schema(self, schema: Any) -> Any:
            return self._mapping(schema, super().ordered_dict_schema)

        def counter_schema(self, schema: Any) -> Any:
            return self._mapping(schema, super().counter_schema)

        def _mapping(self, schema: Any, generate: Callable[[Any], Any]) -> Any:
            found = indistinct(schema, "keys_schema") or generate(schema)
            keys = schema.get("keys_schema")
            if keys is None:
                return found
            values = found.pop("patternProperties", None)
            if values is not None:
                (found["additionalProperties"],) = values.values()
            names = self.generate_inner(keys)
            if names not in ({"type": "string"}, {}):
                found["propertyNames"] = {KEYS: True, "allOf": [names]}
            return found

        def fraction_schema(self, schema: Any) -> Any:
            numbers = finite({"type": "number", **facets(schema)})
            if facets(schema):
                return numbers
            text = {"type": "string", "pattern": rust(r"\A-?[0-9]+(/[1-9][0-9]*)?\z")}
            return {"anyOf": [numbers, text]}

        def generate_inner(self, schema: Any) -> Any:
            code = _validator(schema)
            match code:
                case "pydantic", "import_string":
                    return refusal("an ImportString", "depends on what can be imported; use str")
                case "pydantic", "PathType.validate_new":
                    return refusal("a NewPath", NO_FILES)
            is_own = code is not None and code[0] == "pydantic"
            bounds = (
                bounds_of(schema["function"]["function"])
                if is_own and "function" in schema
                else None
            )
            if bounds:
                return add_bounds(self.generate_inner(schema["schema"]), schema["schema"], bounds)
            found = self._with_hooks(schema)
            if code is None or is_own:
                return found
            return self._with_validator(found, code[1])

        def _with_validator(self, found: Any, name: str) -> Any:
            found = dict(found)
            marked = self.get_schema_from_definitions(found["$ref"]) if "$ref" in found else None
            target = found if marked is None else marked
            target[VALIDATOR] = ", ".join([*filter(None, [target.get(VALIDATOR)]), name])
            return found

        def _with_hooks(self, schema: Any) -> Any:
            """Return the schema after a type's hooks, restricted to what the validator accepts."""
            is_known = "ref" in schema and schema["ref"] in self._seen
            self._seen.add(schema.get("ref"))
            found = super().generate_inner(schema)
            is_changed = has_hook(schema.get("metadata") or {}, schema.get("cls"))
            if is_known or not is_changed:
                return found
            try:
                plain = self._inside(schema, self._without_hooks)
            except PydanticInvalidForJsonSchema:
                if _validator(schema) is None:
                    raise
                return found
            target = self.get_schema_from_definitions(found["$ref"]) if "ref" in schema else None
            if target is None:
                return conjunction(found, plain)
            both = conjunction(dict(target), plain)
            target.clear()
            target.update(both)
            return found

        def _without_hooks(self, schema: Any) -> Any:
            if schema["type"] not in ("model", "dataclass"):
                removed = {"ref", "metadata"} | (
                    {"cls"} if schema["type"] == "typed-dict" else set()
                )
                return super().generate_inner({k: v for k, v in schema.items() if k not in removed})
            found = dict(self.generate_inner(schema["schema"]))
            extra = self._configs[-1].get("extra_fields_behavior")
            if extra in ("allow", "forbid"):
                found.setdefault("additionalProperties", extra == "allow")
            return found

    return ClassSchemas


def _validator(schema: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the package and the name of the Python code that validates a core schema, or None."""
    given = schema.get("function")
    if schema["type"] in ("model", "dataclass"):
        code = _at_the_end(schema)
    elif schema["type"].startswith("function-") and isinstance(given, Mapping):
        code = given["function"]
    elif schema["type"] in ("call", "named-tuple"):
        code = _find_validator(given or schema["cls"])
    else:
        code = None
    if code is None:
        return None
    while isinstance(code, partial):
        code = code.func
    module, name = getattr(code, "__module__", None) or "", _name_of(code)
    if isinstance(code, type) and module == "ipaddress":  # pydantic calls it for addresses
        module = _OWN[0]
    is_own = module in _OWN and name != "validate_email"
    return "pydantic" if is_own or name == _PATTERN_CHECK else module, name


def _name_of(code: Any) -> str:
    return str(getattr(code, "__qualname__", type(code).__qualname__)).rpartition("<locals>.")[2]


def _is_kept(core: Mapping[str, Any]) -> bool:
    """Return whether pydantic leaves plain JSON values of a core schema unchanged."""
    if core["type"] == "union":
        return all(_is_kept(c[0] if isinstance(c, tuple) else c) for c in core["choices"])
    if core["type"] == "nullable":
        return _is_kept(core["schema"])
    return core["type"] in ("any", "bool", "float", "int", "none") or (
        core["type"] == "str" and has_distinct_values(core)
    )


def _find_validator(given: Any) -> Any:
    """Return the function that pydantic calls for a type; None for a plain named tuple."""
    if isinstance(given, type):
        own = next(cls for cls in given.__mro__ if "__new__" in vars(cls))
        return None if own.__bases__ == (tuple,) else own.__new__
    return given


def _at_the_end(schema: Mapping[str, Any]) -> Any:
    """Return the method that a class calls after parsing a value's members; None without one."""
    if schema.get("custom_init"):
        return schema["cls"].__init__
    if schema["cls"].__new__ is not object.__new__:
        return schema["cls"].__new__
    name = {"model": "model_post_init", "dataclass": "__post_init__"}[schema["type"]]
    if not schema.get("post_init"):
        return None
    # If a model has private attributes, pydantic wraps the model's method in its own.
    own = getattr(schema["cls"], name)
    return getattr(own, "__wrapped__", own)
