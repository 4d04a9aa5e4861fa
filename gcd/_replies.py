"""Replies: a thought, then calls of tools or an answer; their constraint, and how to read them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import islice, product
from typing import Any, NamedTuple

from gcd._automata.automaton import SPECIAL, Automaton
from gcd._errors import ConstraintError
from gcd._languages.json_schema.schema import json_schema
from gcd._languages.tools.call_formats import LISTS, CallFormat
from gcd._languages.tools.native_calls import BLANKS, KEYS, any_of, thought
from gcd._languages.tools.tool_lists import Tool
from gcd._tokens.segments import Segment, Segments, segments

TAGS = ("<think>", "</think>")
_MOST_READINGS = 256
"""Number of readings of the members of a call, as text or JSON, that are compared with a schema."""


def thinking_format(
    form: CallFormat | None, special: Collection[str], opened: str | None = None
) -> CallFormat:
    """Return the format of a thought: the one of the calls, or with tags such as `<think>`.

    Args:
        special: texts of the tokenizer's added tokens, which alone can write them.
        opened: the tag with which the prompt ends; None if it ends with none.
    """
    if opened is None and form is not None and form.thought is not None:
        return form
    begin = opened or TAGS[0]
    tags = (begin, f"{begin[0]}/{begin[1:]}")
    single = tuple(tag for tag in tags if tag in special)
    between = ("" if opened else begin, tags[1])
    return CallFormat("", "", "", special=single, start=tags, thought=between)


def with_thought(language: Automaton, form: CallFormat, tokens: int) -> Segments:
    """Return a constraint of replies that begin with a thought of at most `tokens` tokens."""
    return segments([Segment(thought(form), tokens=tokens), Segment(language)])


def with_any_thought(language: Automaton, special: Collection[str]) -> Automaton:
    """Return replies that begin with a thought of any length; the prompt may have its first tag.

    `special` are the tags that are single tokens.
    """
    parts = [thought(thinking_format(None, special, opened)) for opened in (None, TAGS[0])]
    return Automaton.union(parts) + language


class Parts(NamedTuple):
    """Parts of a reply: thought, text before calls, and the calls in JSON or another answer."""

    thought: str | None
    before: str
    calls: str | None
    answer: str


def read_reply(
    marked: bytes, form: CallFormat | None, tools: Sequence[Tool], thinking: CallFormat | None
) -> Parts:
    """Split a reply, in which special tokens are marked as `Automaton.special` does."""
    text, found = marked.replace(SPECIAL, b"").decode(errors="replace"), None
    tags = (thinking or form).thought if thinking or form else None  # type: ignore[union-attr]
    if tags is not None and text.startswith(tags[0]) and (thinking or tags[0]):
        found, _, text = text.removeprefix(tags[0]).partition(tags[1])
    if form is None:
        return Parts(found, "", None, text)
    at = text.find(form.first + form.begin.split("{}")[0]) if form.lead is None else -1
    if form.lead is not None and text.lstrip(BLANKS.decode()).startswith(form.lead):
        at = 0
    if at < 0:
        before, after = form.answer
        return Parts(found, "", None, text.removeprefix(before).removesuffix(after))
    return Parts(found, text[:at], _read_calls(form, tools, text[at:]), "")


def _read_calls(form: CallFormat, tools: Sequence[Tool], text: str) -> str:
    """Return the calls in a text as a list in JSON."""
    if form == LISTS["json"]:
        return text
    if form.arguments == "python":
        nodes = ast.parse(text.strip(), mode="eval").body.elts  # type: ignore[attr-defined]
        return _list([(ast.unparse(node.func), _read_keywords(node)) for node in nodes])
    schemas = {tool.name: tool.schema for tool in tools}
    begin, between = (
        r"\d+".join(map(re.escape, x.split("{}"))) for x in (form.begin, form.between)
    )
    names = any_of(sorted(schemas, key=len, reverse=True))
    head = re.compile(begin + names + between + re.escape(form.opened))
    calls, place = [], head.search(text)
    while place is not None:
        end = text.find(form.end, place.end())
        if form.arguments == "json":
            _, end = json.JSONDecoder().raw_decode(text, place.end())
        inner = text[place.end() : end]
        if form.arguments == "members":
            inner = _read_members(form, inner, schemas[place[1]])
        elif form.arguments == "bare":
            inner = _read_bare(form, form.opened + inner)
        calls.append((place[1], inner))
        place = head.search(text, end)
    return _list(calls)


def _list(calls: Sequence[tuple[str, str]]) -> str:
    """Return a list of calls in JSON."""
    texts = (f'{{"name": {json.dumps(name)}, "arguments": {text}}}' for name, text in calls)
    return f"[{', '.join(texts)}]"


def _read_keywords(node: Any) -> str:
    """Return keyword arguments of Python as a JSON object."""
    values = [(each.arg, ast.literal_eval(each.value)) for each in node.keywords]
    found = {
        k: v
        for name, value in values
        for k, v in (value if name is None else {name: value}).items()
    }
    return json.dumps(found, default=lambda items: sorted(items, key=repr))


def _read_bare(form: CallFormat, text: str) -> str:
    """Return an object with bare keys as JSON."""
    pieces = text.split(form.quote)
    pieces[1::2] = map(json.dumps, pieces[1::2])
    pieces[::2] = [re.sub(f"({KEYS}):", r'"\1":', each) for each in pieces[::2]]
    return "".join(pieces)


def _read_members(form: CallFormat, text: str, schema: dict[str, Any]) -> str:
    """Return members as a JSON object."""
    before, between, after = map(re.escape, form.member)
    sign = "(?P<sign>true|false)"
    member = f"{before}(?P<key>{KEYS}){between.replace(re.escape('{}'), sign)}(?P<value>.*?){after}"
    readings = []
    for each in re.finditer(member, text, re.DOTALL):
        key, value = each["key"], each["value"]
        ways = [json.dumps(value), value] if _is_json(value) else [json.dumps(value)]
        if "{}" in form.member[1]:
            ways = ways[:1] if each["sign"] == "true" else [value]
        elif not form.is_typed:
            ways = ways[-1:]
        elif not _accepts_text(schema, key, value):
            ways = [value, *ways[:-1]]
        readings.append([f"{json.dumps(key)}: {way}" for way in ways])
    texts = [f"{{{', '.join(each)}}}" for each in islice(product(*readings), _MOST_READINGS)]
    if len(texts) == 1:
        return texts[0]
    language = _language_of(json.dumps(schema))
    return next((text for text in texts if language and language.accepts(text)), texts[0])


def _accepts_text(schema: dict[str, Any], key: str, value: str) -> bool:
    """Return whether a value is a string, according to the schema of its member if it is known."""
    own = schema.get("properties", {}).get(key)
    shared = {k: v for k, v in schema.items() if k in ("$schema", "$defs", "definitions")}
    language = _language_of(json.dumps(shared | own if isinstance(own, dict) else own))
    if language is None:
        return not _is_json(value)
    return language.accepts(json.dumps(value, ensure_ascii=False))


@lru_cache(maxsize=256)
def _language_of(schema: str) -> Automaton | None:
    try:
        return json_schema(
            json.loads(schema), unknown="ignore", unsupported="ignore", whitespace="flexible"
        )
    except ConstraintError:
        return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
