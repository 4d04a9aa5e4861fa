"""Invented tools with invented requests: training text that cannot be known by heart.

Names are pairs of words or nonsense, parameters are drawn with their types, values are random. The
request says which tool it means by the words of its name or of its description, and which value
belongs to which parameter by naming it, by its type, or by the order of declaration.
`level` is the step of the curriculum: 0 is one tool with one or two parameters, 3 is everything.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from experiments.tool_calling.answers import Call
from experiments.tool_calling.generator.catalogue import tools_of
from experiments.tool_calling.generator.values import Value, random_value
from experiments.tool_calling.generator.words import (
    DESCRIBED,
    PARAMETERS,
    noun,
    pseudo_word,
    verb,
    word,
)
from experiments.tool_calling.records import ToolRecord

MAX_LEVEL = 3

_KINDS = ["str"] * 10 + ["int"] * 5 + ["float"] * 3 + ["bool", "bool", "enum", "enum"]
_LIST_KINDS = ["List[str]", "List[int]"]
_OPENINGS = [
    "Please ",
    "Can you ",
    "Could you ",
    "I want to ",
    "I need to ",
    "Help me ",
    "",
    "",
    "Now ",
]
_PREPOSITIONS = ["for", "in", "of", "at", "with", "using", "from", "to", "by", "on", "as"]


@dataclass(frozen=True)
class _Parameter:
    name: str
    kind: str
    options: tuple[str, ...]
    default: Any
    optional: bool


@dataclass(frozen=True)
class _Tool:
    name: str
    description: str
    phrase: str  # how a request calls it
    parameters: tuple[_Parameter, ...]

    def declaration(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "parameters": {p.name: _declaration(p) for p in self.parameters},
        }


def synthetic_record(rng: random.Random, level: int, identity: str) -> ToolRecord:
    """One record of invented tools at a level of the curriculum."""
    return synthetic_group(rng, level, identity, 1)[0]


def synthetic_group(rng: random.Random, level: int, identity: str, size: int) -> list[ToolRecord]:
    """`size` records over one list of invented tools."""
    tools = [_tool(rng, level) for _ in range(rng.randint(1, (1, 2, 3, 4)[level]))]
    held_out = {tool.name for tool in tools_of("held_out")}
    tools = list({tool.name: tool for tool in tools if tool.name not in held_out}.values())
    if not tools:
        return synthetic_group(rng, level, identity, size)
    requests = []
    for _ in range(size):
        chosen = [rng.choice(tools)]
        if level >= 2 and rng.random() < 0.3:
            chosen += [rng.choice(tools) for _ in range(rng.randint(1, 2))]
        requests.append(_requests(rng, chosen))
    declared = tuple(tool.declaration() for tool in tools)
    return [
        ToolRecord(f"{identity}-{number}" if number else identity, query, declared, tuple(calls))
        for number, (query, calls) in enumerate(requests)
    ]


def _requests(rng: random.Random, chosen: list[_Tool]) -> tuple[str, list[Call]]:
    """A request for all of these tools, and its calls."""
    clauses, calls = [], []
    for position, tool in enumerate(chosen):
        again = position > 0 and tool is chosen[position - 1] and rng.random() < 0.6
        clause, call = _request(rng, tool, again)
        clauses.append(clause)
        calls.append(call)
    return _joined(rng, clauses), calls


def _tool(rng: random.Random, level: int) -> _Tool:
    action = verb(rng) if rng.random() < 0.7 else pseudo_word(rng)
    nouns = [word(rng) for _ in range(rng.choice([1, 1, 2]))]
    words = [action, *nouns] if rng.random() < 0.8 else nouns
    described = [verb(rng), *(word(rng) for _ in range(rng.randint(1, 2)))]
    by_name = rng.random() < 0.65
    phrase = _phrase(rng, words if by_name else described)
    if rng.random() < 0.3:
        described.insert(rng.randint(0, len(described)), rng.choice(DESCRIBED))
    name = _cased(rng, words)
    most = (2, 3, 4, 4)[level]
    names: dict[str, None] = {}
    for _ in range(rng.randint(0 if level else 1, most)):
        drawn = rng.random()
        names[
            rng.choice(PARAMETERS)
            if drawn < 0.4
            else noun(rng)
            if drawn < 0.7
            else pseudo_word(rng)
        ] = None
    parameters = tuple(_parameter(rng, name, level) for name in names)
    return _Tool(name, " ".join(described).capitalize(), phrase, parameters)


def _phrase(rng: random.Random, words: list[str]) -> str:
    """How a request calls a tool of these words: all of them, or those that tell it from others."""
    drawn = rng.random()
    if drawn < 0.5 or len(words) == 1:
        return " ".join(words)
    if drawn < 0.65:
        return " ".join([words[0], rng.choice(["the", "a", "my"]), *words[1:]])
    asked = rng.choice(["what is", "show me", "tell me", "give me", "get", "I want"])
    if drawn < 0.85:
        return f"{asked} the {' '.join(words[1:])}"
    return f"{asked} the {words[-1]} of the {words[-2]}"


def _cased(rng: random.Random, words: list[str]) -> str:
    style = rng.random()
    if style < 0.7:
        return "_".join(words)
    camel = "".join(w.capitalize() for w in words)
    if style < 0.85:
        return words[0] + camel[len(words[0]) :]
    return camel if style < 0.95 else ".".join(words)


def _parameter(rng: random.Random, name: str, level: int) -> _Parameter:
    kind = rng.choice(_KINDS)
    if level >= 2 and rng.random() < 0.06:
        kind = rng.choice(_LIST_KINDS)
    options: tuple[str, ...] = ()
    if kind == "enum":
        options = tuple({word(rng): None for _ in range(rng.randint(2, 4))})
    optional = level >= 1 and rng.random() < 0.25
    default: Any = None
    if optional:
        default = rng.choice(options) if options else random_value(rng, kind).value
    return _Parameter(name, kind, options, default, optional)


def _declaration(parameter: _Parameter) -> dict[str, Any]:
    declared: dict[str, Any] = {
        "type": "str" if parameter.kind == "enum" else parameter.kind,
        "description": f"The {parameter.name.replace('_', ' ')}.",
    }
    if parameter.options:
        declared["enum"] = list(parameter.options)
    if parameter.optional:
        declared["default"] = parameter.default
    return declared


def _request(rng: random.Random, tool: _Tool, again: bool) -> tuple[str, Call]:
    """The words for one call, and the call."""
    given = [p for p in tool.parameters if not p.optional or rng.random() < 0.5]
    values = {p.name: _value(rng, p) for p in given}
    arguments = {name: value.value for name, value in values.items()}
    in_order = rng.random() < 0.6
    mentions = []
    for parameter in given:
        only_one = sum(p.kind == parameter.kind for p in given) == 1
        nameless = (only_one or in_order) and rng.random() < 0.5 and parameter.kind != "bool"
        mentions.append(_mention(rng, parameter.name, values[parameter.name], nameless))
    if not in_order:
        rng.shuffle(mentions)
    said = rng.choice([" ", " ", ", ", " and "]).join(mentions)
    if again and said:
        return rng.choice(["once more ", "the same ", "again "]) + said, Call(tool.name, arguments)
    phrase = tool.phrase if rng.random() < 0.85 else f"use {tool.name}"
    return f"{phrase} {said}".strip(), Call(tool.name, arguments)


def _value(rng: random.Random, parameter: _Parameter) -> Value:
    if parameter.options:
        option = rng.choice(parameter.options)
        return Value(option, option)
    value = random_value(rng, parameter.kind)
    if parameter.kind == "str" and rng.random() < 0.15:
        return Value(value.value, rng.choice(["'{}'", '"{}"']).format(value.text))
    return value


def _mention(rng: random.Random, name: str, value: Value, nameless: bool) -> str:
    said = name.replace("_", " ")
    if nameless:
        return f"{rng.choice(_PREPOSITIONS)} {value.text}"
    if value.value is True and rng.random() < 0.4:
        return rng.choice(["with {} on", "and make it {}", "with {}"]).format(said)
    if value.value is False and rng.random() < 0.4:
        return rng.choice(["with {} off", "without {}", "not {}"]).format(said)
    form = rng.choice(
        ["{0} {1}", "with {0} {1}", "{1} as {0}", "{0} is {1}", "{0}: {1}", "the {0} {1}"]
    )
    return form.format(said, value.text)


def _joined(rng: random.Random, clauses: list[str]) -> str:
    text = rng.choice(_OPENINGS) + clauses[0]
    for clause in clauses[1:]:
        text += rng.choice([" and ", ", then ", ". Also ", " and also ", "; "]) + clause
    if rng.random() < 0.1:
        text += " " + rng.choice(["for me", "please", "now", "today"])
    ending = rng.choice([".", "?", "", "."])
    text = text[0].upper() + text[1:] if rng.random() < 0.8 else text
    return text + ending
