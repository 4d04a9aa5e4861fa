"""Unrolling of recursive productions into automata, up to a depth.

The texts of a rule also depend on its *level*, the number of counted rules around it. An *instance*
is a rule at a level. Each instance that is embedded in others gets one automaton, after the
instances that are embedded in it. It takes one subset construction over a graph that contains their
automata as parts. Within the graph, a rule is added once for each node to which its texts lead. A
reference at the end of a production leads to the production's own target, so right recursion is
recognized and becomes a loop.

References that would exceed `max_depth` are omitted, and the length of the shortest text that this
excludes is recorded. With `max_bytes`, references that occur only in longer texts are omitted as
well. Both depend on the smallest number of bytes that surround the instance in any text. This is a
shortest-path problem (Dijkstra 1959).

Cost: one graph for each instance. The size of the automata grows exponentially with the depth: each
level multiplies it by the number of positions in productions at which a rule is embedded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Protocol, runtime_checkable

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import Automaton
from gcd._automata.limits import max_states, spend
from gcd._errors import StateLimitError
from gcd._languages.grammar.expressions import PER_KEPT_ENTRY, PER_STEP, blame
from gcd._languages.grammar.recursion import Production, Productions, Symbol

Instance = tuple[str, int]
"""Rule and its level."""


@runtime_checkable
class Analyzed(Protocol):
    """Interface of `gcd._languages.grammar.productions.Rules`, which cannot be imported here."""

    productions: Productions
    owner: dict[str, str]
    counted: set[str]
    fewest_bytes: dict[Symbol, float]

    def level_inside(self, name: str, level: int, production: Production, position: int) -> int:
        """Return the level of the symbol at index `position` of a production.

        A level is the number of counted rules (those limited by `max_depth`) around a symbol. The
        production belongs to the rule `name`, which is used at the level `level`.
        """
        ...


class Unrolling:
    """Texts of a grammar in which at most `max_depth` counted rules are nested.

    Attributes:
        deeper: lower bound on the length in bytes of the texts that the depth limit excludes;
            infinite if it excludes none.
    """

    def __init__(
        self, rules: Analyzed, start: str, *, max_depth: int, max_bytes: int | None = None
    ) -> None:
        self.deeper = math.inf
        self._rules = rules
        self._start = start, int(start in rules.counted)
        self._max_depth = max_depth
        self._most = math.inf if max_bytes is None else max_bytes
        self._made: dict[Instance, Automaton] = {}
        self._around: dict[Instance, float] = {}  # fewest bytes around an instance in any text
        self._measure()

    def automaton(self) -> Automaton:
        """Return the language of the start rule.

        Raises:
            StateLimitError, WorkLimitError: an automaton is too large; the message names its rule.
        """
        pending = [self._start]
        while pending:
            instance = pending[-1]
            if instance not in self._made:
                name, level = instance
                owner = self._rules.owner[name]
                with blame(lambda: f"the rule {owner!r} at depth {level}"):  # noqa: B023
                    graph = _Graph(self, instance)
                    missing = [inner for inner in graph.embedded if inner not in self._made]
                    if not missing:
                        made = self._made[instance] = graph.build()
                        spend(PER_KEPT_ENTRY * made.delta.size)
                pending += missing
            else:
                pending.pop()
        return self._made[self._start]

    def get(self, instance: Instance) -> Automaton | None:
        return self._made.get(instance)

    def admits(self, around: Instance, name: str, level: int, others: float) -> bool:
        """Return whether a production of `around` may use the rule `name` at level `level`.

        `others` is the fewest bytes of the other symbols in the production. The use is refused if
        every text with it would be longer than `max_bytes`, or nested deeper than `max_depth`.
        """
        needed = self._around.get(around, math.inf) + others + self._rules.fewest_bytes[name]
        if needed > self._most:
            return False
        if level > self._max_depth:
            self.deeper = min(self.deeper, needed)
            return False
        return True

    def _measure(self) -> None:
        """Find, for each rule and level, the fewest bytes of text around a use of the rule."""
        pending: list[tuple[float, Instance]] = [(0.0, self._start)]
        if self._start[1] > self._max_depth:
            self._made[self._start], pending = Automaton.empty(), []
            self.deeper = self._rules.fewest_bytes[self._start[0]]
        while pending:
            around, instance = heappop(pending)
            if instance in self._around:
                continue
            self._around[instance] = around
            for inner, others in self._inside(instance):
                if inner not in self._around and self.admits(instance, *inner, others):
                    heappush(pending, (around + others, inner))

    def _inside(self, instance: Instance) -> Iterator[tuple[Instance, float]]:
        """Yield the rules that a rule uses, each with its level and a number of bytes.

        The number is the fewest bytes of the other symbols in the production.
        """
        name, level = instance
        for production in self._rules.productions[name]:
            total = sum((self._rules.fewest_bytes[symbol] for symbol in production), 0.0)
            spend(PER_STEP * (1 + len(production)))
            for i, symbol in enumerate(production):
                if not isinstance(symbol, Automaton):
                    inner = self._rules.level_inside(name, level, production, i)
                    yield (symbol, inner), total - self._rules.fewest_bytes[symbol]


class _Graph:
    """Graph of the texts of an instance, which is a rule at a level of nesting.

    `embedded` lists the instances whose automata occur as parts in the graph.
    """

    def __init__(self, unrolling: Unrolling, instance: Instance) -> None:
        self.embedded: list[Instance] = []
        self._unrolling = unrolling
        self._rules = unrolling._rules
        self._graph = Assembly()
        self._states = 0
        self._pending: list[tuple[str, int, int, int]] = []
        self._entries: dict[tuple[str, int], int] = {}  # (rule, node after it) -> first node
        self._first, self._end = self._node(), self._node()
        self._enter(*instance, self._first, self._end)
        while self._pending:
            name, level, entry, target = self._pending.pop()
            for production in self._rules.productions[name]:
                self._chain(name, level, production, entry, target)

    def build(self) -> Automaton:
        return self._graph.build(self._first, self._end)

    def _node(self) -> int:
        spend(PER_STEP)
        return self._graph.node()

    def _enter(self, name: str, level: int, source: int, target: int) -> None:
        """Connect the graph's nodes `source` and `target` by the texts of a rule."""
        key = name, target
        if key not in self._entries:
            self._entries[key] = self._node()
            self._pending.append((name, level, self._entries[key], target))
        self._graph.skip(source, self._entries[key])

    def _chain(
        self, name: str, level: int, production: Production, source: int, target: int
    ) -> None:
        """Connect the graph's nodes `source` and `target` by the symbols of a production."""
        if not production:
            self._graph.skip(source, target)
        total = sum((self._rules.fewest_bytes[symbol] for symbol in production), 0.0)
        for i, symbol in enumerate(production):
            is_last = i == len(production) - 1
            following = target if is_last else self._node()
            if isinstance(symbol, Automaton):
                self._insert(source, following, symbol)
            elif is_last and (symbol, target) in self._entries:
                self._graph.skip(source, self._entries[symbol, target])
            else:
                inner = self._rules.level_inside(name, level, production, i)
                others = total - self._rules.fewest_bytes[symbol]
                if not self._unrolling.admits((name, level), symbol, inner, others):
                    return
                if is_last:
                    self._enter(symbol, inner, source, target)
                else:
                    self.embedded.append((symbol, inner))
                    part = self._unrolling.get((symbol, inner))
                    if part is not None:
                        self._insert(source, following, part)
            source = following

    def _insert(self, source: int, target: int, part: Automaton) -> None:
        spend(PER_STEP)
        self._states += part.num_states
        self._graph.insert(source, target, part)
        if self._states > max_states():
            raise StateLimitError(max_states())
