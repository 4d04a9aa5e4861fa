"""Problems of the convergence study, and checks that they can be solved exactly.

A problem is a prompt, a constraint and a budget. A JSON file of problems is a list of

    {"prompt": "…" or [ids], "budget": n, "strings": ["…", …], "eos_ids": [ids], "name": "…"}
    {"prompt": "…" or [ids], "budget": n, "regex": "…" or ["…", …], "note": "…"}

`docs/convergence.md` explains the keys. A pattern can match infinitely many texts, because the
budget bounds them. If a value ends at a closing quote or a full stop, `eos_ids` should have all
tokens that start with this character, because their other characters (a comma, a bracket) follow
the value.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import and_
from pathlib import Path
from typing import Any

import gcd
import smc
from experiments import smollm2
from experiments.exact.cached import Restriction
from experiments.exact.truth import count_prefixes
from experiments.models import ROOT

BUILTIN = {
    smollm2.NAME: ROOT / "data" / "convergence" / "builtin_toolcalls.json",
    "stories260K": ROOT / "data" / "convergence" / "builtin_stories.json",
}
"""Files of the built-in problems, by the name of the model."""

_REQUIRED = ("prompt", "budget")
_ANSWERS = ("strings", "regex")
_KEYS = (*_REQUIRED, *_ANSWERS, "eos_ids", "name", "note")


@dataclass(frozen=True)
class Problem:
    """A problem, independent of the model except for token ids.

    Attributes:
        name: unique name.
        prompt: text or token ids.
        language: the constraint.
        budget: maximum number of tokens, EOS included.
        strings: answers in the order of results; None for the order of their bytes.
        eos_ids: tokens that end a text; None for the model's.
        note: description of the problem.
    """

    name: str
    prompt: str | tuple[int, ...]
    language: gcd.Automaton
    budget: int
    strings: tuple[str, ...] | None = None
    eos_ids: tuple[int, ...] | None = None
    note: str = ""


@dataclass(frozen=True)
class Prepared:
    """A problem prepared for a model.

    Attributes:
        problem: the problem.
        lm: the model with the problem's EOS ids.
        prompt: token ids.
        constraint: the language over the model's tokens.
        restriction: the language over the tokens that it allows in some state.
        prefixes: number of prefixes that can be completed within the budget.
    """

    problem: Problem
    lm: smc.TransformersLM
    prompt: tuple[int, ...]
    constraint: gcd.TokenAutomaton
    restriction: Restriction
    prefixes: int


def read_problems(path: str | Path) -> list[Problem]:
    """Read a file of problems.

    Raises:
        ValueError: the file isn't of the format above; the message names the problem and the value.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"expected an existing file, got task.problems={path}")
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8-sig"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"expected JSON in UTF-8 in task.problems={path}, got {error}") from None
    if not isinstance(content, list) or not content:
        what = "an empty list" if content == [] else type(content).__name__
        raise ValueError(
            f"task.problems={path}: expected a list of problems, got {what}; give "
            '[{"prompt": …, "budget": …, "strings": […]}, …], or regex in place of strings'
        )
    problems = [_read(entry, i, f"{path}, problem {i}") for i, entry in enumerate(content)]
    names = [problem.name for problem in problems]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"expected different names of problems in task.problems={path}, got {twice[0]!r} twice"
        )
    return problems


def _read(entry: Any, number: int, where: str) -> Problem:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is {_short(entry)}; give an object with {', '.join(_KEYS)}")
    unknown = sorted(entry.keys() - set(_KEYS))
    if unknown:
        raise ValueError(f"{where} has the unknown key {unknown[0]!r}; known are {_list(_KEYS)}")
    missing = [key for key in _REQUIRED if key not in entry]
    if missing:
        raise ValueError(
            f"{where} lacks {missing[0]!r}; needed are {_list(_REQUIRED)}, and strings or regex"
        )
    values = {"name": str(number), "note": "", "eos_ids": None, **entry}
    for key, holds, wanted in _CHECKS:
        if not holds(values[key]):
            raise ValueError(f"{where}: {key} is {_short(values[key])}; {wanted}")
    language, strings = _answers(entry, where)
    prompt, eos_ids = (
        tuple(value) if isinstance(value, list) else value
        for value in (values["prompt"], values["eos_ids"] and sorted(set(values["eos_ids"])))
    )
    return Problem(
        values["name"], prompt, language, values["budget"], strings, eos_ids, values["note"]
    )


def _answers(entry: dict[str, Any], where: str) -> tuple[gcd.Automaton, tuple[str, ...] | None]:
    """Return the constraint, and the answers in order if they are listed."""
    given = [key for key in _ANSWERS if key in entry]
    if len(given) != 1:
        what = "has both 'strings' and 'regex'" if given else "lacks 'strings' or 'regex'"
        raise ValueError(
            f"{where} {what}; give exactly one of them: strings, a list of texts, or regex, a "
            "pattern or a list of patterns that all must match"
        )
    if given == ["regex"]:
        return _matching(entry["regex"], where), None
    strings = _strings(entry["strings"], where)
    return gcd.choice(strings), strings


def _matching(value: Any, where: str) -> gcd.Automaton:
    """Return the texts that match a pattern, or all of several patterns."""
    patterns = [value] if isinstance(value, str) else value
    if (
        not isinstance(patterns, list)
        or not patterns
        or not all(isinstance(pattern, str) for pattern in patterns)
    ):
        raise ValueError(
            f"{where}: regex is {_short(value)}; give a pattern, or a list of patterns that all "
            "must match"
        )
    languages = []
    for pattern in patterns:
        try:
            languages.append(gcd.regex(pattern))
        except gcd.ConstraintError as error:
            raise ValueError(f"{where}: regex has {_short(pattern)}: {error}") from error
    try:
        language = reduce(and_, languages)
    except gcd.ConstraintError as error:
        raise ValueError(f"{where}: regex is {_short(value)}: {error}") from error
    if language.is_empty:
        raise ValueError(
            f"{where}: regex is {_short(value)}, which no text matches; give a pattern that some "
            "text matches, and several only if a text can match all of them"
        )
    return language


def _strings(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where}: strings is {_short(value)}; give a list of at least one text")
    for text in value:
        if not isinstance(text, str):
            raise ValueError(f"{where}: strings holds {_short(text)}, which is not text")
        if not _is_utf8(text):
            raise ValueError(
                f"{where}: strings holds {_short(text)}, which cannot be written in UTF-8; leave "
                "lone surrogates out"
            )
    twice = [text for text, count in Counter(value).items() if count > 1]
    if twice:
        raise ValueError(f"{where}: strings holds {_short(twice[0])} twice; give each once")
    return tuple(value)


@lru_cache(maxsize=4)
def vocabulary_of(tokenizer: Any, size: int, eos_ids: tuple[int, ...]) -> gcd.Vocabulary:
    """Read a tokenizer's vocabulary with these EOS ids; problems share it."""
    return gcd.Vocabulary.from_tokenizer(tokenizer, size=size, eos_ids=eos_ids)


def prepare(
    problem: Problem, lm: smc.TransformersLM, tokenizer: Any, most_prefixes: int
) -> Prepared:
    """Prepare or refuse a problem, without calling the language model.

    Raises:
        ValueError: the budget is too short for every answer, or no answer can be written with the
            vocabulary. Also if EOS or prompt ids are outside of the vocabulary, the prompt is too
            long for the context, or the tree is too large.
    """
    where = f"problem {problem.name!r}"
    try:
        size = lm.vocabulary.size
        eos_ids = lm.vocabulary.eos_ids if problem.eos_ids is None else problem.eos_ids
        ended = lm
        if tuple(eos_ids) != tuple(lm.vocabulary.eos_ids):
            outside = [token for token in eos_ids if token >= size]
            if outside:
                raise ValueError(
                    f"eos_ids has {outside[0]}, but the model's ids are 0 to {size - 1}"
                )
            vocabulary = vocabulary_of(tokenizer, size, tuple(eos_ids))
            ended = smc.TransformersLM(lm.model, tokenizer, vocabulary)
        prompt = tuple(lm.encode(problem.prompt))
        for token in prompt:
            if token >= size:
                raise ValueError(
                    f"the prompt has token {token}, but the model's ids are 0 to {size - 1}"
                )
        constraint = gcd.lift(problem.language, ended.vocabulary)
        gcd.check_budget(constraint, problem.budget)
        smc.check_prompts(ended, [prompt], [problem.budget])
        prefixes = count_prefixes(constraint, problem.budget)
    except (ValueError, gcd.ConstraintError) as error:
        raise ValueError(f"{where}: {error}") from error
    if prefixes > most_prefixes:
        raise ValueError(
            f"{where}: {_number(prefixes)} distinct token prefixes within a budget of "
            f"{problem.budget}, more than the {most_prefixes} that are enumerated; lower the "
            "budget, or give fewer or shorter answers"
        )
    restriction = Restriction.of(problem.language, constraint)
    return Prepared(problem, ended, prompt, constraint, restriction, int(prefixes))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_id, value))


def _is_utf8(text: str) -> bool:
    """Return whether text can be encoded in UTF-8; JSON allows lone surrogates, which can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "prompt",
        lambda value: isinstance(value, str) or _are_ids(value),
        "give text, or a list of token ids",
    ),
    (
        "prompt",
        lambda value: not isinstance(value, str) or _is_utf8(value),
        "it cannot be written in UTF-8, so leave lone surrogates out",
    ),
    ("budget", lambda value: _is_id(value) and value >= 1, "give a whole number of 1 or more"),
    (
        "name",
        lambda value: _is_line(value) and value != "",
        "give one line of text, or leave it out",
    ),
    ("note", _is_line, "give one line of text, or leave it out"),
    (
        "eos_ids",
        lambda value: value is None or _are_ids(value),
        "give a list of token ids, or leave it out for the model's own",
    ),
)
"""Checks of a problem: a key, a predicate of its value, and what to give instead."""


def _number(count: float) -> str:
    return f"{count:.0f}" if count < 2**53 else f"{count:.3g}"


def _list(keys: Sequence[str]) -> str:
    return ", ".join(keys)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
