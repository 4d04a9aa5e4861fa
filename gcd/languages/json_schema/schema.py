"""This module compiles a JSON schema into the byte language of its valid values' texts.

A schema of any draft from 4 to 2020-12 is translated into the vocabulary of the newest
(`gcd.languages.json_schema.drafts`) and multiplied out into cases of plain schemas
(`gcd.languages.json_schema.choices`), each merged into one description of a value
(`gcd.languages.json_schema.facets`) and built as a language
(`gcd.languages.json_schema.languages`). Each place of the schema is compiled once, however often it
is used.

What is narrower than the standard, and stated here because nothing may be narrowed in silence:

* **Order.** Members come in the order in which they are declared: a schema's own `properties`,
  then those of its `$ref`, `allOf`, `anyOf` and so on, then names that only `required` and the like
  have, then undeclared ones; `any_order=n` lets objects of up to n declared names take any order.
  No declared name comes twice; an undeclared one may, which RFC 8259 permits. It then counts as
  two members for `maxProperties`, and as one for `minProperties`, where names are told apart by a
  checksum and one pair in 13 is taken for one name (`gcd.languages.values.names`).
* **Undeclared members** are left out where a schema has `properties` but no
  `additionalProperties`, `patternProperties` or `unevaluatedProperties`, as structured generation
  is commonly understood; write `additionalProperties`, or pass `additional_properties="open"`, for
  the standard's reading. A value that this leaves no object, where the standard has some, is read
  as the standard has it.
* **Numbers.** Integers have no fraction or exponent; numbers with a bound or a divisor, or compared
  with others under `not`, `oneOf` and the like, have no exponent. Integers and numbers
  with a bound or a divisor are never `-0` (`gcd.languages.values.numbers`). Constants are written
  as `json.dumps` writes them, or as an integer if they are whole.
* **Keys and constants** have one spelling (`escapes="all"` for every one); the members of
  constant objects keep the order they have in the schema.
* **Depth.** Where the schema no longer says what a value is, arrays and objects nest at most
  `max_depth` deep; a schema that contains itself is entered at most `max_depth` times on a path.

By the standard, keywords for one kind of value say nothing about others, so
`{"properties": ...}` without `"type": "object"` also admits every number.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from gcd.automata.automaton import Automaton
from gcd.automata.horizon import Caveat, warn_of_caveats
from gcd.errors import (
    ConstraintError,
    EmptyLanguageError,
    UnsupportedSchemaError,
    WorkLimitError,
    check_count,
    shown,
)
from gcd.languages.json_schema.class_schemas import class_schema, is_class
from gcd.languages.json_schema.document import Document
from gcd.languages.json_schema.emptiness import why_empty
from gcd.languages.json_schema.ignored import IgnoredKeyword, warn_of
from gcd.languages.json_schema.languages import SchemaLanguages
from gcd.languages.json_schema.reach import held_to, out_of_reach, within_limits
from gcd.languages.literal import without_mark
from gcd.languages.values.json_values import json_notation

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

    Where it is narrower than the standard, the module's docstring says so.

    Args:
        schema: a JSON schema as parsed JSON (a mapping or a boolean) or as JSON text; or what
            pydantic validates: a model class, a dataclass, a TypedDict, an enum, `Literal[...]`,
            `list[...]`, `A | B`, a `TypeAdapter`. Patterns of a class are Rust's (or Python's, if
            its `regex_engine` says so), and texts that its validator refuses are left out.
        whitespace: "compact" `{"a":1}`, "spaced" `{"a": 1}` as `json.dumps` writes it, or
            "flexible", any whitespace that RFC 8259 permits.
        max_depth: nesting of values the schema leaves free, and of recursive schemas.
        escapes: spelling of keys and constants, "canonical" (as `json.dumps`) or "all".
        additional_properties: whether undeclared members are left out ("closed") where a schema
            has `properties` and does not speak of undeclared ones, or let in ("open").
        any_order: objects of at most so many declared names take their members in any order; the
            automaton grows with 2 to their number.
        formats: "assert" (`format` constrains) or "ignore" (it describes).
        max_bytes: compile the texts of at most so many bytes, exactly; of longer ones there are
            none. Counts that no such text comes to, as in `"maxLength": 32767`, take no states.
            Budgets whose tokens could hold more are refused (`gcd.OverlongBudgetError`).
        draft: "4", "6", "7", "2019-09" or "2020-12", whatever `$schema` says. None: the draft that
            `$schema` names; without one, 2020-12 with the spellings of older drafts understood.
        unknown: what becomes of keywords and formats that the draft does not know, and that
            constrain nothing by its rules: "warn", "ignore", or "refuse" them.
        unsupported: what becomes of keywords that no automaton of the size that is allowed can
            hold. "warn": upper bounds such as `"maxLength": 65536` hold for texts that are too
            short to come to them, and longer budgets are refused (`gcd.OverlongBudgetError`);
            `uniqueItems` over any strings, and validators of a class that are written in Python,
            are left to a check of the finished text; and a warning says so. "ignore": all of them
            are left to that check, without a warning. "refuse": they are errors. The result's
            `caveats` lists them.

    Raises:
        UnsupportedSchemaError: for a keyword that cannot be honoured, with its JSON pointer.
        ConstraintError: for a malformed schema or option, or a `$ref` that cannot be followed.
        EmptyLanguageError: if no value satisfies the schema.
        StateLimitError, WorkLimitError: if an automaton has more states than `gcd.state_limit`
            allows, or all of them take more work than `gcd.work_limit`; with the keyword and the
            JSON pointer of the part that takes the most.

    Warns:
        IgnoredKeywordWarning: once, naming the keywords that constrain nothing (`unknown="warn"`).
        CaveatWarning: once, naming the keywords that the automaton does not hold in every text
            (`unsupported="warn"`).
    """
    check_options(whitespace, escapes, unknown, formats, max_bytes, unsupported)
    notation = json_notation(whitespace, escapes)
    check_depth(max_depth)
    _check_option("additional_properties", additional_properties, ("closed", "open"))
    check_count("any_order", any_order, 0, _MAX_ANY_ORDER)
    document = Document(
        _parsed(schema),
        max_depth=max_depth,
        assert_formats=formats == "assert",
        draft=draft,
        refuse_unknown=unknown == "refuse",
    )
    if unknown == "warn":
        warn_of(document.ignored)
    if unsupported == "refuse":
        for caveat in document.validators:
            raise UnsupportedSchemaError(
                caveat.keyword,
                caveat.pointer,
                f"{caveat.value} is Python code, which no automaton runs; "
                'unsupported="ignore" leaves it to a check of the finished text',
            )

    def build(counted: int | None, bounds: list[Caveat]) -> Automaton:
        bounds += document.upper_bounds
        values = SchemaLanguages(
            document,
            notation,
            max_depth=max_depth,
            closed=additional_properties == "closed",
            any_order=any_order,
            max_bytes=max_bytes,
            counted=counted,
            unsupported=unsupported,
        )
        try:
            language = values.language(document.root())
        except WorkLimitError as error:
            values.parts.blame_most_costly(error)
            raise
        if language.is_empty and values.parts.excluding:
            raise out_of_reach(values.parts.excluding)
        if language.is_empty:
            raise EmptyLanguageError(f"no value satisfies the schema{why_empty(values)}")
        language = Automaton.concatenate([notation.gap, language, notation.gap])
        what = "text of at most {} bytes satisfies the schema"
        return held_to(language, max_bytes, what, (*document.validators, *values.parts.caveats))

    found = within_limits(build, unsupported=unsupported)
    if unsupported == "warn":
        warn_of_caveats(found.caveats)
    return found


def ignored_keywords(
    schema: Any, *, formats: str = "assert", draft: str | None = None
) -> tuple[IgnoredKeyword, ...]:
    """Return the keywords of a schema that constrain nothing, of which `json_schema` would warn.

    Only schemas count that can be reached from the root. Titles, descriptions and other keywords
    that every draft has for describing are not among them. Arguments and errors are those of
    `json_schema`.
    """
    _check_option("formats", formats, FORMATS)
    document = Document(
        _parsed(schema),
        max_depth=0,
        assert_formats=formats == "assert",
        draft=draft,
        refuse_unknown=False,
    )
    return document.ignored


def _parsed(schema: Any) -> Any:
    """The schema that JSON text or a type stands for; all else as it is."""
    if is_class(schema):
        return class_schema(schema, partial(json_schema, unknown="ignore", unsupported="refuse"))
    if hasattr(schema, "model_json_schema"):
        raise ConstraintError(f"{schema!r} is an object of a pydantic model; give the class")
    if not isinstance(schema, (str, bytes)):
        return schema
    try:
        return json.loads(without_mark(schema) if isinstance(schema, str) else schema)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(
            f"the schema is a text that is no JSON ({error}): {shown(schema)}; give JSON text, "
            "parsed JSON, or a class that pydantic reads"
        ) from error


def check_options(
    whitespace: object,
    escapes: object,
    unknown: object,
    formats: object,
    max_bytes: object,
    unsupported: object,
) -> None:
    """Raise `ConstraintError` unless the options that every language of schemas has are usable."""
    _check_option("whitespace", whitespace, ("compact", "spaced", "flexible"))
    _check_option("escapes", escapes, ("canonical", "all"))
    _check_option("unknown", unknown, ("warn", "ignore", "refuse"))
    _check_option("formats", formats, FORMATS)
    _check_option("unsupported", unsupported, UNSUPPORTED)
    if max_bytes is not None:
        check_count("max_bytes", max_bytes, 1)


def check_depth(max_depth: object) -> None:
    """Raise `ConstraintError` unless `max_depth` is usable."""
    check_count("max_depth", max_depth, 0, _MAX_DEPTH)


def _check_option(name: str, value: object, options: tuple[str, ...]) -> None:
    if value not in options:
        listed = " or ".join(f'"{option}"' for option in options)
        raise ConstraintError(f"{name} must be {listed}, got {value!r}")
