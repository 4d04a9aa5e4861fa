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
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import and_
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

import gcd
import smc
from experiments.exact.cached import Restriction
from experiments.exact.truth import count_prefixes
from experiments.models import ROOT, SMOLLM2

BUILTIN = {
    SMOLLM2: ROOT / "data" / "convergence" / "builtin_toolcalls.json",
    "stories260K": ROOT / "data" / "convergence" / "builtin_stories.json",
}
"""Files of the built-in problems, by the name of the model."""


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


_Id = Annotated[int, Field(ge=0)]
_Ids = Annotated[list[_Id], Field(min_length=1)]
_Texts = Annotated[list[str], Field(min_length=1)]
_LINE = r"^[^\p{C}\p{Zl}\p{Zp}]*$"  # printable characters


class _Entry(BaseModel):
    """An entry of the file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str | _Ids
    budget: Annotated[int, Field(ge=1)]
    strings: _Texts | None = None
    regex: str | _Texts | None = None
    eos_ids: _Ids | None = None
    name: Annotated[str, Field(min_length=1, pattern=_LINE)] | None = None
    note: Annotated[str, Field(pattern=_LINE)] = ""

    @model_validator(mode="after")
    def _has_answers(self) -> _Entry:
        if (self.strings is None) == (self.regex is None):
            raise ValueError("expected exactly one of strings and regex")
        twice = [text for text, count in Counter(self.strings or ()).items() if count > 1]
        if twice:
            raise ValueError(f"expected different strings, got {_short(twice[0])} twice")
        return self


def read_problems(path: str | Path) -> list[Problem]:
    """Read a file of problems.

    Raises:
        ValueError: the file isn't of the format above; the message names the problem and the value.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        entries = TypeAdapter(Annotated[list[_Entry], Field(min_length=1)]).validate_json(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"expected JSON in UTF-8 in task.problems={path}, got {error}") from None
    except ValidationError as error:
        wrong = error.errors()[0]
        number, key = [*wrong["loc"], "", ""][:2]
        place = (f"problem {number}: " if wrong["loc"] else "") + (f"{key} is " if key else "")
        raise ValueError(
            f"expected a list of problems in JSON in task.problems={path}, got {place}"
            f"{_short(wrong['input'])} ({wrong['msg']})"
        ) from None
    problems = [_read(entry, i, f"{path}, problem {i}") for i, entry in enumerate(entries)]
    names = [problem.name for problem in problems]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"expected different names of problems in task.problems={path}, got {twice[0]!r} twice"
        )
    return problems


def _read(entry: _Entry, number: int, where: str) -> Problem:
    """Compile the constraint of an entry."""
    prompt, strings = entry.prompt, entry.strings
    return Problem(
        str(number) if entry.name is None else entry.name,
        prompt if isinstance(prompt, str) else tuple(prompt),
        gcd.choice(strings) if strings else _matching(entry.regex or "", where),
        entry.budget,
        tuple(strings) if strings else None,
        tuple(sorted(set(entry.eos_ids))) if entry.eos_ids else None,
        entry.note,
    )


def _matching(patterns: str | list[str], where: str) -> gcd.Automaton:
    """Return the texts that match a pattern, or all of several patterns."""
    languages = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        try:
            languages.append(gcd.regex(pattern))
        except gcd.ConstraintError as error:
            raise ValueError(f"{where}: regex has {_short(pattern)}: {error}") from error
    try:
        language = reduce(and_, languages)
    except gcd.ConstraintError as error:
        raise ValueError(f"{where}: regex is {_short(patterns)}: {error}") from error
    if language.is_empty:
        raise ValueError(
            f"{where}: regex is {_short(patterns)}, which no text matches; give a pattern that "
            "some text matches, and several only if a text can match all of them"
        )
    return language


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
    size, eos_ids = lm.vocabulary.size, problem.eos_ids or lm.vocabulary.eos_ids
    try:
        prompt = tuple(lm.encode(problem.prompt))
        for key, tokens in (("eos_ids", eos_ids), ("the prompt", prompt)):
            outside = [token for token in tokens if token >= size]
            if outside:
                raise ValueError(f"{key} has {outside[0]}, but the model's ids are 0 to {size - 1}")
        ended = lm
        if tuple(eos_ids) != tuple(lm.vocabulary.eos_ids):
            vocabulary = vocabulary_of(tokenizer, size, tuple(eos_ids))
            ended = smc.TransformersLM(lm.model, tokenizer, vocabulary)
        constraint = gcd.lift(problem.language, ended.vocabulary)
        gcd.check_budget(constraint, problem.budget)
        smc.check_prompts(ended, [prompt], [problem.budget])
    except (ValueError, gcd.ConstraintError) as error:
        raise ValueError(f"{where}: {error}") from error
    prefixes = count_prefixes(constraint, problem.budget)
    if prefixes > most_prefixes:
        raise ValueError(
            f"{where}: {prefixes:.6g} distinct token prefixes within a budget of {problem.budget}, "
            f"more than the {most_prefixes} that are enumerated; lower the budget, or give fewer "
            "or shorter answers"
        )
    return Prepared(problem, ended, prompt, constraint, Restriction.of(constraint), int(prefixes))


def _short(value: Any) -> str:
    """Format a value in JSON, abbreviated."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
