"""Natural requests: the hand-written tools, their phrasings filled with values of one split.

A record is one call, several calls of one tool (`... in Oslo and Lima?`), or several requests in
one; other tools of the split stand beside the right one. Augmentation, for training alone, renames
tools and parameters, exchanges values for random ones and shuffles parameters, so that neither a
name nor a value need mean what it meant before.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from experiments.tool_calling.answers import Call
from experiments.tool_calling.generator.catalogue import PLACEHOLDER, Parameter, Tool, tools_of
from experiments.tool_calling.generator.pools import natural_value
from experiments.tool_calling.generator.values import Value, draw, list_value, random_value
from experiments.tool_calling.generator.words import PARAMETERS, noun, pseudo_word, verb
from experiments.tool_calling.records import ToolRecord

_ENGLISH_SHARE = 0.75  # of the words exchanged in names
_RANDOM_VALUES = 0.25  # share of augmented requests with values of another kind than usual

_CONNECTIVES = [" Also, ", " And ", " Then ", " After that, ", " "]
_OPENINGS = ["Hi. ", "Hello, ", "Please help me. ", "Quick question: "]
_CLOSINGS = [" Thanks.", " Thank you!", " I need it today."]


def natural_record(
    rng: random.Random, split: str, identity: str, augment: bool = False, simple: bool = False
) -> ToolRecord:
    """One record over the tools and values of a split; a simple one is a single call."""
    return natural_group(rng, split, identity, 1, augment, simple)[0]


def natural_group(
    rng: random.Random,
    split: str,
    identity: str,
    size: int,
    augment: bool = False,
    simple: bool = False,
) -> list[ToolRecord]:
    """`size` records over one list of tools; the first is about those drawn first."""
    catalogue = tools_of(split)
    chosen = [rng.choice(catalogue)]
    drawn = rng.random()
    if drawn < 0.18 and not simple:
        others = [tool for tool in catalogue if tool is not chosen[0]]
        chosen += rng.sample(others, 2 if drawn < 0.03 else 1)
    distractors = [tool for tool in catalogue if tool not in chosen]
    several = [0, 0, 1] if simple else [0, 1, 1, 2, 2, 3]
    extra = rng.sample(distractors, rng.choice(several) if len(chosen) == 1 else 1)
    if augment:
        chosen = [_augmented(rng, tool) for tool in chosen]
        extra = [_augmented(rng, tool) if rng.random() < 0.8 else tool for tool in extra]
    meant = [chosen]
    offered = chosen + extra
    for _ in range(size - 1):
        number = 1 if simple or rng.random() > 0.18 else min(2, len(offered))
        meant.append(rng.sample(offered, number))
    if len({tool.name for tool in offered}) < len(offered):  # renaming gave two tools one name
        return natural_group(rng, split, identity, size, augment, simple)
    requests = [_requests(rng, tools, split, augment, simple) for tools in meant]
    rng.shuffle(offered)
    declared = tuple(tool.declaration() for tool in offered)
    return [
        ToolRecord(
            f"{identity}-{number}" if number else identity,
            _joined(rng, sentences),
            declared,
            tuple(calls),
        )
        for number, (sentences, calls) in enumerate(requests)
    ]


def _requests(
    rng: random.Random, tools: Sequence[Tool], split: str, augment: bool, simple: bool
) -> tuple[list[str], list[Call]]:
    """A sentence for each of these tools, and the calls."""
    random_values = augment and rng.random() < _RANDOM_VALUES
    sentences, calls = [], []
    for tool in tools:
        sentence, made = _request(
            rng, tool, split == "held_out", random_values, parallel=0.0 if simple else 0.35
        )
        sentences.append(sentence)
        calls += made
    return sentences, calls


def _request(
    rng: random.Random, tool: Tool, held_out: bool, random_values: bool, parallel: float
) -> tuple[str, list[Call]]:
    template = rng.choice(tool.requests)
    parameters = {p.name: p for p in tool.parameters}
    shared: dict[str, Value] = {}
    several: tuple[str, list[Value]] | None = None

    def fill(match: re.Match[str]) -> str:
        nonlocal several
        name, star, yes, no = match.groups()
        parameter = parameters[name]
        if yes is not None:
            flag = rng.random() < 0.5
            shared[name] = Value(flag, yes if flag else no)
            return shared[name].text
        if star and rng.random() < parallel:
            count = rng.choice([2, 2, 3])
            found: dict[str, Value] = {}
            for _ in range(20):
                value = value_of(rng, parameter, held_out, random_values)
                found.setdefault(value.text, value)
                if len(found) == count:
                    break
            several = name, list(found.values())
            texts = list(found)
            return " and ".join([", ".join(texts[:-1]), texts[-1]]) if texts[1:] else texts[0]
        shared[name] = value_of(rng, parameter, held_out, random_values)
        return shared[name].text

    sentence = PLACEHOLDER.sub(fill, template)
    settings = [{}] if several is None else [{several[0]: value} for value in several[1]]
    calls = []
    for setting in settings:
        values = {**shared, **setting}
        arguments = {p.name: values[p.name].value for p in tool.parameters if p.name in values}
        calls.append(Call(tool.name, arguments))
    return sentence, calls


def value_of(
    rng: random.Random, parameter: Parameter, held_out: bool, random_values: bool = False
) -> Value:
    """A value for a parameter, from its own pool or (training alone) a random one of its type."""
    kind, pool = parameter.kind, parameter.pool
    if kind == "enum":
        option = rng.choice(parameter.options)
        return Value(option, option)
    if kind in ("list", "list_int"):
        item = replace(parameter, kind="str" if kind == "list" else "int")
        count = rng.randint(2, 4)
        return list_value([value_of(rng, item, held_out, random_values) for _ in range(count)])
    if random_values:
        return random_value(rng, kind)
    if kind == "str":
        return natural_value(rng, pool, held_out)
    low, high = pool.split("..")
    if kind == "int":
        return draw(lambda: _number(rng.randint(int(low), int(high))), held_out)
    return draw(lambda: _number(round(rng.uniform(float(low), float(high)), 1)), held_out)


def _number(number: float) -> Value:
    return Value(number, str(number))


def _augmented(rng: random.Random, tool: Tool) -> Tool:
    """The tool under other names, its parameters in another order."""
    parameters = list(tool.parameters)
    requests = tool.requests
    if rng.random() < 0.4:
        rng.shuffle(parameters)
    for position, parameter in enumerate(parameters):
        if rng.random() < 0.4:
            taken = {p.name for p in parameters}
            known = rng.choice(PARAMETERS) if rng.random() < 0.4 else noun(rng)
            name = known if rng.random() < _ENGLISH_SHARE else pseudo_word(rng)
            if name in taken:
                continue
            parameters[position] = replace(parameter, name=name)
            pattern = re.compile(r"\{" + parameter.name + r"(?=[*?}])")
            requests = tuple(pattern.sub("{" + name, request) for request in requests)
    name, description = tool.name, tool.description
    for position in range(len(name.split("_"))):
        if rng.random() < 0.6:
            name, description, requests = _with_new_word(rng, position, name, description, requests)
    drawn = rng.random()
    if drawn < 0.15:
        words = name.split("_")
        words[0] = verb(rng)
        name = "_".join(words)
    elif drawn < 0.25:
        name = "_".join([pseudo_word(rng), *name.split("_")[1:]])
    elif drawn < 0.32:
        name = pseudo_word(rng, 3)  # the description must do
    elif drawn < 0.40:
        head, *tail = name.split("_")
        name = head + "".join(word.capitalize() for word in tail)
    if name == tool.name and rng.random() < 0.15:
        description = ""
    held_out = {other.name for other in tools_of("held_out")}
    if name in held_out:
        name = tool.name
    return Tool(name, description, tuple(parameters), requests, tool.held_out)


def _with_new_word(
    rng: random.Random, position: int, name: str, description: str, requests: tuple[str, ...]
) -> tuple[str, str, tuple[str, ...]]:
    """This word of the name becomes another, wherever it is outside of braces.

    Mostly an English one: were all of them invented, English names would always be known tools,
    to be had by heart instead of read.
    """
    words = name.split("_")
    english = verb(rng) if position == 0 else noun(rng)
    old, new = words[position], english if rng.random() < _ENGLISH_SHARE else pseudo_word(rng)
    words[position] = new
    pattern = re.compile(rf"(\{{[^}}]*\}})|\b{re.escape(old)}\b", re.IGNORECASE)

    def exchange(text: str) -> str:
        return pattern.sub(lambda match: match[1] or new, text)

    name, description = "_".join(words), exchange(description)
    if position and rng.random() < 0.2:  # a request need not say the very form of the name
        new += "s"
    return name, description, tuple(map(exchange, requests))


def _joined(rng: random.Random, sentences: Sequence[str]) -> str:
    text = sentences[0]
    for sentence in sentences[1:]:
        connective = rng.choice(_CONNECTIVES)
        text += connective
        text += sentence[0].lower() + sentence[1:] if connective.strip() else sentence
    if rng.random() < 0.12:
        text = rng.choice(_OPENINGS) + text
    if rng.random() < 0.12:
        text += rng.choice(_CLOSINGS)
    return text
