"""Languages of calls in the format of a model (`CallFormat`), and of answers without calls.

Texts that a parser would misread aren't in the language. Arguments don't contain the delimiters
that end them, and an answer that isn't a call contains nothing that begins calls. Delimiters that
are single tokens of the model are written by these tokens alone (`Automaton.special`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import SPECIAL, Automaton
from gcd._automata.limits import cache_with_price, max_states
from gcd._errors import ConstraintError, EmptyLanguageError, StateLimitError
from gcd._languages.json_schema.languages import SchemaLanguages
from gcd._languages.text.code_points import texts
from gcd._languages.text.regex import regex
from gcd._languages.tools.call_formats import LISTS, CallFormat
from gcd._languages.tools.tool_lists import Tool
from gcd._languages.values.json_values import json_notation
from gcd._languages.values.notation import Notation, mark
from gcd._languages.values.objects import BRACES, Frame
from gcd._languages.values.python_values import python_notation

BLANKS = b" \t\n\r"
KEYS = r"[^\s<>\"':{},|]+"  # names of parameters between delimiters
_NUMBER = Automaton.from_strings(map(str, range(100)))  # number of a call
_STRING = Automaton.literal('"') + Automaton.any_bytes()
_NUMBERS = r"-?(?:[0-9.]+(?:[eE][+-]?[0-9]+)?|Infinity)|NaN"


@cache_with_price(maxsize=256)
def write(form: CallFormat, text: str) -> Automaton:
    """Return the language of one text, in which special tokens are single tokens."""
    pieces = re.split(any_of(form.special), text)
    return Automaton.concatenate(
        [Automaton.special(each) if i % 2 else mark(each) for i, each in enumerate(pieces)]
    )


def any_of(texts: Sequence[str]) -> str:
    """Return a regular expression of one of the texts, in a group; of none if there are none."""
    return f"({'|'.join(map(re.escape, texts)) or '(?!)'})"


def longest_call(form: CallFormat, calls: Automaton, text: str) -> int:
    """Return the length in bytes of the longest call inside a text; 0 if there is none."""
    marked = re.sub(any_of(form.special).encode(), SPECIAL + rb"\1" + SPECIAL, text.encode())
    longest = 0
    for begin in range(len(marked)):
        state, end = calls.initial, begin
        while state >= 0:
            if calls.accepting[state]:
                longest = max(longest, end - begin)
            state = int(calls.transitions[state, marked[end]]) if end < len(marked) else -1
            end += 1
    return longest


def notation_of(form: CallFormat, whitespace: str, escapes: str) -> Notation:
    """Return the notation of a call's arguments, whose strings contain none of its delimiters."""
    if form.arguments == "python":
        return python_notation(whitespace, escapes)
    if form.arguments != "bare":
        return _without_reserved(form, json_notation(whitespace, escapes))
    quote = write(form, form.quote)
    plain = _without_reserved(form, _raw_notation(json_notation("compact", escapes)))
    quoted = _change_strings(plain, lambda text: Automaton.concatenate([quote, text, quote]))
    return replace(quoted, is_bare=partial(_is_written, KEYS))


def _raw_notation(plain: Notation) -> Notation:
    """Return a notation of strings without quotes and escapes."""
    return replace(
        plain,
        string=texts,
        choice=Automaton.from_strings,
        spell_all=Automaton.literal,
        quoted=lambda text: text,
        quoted_all=lambda text: text,
    )


def _without_reserved(form: CallFormat, plain: Notation) -> Notation:
    """Return a notation without strings that contain a special token or a reserved text."""
    parts = (*form.special, *form.reserved)
    if not parts:
        return plain

    def change(text: Automaton) -> Automaton:
        is_read = text.delta.max(axis=0)[text.class_of_byte] >= 0
        possible = tuple(part for part in parts if is_read[[*part.encode()]].all())
        return text - _containing(possible) if possible else text

    return _change_strings(plain, change)


def _change_strings(plain: Notation, change: Callable[[Automaton], Automaton]) -> Notation:
    """Return a notation with a function applied to each language of strings, once."""
    change = cache(change)

    def change_result(name: str) -> Any:
        make = getattr(plain, name)
        return lambda *given: change(make(*given))

    names = ("string", "choice", "spell_all", "quoted", "quoted_all")
    return replace(plain, **{name: change_result(name) for name in names})


def native_call(
    form: CallFormat, frame: Frame, tool: Tool, values: SchemaLanguages
) -> list[Automaton]:
    """Return the languages of the parts of a call."""
    _check_name(form.names, tool.name, "tool")
    if form.arguments != "json":
        names = form.names if form.arguments == "python" else KEYS
        for parameter in tool.parameters:
            _check_name(names, parameter.name, "parameter")
    arguments = values.language(values.document.root(), frame=frame)
    if "]" in form.reserved:
        arguments = arguments - _containing(form.reserved)
    begin, between = (_write_numbered(form, text) for text in (form.begin, form.between))
    return [*begin, mark(tool.name), *between, arguments, write(form, form.end)]


def _check_name(names: str, name: str, what: str) -> None:
    """Raise `ConstraintError` unless the format can write a name."""
    if not _is_written(names, name):
        raise ConstraintError(
            f"expected a {what} name that the format of calls can write, matching {names!r}, got "
            f'{name!r}; rename the {what}, or use style="json"'
        )


def _is_written(names: str, name: str) -> bool:
    return re.fullmatch(names, name, re.ASCII) is not None


def _write_numbered(form: CallFormat, text: str) -> list[Automaton]:
    """Return the parts of a delimiter, in which `{}` stands for the number of the call."""
    before, *rest = text.split("{}")
    return [write(form, before), *(part for each in rest for part in (_NUMBER, write(form, each)))]


def frame_of(form: CallFormat, notation: Notation) -> Frame:
    """Return the delimiters around and inside arguments."""
    if form.arguments == "json":
        return BRACES
    if form.arguments == "python":
        return Frame("(", ")", mark("="), partial(_is_written, form.names))
    frame = Frame(form.opened, form.closed, is_bare=partial(_is_written, KEYS))
    if form.arguments == "bare":
        return frame
    before, between, after = form.member
    as_text, as_json = (write(form, between.replace("{}", word)) for word in ("true", "false"))
    end = write(form, after)

    @cache
    def value(strings: Automaton, values: Automaton) -> Automaton:
        others = values - _STRING  # strings in JSON begin with a quote
        if not form.is_typed:
            strings = strings - _read_as_json()
        signs = ((as_text, strings), (as_json, others))
        return Automaton.union([Automaton.concatenate([*each, end]) for each in signs])

    return frame._replace(
        colon=Automaton.epsilon(),
        before=(write(form, before),),
        comma=write(form, form.comma),
        raw=_without_reserved(form, _raw_notation(notation)),
        write=value,
    )


@cache_with_price(maxsize=1)
def _read_as_json() -> Automaton:
    """Return texts that `json.loads` may read as another value."""
    return regex(rf"""\s*(?:[\[{{"](?s:.)*|(?:{_NUMBERS}|true|false|null)\s*)""")


def replies(
    form: CallFormat,
    notation: Notation,
    call: Automaton,
    counts: tuple[int, int | None],
    auto: bool,
    answer: Automaton | None,
) -> Automaton:
    """Return the language of calls and, if `auto`, of answers without calls.

    `counts` are the fewest and the most calls. `answer` None is for any text, which may then also
    precede calls. Lists have the separators of the notation. The graph is converted once, because
    an automaton of many tools is large.
    """
    fewest, most = counts
    copies = max(1, fewest) if most is None else most
    if copies * call.num_states > max_states():
        what = f"a list of {copies} calls with {call.num_states} states each"
        raise StateLimitError(max_states(), what)
    graph = Assembly()
    start, began, here, end = (graph.node() for _ in range(4))
    for each in _before(form):
        graph.insert(start, began, each)
    separator = write(form, form.separator or "")
    first, last = [write(form, form.first)], [write(form, form.last)]
    if form in LISTS.values():
        separator, gap = notation.comma, notation.gap
        around = gap if form.arguments == "json" else Automaton.epsilon()
        first, last = [around, *first, gap], [gap, *last, around]
    if auto:
        graph.insert(began, end, *_without_calls(form, answer))
    leads = auto and answer is None and form.lead is None
    graph.insert(began, here, *[_plain(form)] * leads, *first)
    if fewest == 0:
        graph.insert(began, end, *first, *last)
    for number in range(1, copies + 1):
        done, following = graph.node(), graph.node() if number < copies else here
        graph.insert(here, done, call)
        if number >= fewest:
            graph.insert(done, end, *last)
        if number < copies or most is None:
            graph.insert(done, following, separator)
        here = following
    return graph.build(start, end)


def answers(form: CallFormat, answer: Automaton | None) -> Automaton:
    """Return the replies without calls; `answer` None is for any text."""
    return Automaton.union(_before(form)) + Automaton.concatenate(_without_calls(form, answer))


def _before(form: CallFormat) -> list[Automaton]:
    """Return what may precede replies: nothing, or a thought."""
    return [Automaton.epsilon(), *([] if form.thought is None else [thought(form)])]


def _plain(form: CallFormat) -> Automaton:
    """Return the texts that don't contain the beginning of calls."""
    return texts() - _containing((*form.special, *form.start))


def _without_calls(form: CallFormat, answer: Automaton | None) -> list[Automaton]:
    """Return the parts of the answers that a parser doesn't read as calls."""
    own = _plain(form) if answer is None else answer - _containing((*form.special, *form.start))
    if form.lead is not None:
        begin = [Automaton.byte_set(BLANKS).star(), mark(form.lead), Automaton.any_bytes()]
        own = own - Automaton.concatenate(begin)
    if own.is_empty:
        raise EmptyLanguageError(
            "expected answers that can't be taken for tool calls, got a constraint of answers "
            "that all begin like calls in this format; use a format with special tokens, or "
            'choice="required"'
        )
    before, after = (write(form, text) for text in form.answer)
    return [before, own, after]


def thought(form: CallFormat) -> Automaton:
    """Return the thoughts of a format that has them."""
    assert form.thought is not None
    before, after = (write(form, text) for text in form.thought)
    return Automaton.concatenate([before, _plain(form), after])


@cache_with_price(maxsize=64)
def _containing(parts: tuple[str, ...]) -> Automaton:
    """Return the texts that contain one of the given texts."""
    anything = Automaton.any_bytes()
    return Automaton.concatenate([anything, Automaton.from_strings(parts), anything])
