"""Constraints of requests to an inference server, given as JSON texts.

    {"json_schema": {"type": "object", ...}, "budget": 60}
    {"tools": [...], "options": {"max_bytes": 2000, "formats": "ignore"}}

A request has exactly one of the members in `KINDS`. Its value is the argument of the `gcd` function
with the same name (`tools` is the argument of `gcd.tool_calls`). The optional members are `budget`,
`deadline_ms` and `options`, the keyword arguments of the function; `docs/vllm.md` lists them.

* `sql`: the database is described as in Spider's `tables.json`.
* `grammar`: a grammar that contains `::=` is in the dialect of llama.cpp or xgrammar. Any other
  grammar is in lark's dialect.
* `segments`: each segment is an object with one of the other members, or with `"anything": true`
  for any text. It may also have `options`, `until` (a text, or the id of a special token), and
  `tokens` (the segment's maximum number of tokens).
* `tools`: the option `answer` is an object with one of the other members, but not `segments`. The
  option `thought` puts a thought in `<think>` and `</think>` first; its value lists the tags that
  are single tokens.
* `structural_tag`: `triggers` and `structures`, as in vLLM's response format of this name.
* `lifted`: the digest of an automaton that a program has lifted for the engine that it runs
  (`gcd_vllm._constraint_cache`).

A request never contains a path, so clients cannot make the server read its own files.

Two requests have the same `key` if the texts of their constraints are equal except for white space.
The order of members matters, because answers have their members in that order.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, wraps
from hashlib import blake2b
from inspect import Parameter, signature
from typing import Any, NamedTuple

from gcd import (
    Automaton,
    ConstraintError,
    Segment,
    Segments,
    anything,
    choice,
    grammar,
    json_schema,
    regex,
    segments,
    sql,
    tool_calls,
)
from gcd._arguments import check_whole
from gcd._automata.horizon import refuse_unchecked
from gcd._errors import show
from gcd._languages.literal import without_mark
from gcd._languages.sql.reading import schema_of_entry
from gcd._replies import TAGS, with_any_thought

_WHY_HELD = "the answers to a request must satisfy its constraint"
_REMEDY = 'remove it, or set the option "unsupported": "ignore" and validate the answers'
MAX_CHARACTERS = 1 << 20
"""Maximum number of characters of a request; longer requests are refused before they are parsed."""


def _database(entry: Any) -> Automaton:
    return sql(schema_of_entry(entry))


@wraps(grammar)
def _grammar(text: str, **options: Any) -> Automaton:
    return grammar(text, "ebnf" if "::=" in text else "lark", **options)


@wraps(tool_calls)
def _tool_calls(
    tools: Any, *, answer: Any = None, thought: Any = None, **options: Any
) -> Automaton:
    if answer is not None:
        kind = _only(answer, tuple(_LANGUAGES), "answer")
        own = {"unsupported": "ignore"} if "unsupported" in _LANGUAGES[kind].options else {}
        answer = _LANGUAGES[kind].language(answer[kind], own)
    if not (thought is None or (isinstance(thought, list) and set(thought) <= {*TAGS})):
        raise ConstraintError(
            f"expected thought to be a list of {' or '.join(TAGS)}, got {show(thought)}"
        )
    found = tool_calls(tools, answer=answer, **options)
    return found if thought is None else with_any_thought(found, thought)


def _structural_tag(given: Any, *, unsupported: str = "warn") -> Automaton:
    """Return texts in which each trigger begins a tag: `begin`, JSON of the schema, and `end`."""
    triggers, tags = given.get("triggers"), given.get("structures")
    is_known = isinstance(triggers, list) and isinstance(tags, list) and bool(tags)
    if not is_known or not all(
        isinstance(tag, dict)
        and {"begin", "schema", "end"} <= tag.keys()
        and str(tag["begin"]).startswith((*map(str, triggers),))
        for tag in tags
    ):
        raise ConstraintError(
            "expected structural_tag to have triggers, and structures with begin, schema and end, "
            f"whose begin starts with one of the triggers; got {show(given)}"
        )
    plain = anything() - (anything() + choice(triggers) + anything())
    ways = [
        [choice([tag["begin"]]), json_schema(tag["schema"], unsupported=unsupported),
         choice([tag["end"]]), plain]
        for tag in tags
    ]  # fmt: skip
    return plain + Automaton.union([Automaton.concatenate(way) for way in ways]).star()


def _refuse_digest(digest: str) -> Automaton:
    raise ConstraintError(
        "expected lifted to be the digest of an automaton that was given to this engine, got "
        f"{show(digest)}; send the constraint itself"
    )


class _Kind(NamedTuple):
    """Function that compiles one kind of constraint, and the values that it accepts."""

    # Function from the value to the language; its keyword arguments are the options
    compile: Callable[..., Automaton]
    types: tuple[type, ...]  # accepted types of the JSON value
    what: str  # the expected value, for the error message about another type

    @property
    def options(self) -> list[str]:
        found = [signature(self.compile, follow_wrapped=way).parameters for way in (True, False)]
        every = {name: each for parameters in found for name, each in parameters.items()}
        return [name for name, each in every.items() if each.kind is Parameter.KEYWORD_ONLY]

    def language(self, value: Any, options: Mapping[str, Any]) -> Automaton:
        if not isinstance(value, self.types):
            raise ConstraintError(f"expected {self.what}, got {show(value)}")
        found = self.compile(value, **options)
        if options.get("unsupported") != "ignore":
            refuse_unchecked(found.caveats, _WHY_HELD, _REMEDY)
        return found


_LANGUAGES = {
    "json_schema": _Kind(json_schema, (object,), ""),
    "regex": _Kind(regex, (str,), "regex to be a string, a regular expression"),
    "choice": _Kind(choice, (list,), "choice to be a list of strings"),
    "tools": _Kind(_tool_calls, (list, dict), "tools to be a list of objects"),
    "sql": _Kind(_database, (dict,), "sql to be an object that describes a database"),
    "grammar": _Kind(_grammar, (str,), "grammar to be a string"),
    "structural_tag": _Kind(_structural_tag, (dict,), "structural_tag to be an object"),
    "lifted": _Kind(_refuse_digest, (str,), "lifted to be a string, the digest of an automaton"),
}
KINDS = (*_LANGUAGES, "segments")
"""Members that hold a constraint; a request has exactly one of them."""


@dataclass(frozen=True)
class ConstraintRequest:
    """Constraint, budget and deadline of one request."""

    kind: str  # the member that holds the constraint, one of `KINDS`
    value: Any  # the value of that member
    # Maximum number of tokens of the answer, EOS included; None if the request doesn't have a
    # budget
    budget: int | None = None
    # Keyword arguments of the function that compiles the constraint
    options: Mapping[str, Any] = field(default_factory=dict)
    # Milliseconds in which the answer should be complete; None for no deadline
    deadline_ms: int | None = None

    @classmethod
    def parse(cls, text: Any) -> ConstraintRequest:
        """Parse the JSON text of a request without compiling its constraint."""
        if not isinstance(text, str):
            raise ConstraintError(
                f"expected a constraint as one JSON text, got {show(text)}; pass it through "
                "json.dumps"
            )
        if len(text) > MAX_CHARACTERS:
            raise ConstraintError(
                f"expected a constraint of at most {MAX_CHARACTERS} characters, got {len(text)}; "
                "shorten it"
            )
        return cls._parse(text)

    @classmethod
    @lru_cache(maxsize=16)  # middleware and checks parse each; a parsed text may take 20 MB
    def _parse(cls, text: str) -> ConstraintRequest:
        try:
            found = json.loads(without_mark(text))
        except (ValueError, RecursionError) as error:
            raise ConstraintError(
                f"expected a constraint as one JSON text, got {show(text)} ({error}); pass it "
                "through json.dumps"
            ) from None
        if not isinstance(found, dict):
            raise ConstraintError(
                f"expected a constraint as a JSON object, got {show(found)}; put it under one of "
                f"the members {', '.join(KINDS)}"
            )
        budget = found.pop("budget", None)
        if budget is not None:
            check_whole(budget, "budget")
        deadline_ms = found.pop("deadline_ms", None)
        if deadline_ms is not None and (type(deadline_ms) is not int or deadline_ms < 0):
            raise ConstraintError(
                "expected deadline_ms to be a whole number of milliseconds, 0 or more, got "
                f"{show(deadline_ms)}"
            )
        options = found.pop("options", {})
        kind = _only(found, KINDS, "a constraint")
        checked = _check_options(kind, options)
        return cls(kind, found[kind], budget, checked, deadline_ms)

    @cached_property
    def key(self) -> str:
        """Digest of the constraint without its budget and deadline."""
        said = [self.kind, self.value, *([self.options] if self.options else [])]
        text = json.dumps(said, separators=(",", ":"))
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def language(self) -> Automaton | Segments:
        """Compile the constraint. Warnings about keywords without effect are suppressed."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if self.kind == "segments":
                    return _segments(self.value)
                return _LANGUAGES[self.kind].language(self.value, self.options)
            except RecursionError:
                raise ConstraintError(
                    f"the value of {self.kind} is nested too deeply; flatten it"
                ) from None


def _segments(value: Any) -> Segments:
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise ConstraintError(f"expected segments to be a list of objects, got {show(value)}")
    parts = []
    for index, each in enumerate(value):
        limits = {name: each[name] for name in ("until", "tokens") if name in each}
        rest = {name: each[name] for name in each if name not in (*limits, "options")}
        kind = _only(rest, (*_LANGUAGES, "anything"), f"segment {index + 1}")
        options = _check_options(kind, each.get("options", {}))
        if kind == "anything" and rest[kind] is not True:
            raise ConstraintError(f'expected "anything": true for free text, got {rest[kind]!r}')
        is_free = kind == "anything"
        language = anything() if is_free else _LANGUAGES[kind].language(rest[kind], options)
        parts.append(Segment(language, **limits))
    return segments(parts)


def _check_options(kind: str, options: Any) -> dict[str, Any]:
    """Return the options of a constraint, or raise an error if an option is unknown."""
    if not isinstance(options, dict):
        raise ConstraintError(f"expected options to be a JSON object, got {show(options)}")
    known = _LANGUAGES[kind].options if kind in _LANGUAGES else []
    for name in options:
        if name not in known:
            advice = f"use one of {', '.join(known)}" if known else "remove it"
            raise ConstraintError(f"{kind} has no option {show(name)}; {advice}")
    return options


def _only(found: Mapping[str, Any], known: tuple[str, ...], what: str) -> str:
    """Return the only key of `found`; raise an error for several keys, or for unknown keys."""
    if len(found) != 1 or not found.keys() <= set(known):
        raise ConstraintError(
            f"expected exactly one of {', '.join(known)} in {what}, got "
            f"{', '.join(found)[:100] or 'none'}; pass one of them"
        )
    return next(iter(found))
