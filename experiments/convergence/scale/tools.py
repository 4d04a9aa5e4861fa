"""These problems are calls of tools, written by the HMM of a language model's answers.

    tool       which of six tools is called
    genre      which value an enumeration has
    members    which members are given, of four optional ones of which there must be two

each with a *tight* budget, the shortest call and four tokens more, and an *ample* one. That two of
four must be there is an obligation that can be put off until it is too late. The tools are in
tools.json, which lies beside this module: short ones, of which several answers are about as
probable to an HMM that has not read a request; the four members are some of theirs, put together.

They were written down before any sampler was run on them, and all of them are reported.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gcd
from experiments.convergence.scale.problem import EventProblem
from experiments.convergence.scale.truth import Event
from gcd.automata.automaton import Automaton

TIGHT, AMPLE = (1, 4), (2, 32)  # factor of the fewest tokens, tokens on top

_OFFERED = (
    "set_alarm", "weather_forecast", "play_song", "search_news", "set_timer", "count_words",
)  # fmt: skip
_ENUMERATED, _ENUMERATION = "search_movies", "genre"
_LEAST = 2
_FREE: dict[str, Any] = {
    "name": "search_news",
    "parameters": {
        "type": "object",
        "properties": {
            "topic": {"type": "string"},
            "language": {"type": "string"},
            "country": {"type": "string"},
            "limit": {"type": "integer"},
        },
        "minProperties": _LEAST,
    },
}


def tool(budget: tuple[int, int], name: str) -> EventProblem:
    """Make the problem of which tool is called."""
    tools = [_declared(each) for each in _OFFERED]
    return EventProblem(
        name=name,
        source="toolcalls",
        note=f"one call of one of {', '.join(_OFFERED)}; events: which",
        language=_calls(tools),
        events=tuple(Event(each["name"], _calls([each])) for each in tools),
        budget=budget,
    )


def enumeration(budget: tuple[int, int], name: str) -> EventProblem:
    """Make the problem of which value an enumeration has."""
    declared = _declared(_ENUMERATED)
    [parsed] = gcd.parse_tools([declared]).tools
    properties = parsed.schema["properties"]

    def only(value: str) -> Automaton:
        narrowed = {**properties, _ENUMERATION: {"enum": [value]}}
        return _calls([_tool(parsed.name, narrowed, required=parsed.schema["required"])])

    values = properties[_ENUMERATION]["enum"]
    return EventProblem(
        name=name,
        source="toolcalls",
        note=f"one call of {_ENUMERATED}; events: the {_ENUMERATION}",
        language=_calls([declared]),
        events=tuple(Event(value, only(value)) for value in values),
        budget=budget,
    )


def members(budget: tuple[int, int], name: str) -> EventProblem:
    """Make the problem of which members are given, where there must be some."""
    properties = _FREE["parameters"]["properties"]

    def given(some: Iterable[str]) -> Automaton:
        chosen = {each: properties[each] for each in properties if each in set(some)}
        return _calls([_tool(_FREE["name"], chosen, required=list(chosen))])

    fewest = [
        Event(" and ".join(some), given(some))
        for some in itertools.combinations(properties, _LEAST)
    ]
    counts = range(_LEAST + 1, len(properties) + 1)
    more = [given(some) for count in counts for some in itertools.combinations(properties, count)]
    return EventProblem(
        name=name,
        source="toolcalls",
        note=f"one call of {_FREE['name']} with at least {_LEAST} of {len(properties)} members; "
        "events: which",
        language=_calls([_FREE]),
        events=(*fewest, Event("more", Automaton.union(more))),
        budget=budget,
    )


def _declared(name: str) -> dict[str, Any]:
    """A tool of tools.json, which lies beside this module."""
    [found] = [each for each in _all_tools() if each["name"] == name]
    return found


@cache
def _all_tools() -> list[dict[str, Any]]:
    return json.loads(Path(__file__).with_name("tools.json").read_text(encoding="utf-8"))


def _tool(name: str, properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": dict(properties), "required": list(required)}
    return {"name": name, "parameters": schema}


def _calls(tools: Sequence[Mapping[str, Any]]) -> Automaton:
    """One call of one of these tools, in JSON."""
    return gcd.tool_calls(tools, style="json", max_calls=1, unknown="ignore")


TOOLS: dict[str, Callable[[str], EventProblem]] = {
    "tool-tight": lambda name: tool(TIGHT, name),
    "tool-ample": lambda name: tool(AMPLE, name),
    "genre-tight": lambda name: enumeration(TIGHT, name),
    "genre-ample": lambda name: enumeration(AMPLE, name),
    "members-tight": lambda name: members(TIGHT, name),
    "members-ample": lambda name: members(AMPLE, name),
}
"""Makers of the problems, by name."""
