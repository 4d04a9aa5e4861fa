"""Compiler from a JSON schema to the byte language of its valid values' texts.

A schema of any draft from 4 to 2020-12 is translated into the vocabulary of 2020-12
(`gcd._languages.json_schema.reader`). It is then expanded into cases of plain schemas
(`gcd._languages.json_schema.choices`). Each case is merged into one description of a value
(`gcd._languages.json_schema.facets`), and the language of this description is built
(`gcd._languages.json_schema.languages`). A part of the schema is compiled once, however often it is
used.

The language is narrower than the standard only as docs/json_schema.md says in "Differences from the
standard": the order of members, undeclared members, and the spelling of values. If undeclared
members are excluded and this leaves no objects for a value, but the standard has some, they are
allowed there.

According to the standard, keywords for one kind of value don't affect others. So `{"properties":
...}` without `"type": "object"` also accepts every number.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, get_origin

from gcd._automata.automaton import Automaton
from gcd._automata.horizon import warn_of_caveats
from gcd._errors import (
    ConstraintError,
    EmptyLanguageError,
    UnsupportedSchemaError,
    WorkLimitError,
    check_count,
    show,
)
from gcd._languages.json_schema.document import Document
from gcd._languages.json_schema.emptiness import why_empty
from gcd._languages.json_schema.languages import Options, SchemaLanguages
from gcd._languages.json_schema.reader import IgnoredKeyword, warn_of
from gcd._languages.json_schema.upper_bounds import compile_or_relax, out_of_reach, restrict_length
from gcd._languages.json_schema.wrappers import unwrap
from gcd._languages.literal import without_mark
from gcd._languages.values.json_values import json_notation
from gcd._support.optional import missing

FORMATS = ("assert", "ignore")
UNSUPPORTED = ("warn", "ignore", "refuse")
_MAX_DEPTH = 32
_MAX_ANY_ORDER = 8


def json_schema(
    schema: Any,
    *,
    whitespace: str = "compact",
    max_depth: int = 3,
    escapes: str = "canonical",
    additional_properties: str = "closed",
    any_order: int = 0,
    formats: str = "assert",
    max_bytes: int | None = None,
    draft: str | None = None,
    unknown: str = "warn",
    unsupported: str = "warn",
) -> Automaton:
    """Return the language of all JSON texts that satisfy a schema.

    docs/json_schema.md lists where the language is narrower than the standard.

    Args:
        schema: a JSON schema as parsed JSON (a mapping or a boolean) or as JSON text; or a type
            that pydantic validates: a model class, a dataclass, a TypedDict, an enum,
            `Literal[...]`, `list[...]`, `A | B`, a `TypeAdapter`. Patterns of a class use Rust's
            syntax (or Python's, if its `regex_engine` selects it). Texts that the validator of the
            class refuses are excluded.
        whitespace: "compact" `{"a":1}`, "spaced" `{"a": 1}` as `json.dumps` writes it, or
            "flexible", any whitespace that RFC 8259 permits.
        max_depth: greatest nesting depth of values that the schema doesn't describe, and of
            recursive schemas.
        escapes: spelling of keys, constants, and strings with a pattern or a format: "canonical"
            (without escapes of printable ASCII that JSON doesn't require) or "all".
        additional_properties: "closed" excludes undeclared members where a schema has `properties`
            but no keyword for undeclared members; "open" allows them.
        any_order: objects with at most this many declared names accept them in any order. For n
            names, this takes 2^n times as many states.
        formats: "assert" (`format` constrains values) or "ignore" (`format` is an annotation).
        max_bytes: compile only the texts of at most this many bytes, exactly. Limits that no such
            text reaches, such as `"maxLength": 32767`, then don't take states. Budgets whose tokens
            could have more bytes are refused (`gcd.OverlongBudgetError`).
        draft: "4", "6", "7", "2019-09" or "2020-12", overriding `$schema`. None: the draft that
            `$schema` names. Without `$schema`, it is 2020-12, and the spellings of older drafts are
            also understood.
        unknown: treatment of keywords and formats that the draft doesn't have, and that therefore
            have no effect: "warn", "ignore", or "refuse".
        unsupported: treatment of keywords that no automaton of the allowed size can enforce.
            "warn": a warning names them, so validate the finished text. They are the largest upper
            bounds (`maxLength`, `maxItems`, ...), `uniqueItems` over arbitrary strings, and Python
            validators of a class. Bounds such as `"maxLength": 65536` are enforced even so,
            as budgets for longer texts raise `gcd.OverlongBudgetError`. "ignore": no warning, and
            neither these nor lower bounds that take too many states are enforced. "refuse": they
            are errors. The result's `caveats` lists them.

    Raises:
        UnsupportedSchemaError: a keyword is not supported; the error has its JSON pointer.
        ConstraintError: the schema or an option is malformed, or the target of a `$ref` doesn't
            exist.
        EmptyLanguageError: no value satisfies the schema.
        StateLimitError, WorkLimitError: an automaton has more states than `gcd.state_limit` allows,
            or all of them take more work than `gcd.work_limit`. The error has the keyword and the
            JSON pointer of the part that takes the most.

    Warns:
        IgnoredKeywordWarning: once, naming the keywords without effect (`unknown="warn"`).
        CaveatWarning: once, naming the keywords that the automaton doesn't enforce in every text
            (`unsupported="warn"`).
    """
    check_options(whitespace, escapes, unknown, formats, max_bytes, unsupported)
    notation = json_notation(whitespace, escapes)
    check_depth(max_depth)
    _check_option("additional_properties", additional_properties, ("closed", "open"))
    check_count("any_order", any_order, 0, _MAX_ANY_ORDER)
    root, base = _parse(schema)
    document = Document(
        root,
        base=base,
        max_depth=max_depth,
        assert_formats=formats == "assert",
        draft=draft,
        refuse_unknown=unknown == "refuse",
    )
    if unknown == "warn":
        warn_of(document.ignored)
    if unsupported == "refuse":
        refuse_validators(document)

    closed = additional_properties == "closed"
    options = Options(max_depth, max_bytes, unsupported, closed, any_order)

    def build(counted: float) -> Automaton:
        values = SchemaLanguages(document, notation, options._replace(counted=counted))
        try:
            language = values.language(document.root())
        except WorkLimitError as error:
            values.cache.blame_most_costly(error)
            raise
        if language.is_empty and values.cache.excluding:
            raise out_of_reach(values.cache.excluding)
        if language.is_empty:
            limit = (
                "" if max_bytes is None else f" in at most {max_bytes} bytes; raise max_bytes, or"
            )
            reason = why_empty(values) or f"{limit or ';'} correct the schema"
            raise EmptyLanguageError(f"no value satisfies the schema{reason}")
        language = Automaton.concatenate([notation.gap, language, notation.gap])
        what = "a text that satisfies the schema"
        return restrict_length(
            language, max_bytes, what, (*document.validators, *values.cache.caveats)
        )

    found = compile_or_relax(build, document.bounds, unsupported=unsupported)
    if unsupported == "warn":
        warn_of_caveats(found.caveats)
    return found


def ignored_keywords(
    schema: Any, *, formats: str = "assert", draft: str | None = None
) -> tuple[IgnoredKeyword, ...]:
    """Return the keywords of a schema that have no effect, about which `json_schema` warns.

    Only schemas that are reachable from the root are searched. Annotations that every draft has,
    such as titles and descriptions, are not included.

    Args:
        schema, formats, draft: as in `json_schema`.

    Raises:
        ConstraintError: as in `json_schema`.
    """
    _check_option("formats", formats, FORMATS)
    root, base = _parse(schema)
    document = Document(
        root,
        base=base,
        max_depth=0,
        assert_formats=formats == "assert",
        draft=draft,
        refuse_unknown=False,
    )
    return document.ignored


def _parse(schema: Any) -> tuple[Any, str]:
    """Return the schema of a JSON text, a type, a wrapper or a mapping, and its JSON pointer."""
    if is_class(schema):
        return read_class(schema), ""
    if hasattr(schema, "model_json_schema"):
        raise ConstraintError(
            f"expected a pydantic model class, got its instance {show(schema)}; pass the class"
        )
    if not isinstance(schema, (str, bytes)):
        return unwrap(schema)
    try:
        parsed = json.loads(without_mark(schema) if isinstance(schema, str) else schema)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(
            f"expected a JSON schema ({error}), got the text {show(schema)}; pass JSON text, "
            "parsed JSON, or a class that pydantic validates"
        ) from error
    return unwrap(parsed)


def is_class(given: Any) -> bool:
    """Return whether a value is a type or a pydantic adapter rather than a JSON schema."""
    adapted = hasattr(given, "core_schema") and hasattr(given, "json_schema")
    special = type(given).__module__ in ("typing", "typing_extensions")  # NewType, `type X = ...`
    return isinstance(given, type) or get_origin(given) is not None or adapted or special


def read_class(given: Any) -> dict[str, Any]:
    """Return the JSON schema of a type that pydantic validates; raise as `class_schema` does."""
    name = repr(given) if get_origin(given) else getattr(given, "__name__", repr(given))
    try:
        from gcd._languages.json_schema.pydantic_types import class_schema
    except ImportError as error:
        needed = missing("pydantic", "pydantic", f"a schema given as the type {name}")
        raise ConstraintError(str(needed)) from error
    inner = partial(json_schema, unknown="ignore", unsupported="refuse")
    return class_schema(given, name, inner)


def refuse_validators(document: Document) -> None:
    """Raise `UnsupportedSchemaError` if Python validators also check the values of a document."""
    for caveat in document.validators:
        raise UnsupportedSchemaError(
            caveat.keyword,
            caveat.pointer,
            f"{caveat.value} is Python code, which an automaton cannot execute; pass "
            'unsupported="ignore" and validate the finished text',
        )


def check_options(
    whitespace: object,
    escapes: object,
    unknown: object,
    formats: object,
    max_bytes: object,
    unsupported: object,
) -> None:
    """Raise `ConstraintError` unless the options that all schema languages share are valid."""
    _check_option("whitespace", whitespace, ("compact", "spaced", "flexible"))
    _check_option("escapes", escapes, ("canonical", "all"))
    _check_option("unknown", unknown, ("warn", "ignore", "refuse"))
    _check_option("formats", formats, FORMATS)
    _check_option("unsupported", unsupported, UNSUPPORTED)
    if max_bytes is not None:
        check_count("max_bytes", max_bytes, 1)


def check_depth(max_depth: object) -> None:
    """Raise `ConstraintError` unless `max_depth` is valid."""
    check_count("max_depth", max_depth, 0, _MAX_DEPTH)


def _check_option(name: str, value: object, options: tuple[str, ...]) -> None:
    if value not in options:
        listed = " or ".join(f'"{option}"' for option in options)
        raise ConstraintError(f"expected {name} to be {listed}, got {value!r}")
