"""A request states its constraint as one JSON text, as it travels over HTTP beside a prompt.

    {"json_schema": {"type": "object", ...}, "budget": 60}
    {"tools": [...], "options": {"max_bytes": 2000, "formats": "ignore"}}

It has exactly one of the members `KINDS`, each the argument of the function of `gcd` that has this
name (`tools` of `gcd.tool_calls`), and perhaps a `budget`, a `deadline_ms`, and `options`, the
keyword arguments of that function; `docs/vllm.md` lists them. A database is given as Spider's
`tables.json` describes one; a grammar with `::=` is llama.cpp's or xgrammar's, and any other
lark's. A segment is an object with one of the other members, or `"anything": true` for free text,
and perhaps its own `options`, `until` (a text, or the id of a special token) and `tokens` (its
limit).
Nothing in a request is a path: who may send requests may not read the server's files.

Two requests with the same text of their constraint, up to white space, have the same `key`; the
order of members counts, because it is the order in which answers have them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from hashlib import blake2b
from inspect import Parameter, signature
from typing import Any, NamedTuple

from gcd.automata.automaton import Automaton
from gcd.automata.horizon import refuse_unchecked
from gcd.errors import ConstraintError, shown
from gcd.languages.grammar.grammar import grammar
from gcd.languages.json_schema.schema import json_schema
from gcd.languages.literal import choice, without_mark
from gcd.languages.sql.reading import schema_of_entry
from gcd.languages.sql.sql import sql
from gcd.languages.text.regex import regex
from gcd.languages.text.texts import anything
from gcd.languages.tools.tool_calls import tool_calls
from gcd.tokens.distances import check_whole
from gcd.tokens.segments import Segment, Segments, segments

_WHY_HELD = "every answer to a request satisfies its constraint"
_REMEDY = 'remove it, or give the option "unsupported": "ignore" and check the answers'
MOST_BYTES = 1 << 20
"""A text longer than this is refused before it is read."""


def _database(entry: Any) -> Automaton:
    return sql(schema_of_entry(entry))


@wraps(grammar)
def _grammar(text: str, **options: Any) -> Automaton:
    return grammar(text, "ebnf" if "::=" in text else "lark", **options)


class _Kind(NamedTuple):
    """How a constraint of one kind is compiled.

    Attributes:
        compile: its value -> the language; keyword arguments are the options.
        types: what its value is in JSON; `what` says it in words.
    """

    compile: Callable[..., Automaton]
    types: tuple[type, ...]
    what: str

    @property
    def options(self) -> list[str]:
        parameters = signature(self.compile).parameters.values()
        return [each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY]

    def language(self, value: Any, options: Mapping[str, Any]) -> Automaton:
        if not isinstance(value, self.types):
            raise ConstraintError(f"{self.what}, got {shown(value)}")
        found = self.compile(value, **options)
        if options.get("unsupported") != "ignore":
            refuse_unchecked(found.caveats, _WHY_HELD, _REMEDY)
        return found


_LANGUAGES = {
    "json_schema": _Kind(json_schema, (object,), ""),
    "regex": _Kind(regex, (str,), "regex is a text, a regular expression"),
    "choice": _Kind(choice, (list,), "choice is a list of texts"),
    "tools": _Kind(tool_calls, (list, dict), "tools are a list of objects"),
    "sql": _Kind(_database, (dict,), "sql is an object, a database"),
    "grammar": _Kind(_grammar, (str,), "grammar is a text"),
}
KINDS = (*_LANGUAGES, "segments")
"""What a constraint may be; a request has exactly one of these members."""


@dataclass(frozen=True)
class ConstraintRequest:
    """What one request asks for.

    Attributes:
        kind: one of `KINDS`.
        value: what the JSON text says of it.
        budget: most tokens of the answer, EOS included; None if the request does not say.
        options: keyword arguments of the function that compiles it.
        deadline_ms: milliseconds in which the answer should be complete; None for no deadline.
    """

    kind: str
    value: Any
    budget: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    deadline_ms: int | None = None

    @classmethod
    def parse(cls, text: Any) -> ConstraintRequest:
        """Read the JSON text of a request; nothing is compiled.

        Raises:
            ConstraintError: it is no text, no JSON, or says something else than the module allows.
        """
        if not isinstance(text, str):
            raise ConstraintError(
                f"a constraint is one JSON text, got {shown(text)}; give json.dumps of it"
            )
        if len(text) > MOST_BYTES:
            raise ConstraintError(
                f"a constraint has at most {MOST_BYTES} characters, got {len(text)}; shorten it"
            )
        try:
            found = json.loads(without_mark(text))
        except (ValueError, RecursionError) as error:
            raise ConstraintError(
                f"a constraint is one JSON text, got {shown(text)} ({error})"
            ) from None
        if not isinstance(found, dict):
            raise ConstraintError(f"a constraint is a JSON object, got {shown(found)}")
        budget = found.pop("budget", None)
        if budget is not None:
            check_whole(budget, "budget")
        deadline_ms = found.pop("deadline_ms", None)
        if deadline_ms is not None and (type(deadline_ms) is not int or deadline_ms < 0):
            raise ConstraintError(
                f"deadline_ms: expected a whole number of milliseconds, 0 or more, got "
                f"{shown(deadline_ms)}"
            )
        options = found.pop("options", {})
        kind = _only(found, KINDS, "a constraint")
        checked = _checked_options(kind, options)
        return cls(kind, found[kind], budget, checked, deadline_ms)

    @cached_property
    def key(self) -> str:
        """A digest of the constraint without its budget and deadline."""
        said = [self.kind, self.value, *([self.options] if self.options else [])]
        text = json.dumps(said, separators=(",", ":"))
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def language(self) -> Automaton | Segments:
        """Compile the constraint; warnings about parts that constrain nothing are left out.

        Raises:
            ConstraintError: it cannot be honoured, as the function of its kind says.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if self.kind == "segments":
                    return _segments(self.value)
                return _LANGUAGES[self.kind].language(self.value, self.options)
            except RecursionError:
                raise ConstraintError(f"{self.kind} is nested too deeply to be read") from None


def _segments(value: Any) -> Segments:
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise ConstraintError(f"segments are a list of objects, got {shown(value)}")
    parts = []
    for index, each in enumerate(value):
        limits = {name: each[name] for name in ("until", "tokens") if name in each}
        rest = {name: each[name] for name in each if name not in (*limits, "options")}
        kind = _only(rest, (*_LANGUAGES, "anything"), f"segment {index + 1}")
        options = _checked_options(kind, each.get("options", {}))
        if kind == "anything" and rest[kind] is not True:
            raise ConstraintError(f"anything is true where there is free text, got {rest[kind]!r}")
        is_free = kind == "anything"
        language = anything() if is_free else _LANGUAGES[kind].language(rest[kind], options)
        parts.append(Segment(language, **limits))
    return segments(parts)


def _checked_options(kind: str, options: Any) -> dict[str, Any]:
    """The options of a constraint, if its kind has them all."""
    if not isinstance(options, dict):
        raise ConstraintError(f"options are a JSON object, got {shown(options)}")
    known = _LANGUAGES[kind].options if kind in _LANGUAGES else []
    for name in options:
        if name not in known:
            advice = f"it has {', '.join(known)}" if known else "it has none; leave options out"
            raise ConstraintError(f"{kind} has no option {shown(name)}; {advice}")
    return options


def _only(found: Mapping[str, Any], known: tuple[str, ...], what: str) -> str:
    """The name of the only member, which is a known one."""
    if len(found) != 1 or not found.keys() <= set(known):
        raise ConstraintError(
            f"{what} has exactly one of {', '.join(known)}, got {', '.join(found)[:100] or 'none'}"
        )
    return next(iter(found))
