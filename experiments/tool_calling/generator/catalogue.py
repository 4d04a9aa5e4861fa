"""The hand-written tools: a small language for declaring them with requests, and its reader.

    !name | description | parameter:type@pool=default, other:enum(a,b)
      A request with {parameter*} and {other?words if true/words if false}.

An exclamation mark holds a tool out of training. Types are str, int, float, bool, enum(...), list
(of strings) and list_int; `@pool` names the values' pool, `@low..high` their range. A parameter
with a default is optional. In a request, `{p}` is the value, `{p*}` may be several values, each of
which is a call of its own, and `{p?yes/no}` are a boolean's words. Parameters that a request
leaves out are left out of the call.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.tool_calling.generator import catalogue_life, catalogue_work

_PARAMETER = re.compile(
    r"(?P<name>\w+):(?P<kind>\w+)(?:\((?P<options>[^)]*)\))?(?:@(?P<pool>[\w.]+))?(?:=(?P<default>.*))?"
)
PLACEHOLDER = re.compile(r"\{(\w+)(\*?)(?:\?([^/}]*)/([^}]*))?\}")
_TYPES = {"enum": "str", "list": "List[str]", "list_int": "List[int]"}


@dataclass(frozen=True)
class Parameter:
    """A declared parameter; `pool` is the name of its values' pool or a range `low..high`."""

    name: str
    kind: str
    options: tuple[str, ...]
    pool: str
    optional: bool
    default: Any

    def declaration(self) -> dict[str, Any]:
        """As xLAM declares it."""
        declared: dict[str, Any] = {
            "type": _TYPES.get(self.kind, self.kind),
            "description": f"The {self.name.replace('_', ' ')}.",
        }
        if self.options:
            declared["enum"] = list(self.options)
        if self.optional:
            declared["default"] = self.default
        return declared


@dataclass(frozen=True)
class Tool:
    """A tool, and the requests that mean it."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]
    held_out: bool

    def declaration(self) -> dict[str, Any]:
        """As xLAM declares it."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": {p.name: p.declaration() for p in self.parameters},
        }


@functools.cache
def all_tools() -> tuple[Tool, ...]:
    """Every tool of the catalogue."""
    return tuple(
        tool for text in (catalogue_life.TEXT, catalogue_work.TEXT) for tool in _read(text)
    )


@functools.cache
def tools_of(split: str) -> tuple[Tool, ...]:
    """The tools of one split, `train` or `held_out`."""
    if split not in ("train", "held_out"):
        raise ValueError(f"unknown split {split!r}: choose train or held_out")
    return tuple(tool for tool in all_tools() if tool.held_out == (split == "held_out"))


def _read(text: str) -> list[Tool]:
    blocks: list[list[str]] = []
    for line in text.strip().splitlines():
        if line.startswith("  "):
            blocks[-1].append(line.strip())
        else:
            blocks.append([line])
    return [_tool(block[0], block[1:]) for block in blocks]


def _tool(head: str, requests: Sequence[str]) -> Tool:
    name, description, declared = (part.strip() for part in head.split("|"))
    return Tool(
        name=name.lstrip("!"),
        description=description,
        parameters=tuple(_parameter(part) for part in re.split(r",\s+(?=\w+:)", declared)),
        requests=tuple(requests),
        held_out=name.startswith("!"),
    )


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.fullmatch(text)
    if match is None:
        raise ValueError(f"no parameter: {text!r}")
    kind, written = match["kind"], match["default"]
    default: Any = written
    if written is not None and kind in ("int", "float"):
        default = int(written) if kind == "int" else float(written)
    elif written is not None and kind == "bool":
        default = written == "true"
    return Parameter(
        name=match["name"],
        kind=kind,
        options=tuple(match["options"].split(",")) if match["options"] else (),
        pool=match["pool"] or "",
        optional=written is not None,
        default=default,
    )
