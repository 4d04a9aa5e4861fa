"""Search for an order of a JSON value's members that a language accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gcd

_MAX_STEPS = 20_000  # in the search for an order of members

_Ends = Iterator[tuple[int, str]]


class Orders:
    """Generates the JSON texts of a value that a language allows, with members in any order.

    Args:
        language: the language; its strings may continue after the value.
        any_order: whether members may be reordered; if not, they keep their order.
        comma, colon: separators, including the spaces after them.
    """

    def __init__(
        self,
        language: gcd.Automaton,
        *,
        any_order: bool = True,
        comma: str = ",",
        colon: str = ":",
    ) -> None:
        self._run, self._any_order, self._steps = language.run, any_order, _MAX_STEPS
        self._comma, self._colon = comma, colon

    def ends(self, state: int, value: Any) -> _Ends:
        """Yield each JSON text of a value that the language allows after `state`.

        Texts come in pairs with the state after the text.
        """
        self._steps -= 1
        if state < 0 or self._steps < 0:
            return
        if isinstance(value, dict):
            yield from self._members(self._run("{", state), "{", value, frozenset(value), set())
        elif isinstance(value, list):
            yield from self._items(self._run("[", state), "[", value, 0)
        else:
            text = json.dumps(value, ensure_ascii=False)
            end = self._run(text, state)
            if end >= 0:
                yield end, text

    def _items(self, state: int, before: str, value: list[Any], at: int) -> _Ends:
        if state >= 0 and at == len(value):
            state = self._run("]", state)
            if state >= 0:
                yield state, f"{before}]"
        elif state >= 0:
            comma = self._comma if at else ""
            for after, text in self.ends(self._run(comma, state), value[at]):
                yield from self._items(after, f"{before}{comma}{text}", value, at + 1)

    def _members(
        self,
        state: int,
        before: str,
        value: dict[str, Any],
        left: frozenset[str],
        seen: set[tuple[int, frozenset[str]]],
    ) -> _Ends:
        if state < 0 or (state, left) in seen:
            return
        seen.add((state, left))
        if not left:
            end = self._run("}", state)
            if end >= 0:
                yield end, before + "}"
        comma = self._comma if len(left) < len(value) else ""
        due = self._run(comma, state)
        for name in [name for name in value if name in left][: None if self._any_order else 1]:
            key = json.dumps(name, ensure_ascii=False) + self._colon
            at = self._run(key, due) if due >= 0 else -1
            for after, text in self.ends(at, value[name]) if at >= 0 else ():
                written = f"{before}{comma}{key}{text}"
                yield from self._members(after, written, value, left - {name}, seen)


def reorder(language: gcd.Automaton, text: bytes) -> str | None:
    """Reorder the members of a JSON text so that a language accepts it; None if no order is.

    The result has the spaces of `json.dumps`, or no spaces.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for comma, colon in ((",", ":"), (", ", ": ")):
        orders = Orders(language, comma=comma, colon=colon)
        for state, found in orders.ends(language.initial, value):
            if bool(language.accepting[state]):
                is_moved = json.dumps(json.loads(found)) != json.dumps(value)
                return found if is_moved else None
    return None
