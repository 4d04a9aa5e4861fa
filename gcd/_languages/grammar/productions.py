"""Compiler from the rules of a grammar to automata.

Rules are processed after the rules to which they refer. A rule is *regular* if it doesn't contain
itself, or only in a way that is equivalent to a loop, and if all rules to which it refers are
regular. Regular rules become exact automata. All other rules become productions over symbols, which
are automata or rules. A choice or repetition that contains such a rule becomes a separate rule, so
that nothing is multiplied out: n optional parts become n rules, not 2^n productions. Recursion at
the ends of rules, such as chains of operators, is first rewritten as loops
(`gcd._languages.grammar.chains`).

**Counted rules.** In a production `X -> Y_1 ... Y_n`, references to rules that lead back to X are
of two kinds. Y_n is a *tail*, because the text after X is also the text after Y_n. All others are
*embedding*. Unrolling terminates if every cycle that contains an embedding reference contains one
in a *counted* rule. The counted rules are chosen greedily: each choice leaves as few references as
possible on cycles that don't satisfy this condition. If no counted rule is needed, the rules are
regular. Cf. Nederhof, "Practical experiments with regular approximation of context-free languages",
Computational Linguistics 26 (2000), on strongly regular grammars.

**Unrolling.** The texts of a rule also depend on its *level*, the number of counted rules around
it. An *instance* is a rule at a level. Each instance that is embedded in others gets one automaton,
after the instances that are embedded in it. It takes one subset construction over a graph that
contains their automata as parts. Within the graph, a rule is added once for each node to which its
texts lead, so right recursion becomes a loop. References that would exceed `max_depth` are omitted,
and the length of the shortest text that this excludes is recorded. With `max_bytes`, references
that occur only in longer texts are omitted as well. Both depend on the smallest number of bytes
around the instance in any text, a shortest-path problem (Dijkstra 1959).

Cost: at most two graphs for each instance. The size of the automata grows exponentially with the
depth: each level multiplies it by the number of positions in productions at which a rule is
embedded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import Automaton
from gcd._automata.kernels import graph
from gcd._automata.limits import max_states, spend
from gcd._errors import ConstraintError, StateLimitError
from gcd._languages.cycles import components
from gcd._languages.grammar.chains import flatten
from gcd._languages.grammar.expressions import (
    PER_KEPT_ENTRY,
    PER_STEP,
    Grammar,
    Production,
    Productions,
    Symbol,
    blame,
    references,
)
from gcd._languages.text.look_around import MARKS
from gcd._languages.text.syntax import Choice, Node, Reference, Repeat, Sequence
from gcd._languages.text.thompson import automaton_of_rule

_MOST_TRIED = 12  # with more candidates, choose the rule with most references, without trying each

Instance = tuple[str, int]
"""Rule and its level."""


class Rules:
    """Rules of a grammar that are reachable from the start rule."""

    def __init__(self, grammar: Grammar) -> None:
        self.start = grammar.start
        self.productions: Productions = {}  # of rules that aren't regular, and of their parts
        self.owner: dict[str, str] = {}  # the rule that each symbol is a part of
        self.whole: dict[str, str] = {}  # the symbol whose recursion a symbol rewrites as a loop
        self.counted: set[str] = set()  # symbols whose nested uses the depth limits
        self.fewest_bytes: dict[Symbol, float] = {}  # of the shortest text; infinite without one
        self._expressions = grammar.rules
        self._regular: set[str] = set()
        self._languages: dict[str, Automaton] = {}
        below = self._collect_reachable()
        position = {name: number for number, name in enumerate(below)}
        users: dict[str, set[str]] = {name: set() for name in below}
        for name, names in below.items():
            for used in names:
                users[used].add(name)
        for group in components(below):
            if len(group) == 1 and group[0] not in below[group[0]] and self._knows(below[group[0]]):
                self._regular.update(group)
                self.language(group[0])
                continue
            made: Productions = {}
            for name in sorted(group, key=lambda name: position[name]):
                with blame(lambda name=name: f"the rule {name!r}"):  # type: ignore[misc]
                    self._write(name, self._expressions[name], made, name)
            with blame(lambda made=made: f"the rule {next(iter(made))!r}"):  # type: ignore[misc]
                self._measure(made)
                inside = set(group)
                entries = [n for n in group if n == self.start or users[n] - inside]
                made = flatten(made, entries, self.owner, self._new_part)
                self._measure(made)
                needed = _find_counted(made, self.whole)
            self.productions |= made
            self.counted |= needed
            if not needed and all(self._knows(set(below[name]) - set(group)) for name in group):
                self._regular.update(group)

    @property
    def is_regular(self) -> bool:
        """True if the start rule is regular."""
        return self.start in self._regular

    def language(self, name: str) -> Automaton:
        """Return the texts of a regular rule."""
        if name not in self._languages:
            with blame(lambda: f"the rule {name!r}"):
                if name in self.productions:
                    language = Unrolling(self, name, max_depth=0).automaton()
                else:
                    language = automaton_of_rule(self._expressions[name], self.language)
            spend(PER_KEPT_ENTRY * language.delta.size, f"the rule {name!r}")
            self._languages[name] = language
            self.fewest_bytes[name] = _fewest(language)
        return self._languages[name]

    def level_inside(self, name: str, level: int, production: Production, position: int) -> int:
        """Return the level of the reference at `position` of a production of the rule `name`."""
        symbol = production[position]
        assert isinstance(symbol, str)
        if symbol in self.whole:
            return level
        if position == len(production) - 1:
            level -= self.whole.get(name, name) in self.counted
        return level + (symbol in self.counted)

    def _collect_reachable(self) -> dict[str, list[str]]:
        """Return the references of each rule that is reachable from the start rule."""
        below: dict[str, list[str]] = {}
        pending = [self.start]
        while pending:
            name = pending.pop()
            if name in below:
                continue
            if name not in self._expressions:
                raise ConstraintError(
                    f"the grammar has no rule {name!r}; use one of "
                    f"{', '.join(list(self._expressions)[:20])}"
                )
            below[name] = list(dict.fromkeys(references(self._expressions[name])))
            pending += below[name]
        return {name: below[name] for name in self._expressions if name in below}

    def _knows(self, names: Iterable[str]) -> bool:
        return all(name in self._regular for name in names)

    # -- productions ----------------------------------------------------------------------------

    def _write(self, name: str, expression: Node, made: Productions, owner: str) -> None:
        """Convert an expression to productions of the symbol `name`, and store them in `made`."""
        self.owner[name] = owner
        made[name] = []
        options = expression.options if isinstance(expression, Choice) else (expression,)
        made[name] = [self._production(option, made, owner) for option in options]

    def _production(self, expression: Node, made: Productions, owner: str) -> Production:
        parts = expression.parts if isinstance(expression, Sequence) else (expression,)
        return tuple(symbol for part in parts for symbol in self._symbols(part, made, owner))

    def _symbols(self, part: Node, made: Productions, owner: str) -> Production:
        """Return the sequence of symbols that an expression consists of."""
        if self._knows(references(part)):
            automaton = automaton_of_rule(part, self.language)
            return () if automaton == Automaton.epsilon() else (automaton,)
        if isinstance(part, Reference):
            return (part.name,)
        if isinstance(part, Sequence):
            return self._production(part, made, owner)
        if isinstance(part, Choice):
            return (self._new(part, made, owner),)
        assert isinstance(part, Repeat)
        body = self._production(part.body, made, owner)
        spend(PER_STEP * len(body) * max(part.minimum, part.maximum or 0))
        if part.maximum is None:
            return (*(part.minimum * body), self._rule(made, owner, [(), (None, *body)]))
        more: Production = ()
        for _ in range(part.maximum - part.minimum):
            more = (self._rule(made, owner, [(), (*body, *more)]),)
        return (*(part.minimum * body), *more)

    def _new(self, part: Node, made: Productions, owner: str) -> str:
        name = f"{owner}/{len(self.owner)}"
        self._write(name, part, made, owner)
        return name

    def _rule(self, made: Productions, owner: str, ways: list[tuple[Symbol | None, ...]]) -> str:
        """Add a symbol with productions, in which None stands for the symbol; return its name."""
        name = f"{owner}/{len(self.owner)}"
        self.owner[name] = owner
        made[name] = [tuple(name if s is None else s for s in way) for way in ways]
        return name

    def _new_part(self, name: str) -> str:
        """Return a new symbol, for rewriting the recursion of the symbol `name` as loops."""
        part = f"{self.owner[name]}/{len(self.owner)}"
        self.owner[part], self.whole[part] = self.owner[name], name
        return part

    def _measure(self, made: Productions) -> None:
        """Find the length of each symbol's shortest text, and drop productions without texts."""
        fewest = self.fewest_bytes
        for name, ways in made.items():
            fewest[name] = math.inf
            for symbol in (s for way in ways for s in way if s not in fewest):
                fewest[symbol] = math.inf if isinstance(symbol, str) else _fewest(symbol)
        is_stable = False
        while not is_stable:
            is_stable = True
            for name, ways in made.items():
                totals = (sum((fewest[symbol] for symbol in way), 0.0) for way in ways)
                least = min(totals, default=math.inf)
                if least < fewest[name]:
                    fewest[name], is_stable = least, False
        for name, ways in made.items():
            made[name] = [way for way in ways if math.inf not in (fewest[s] for s in way)]


def _fewest(language: Automaton) -> float:
    """Return the length in bytes of the shortest text without marks; infinite if there is none."""
    if language.is_empty:
        return math.inf
    lengths = np.ones(language.delta.shape[1])
    lengths[language.class_of_byte[list(MARKS)]] = 0
    if lengths.all() or (language.delta[:, lengths == 0] < 0).all():
        return float(graph.distances_to_accept(language.delta, language.accepting)[0])
    # Distances in texts of at most n bytes and marks, for n = 0, 1, ...
    fewest = np.where(language.accepting, 0, math.inf)
    is_stable = False
    while not is_stable:
        after = np.where(language.delta >= 0, fewest[language.delta], math.inf) + lengths
        fewer = np.minimum(fewest, after.min(axis=1))
        is_stable, fewest = bool((fewer == fewest).all()), fewer
    return float(fewest[0])


# -- counted rules ---------------------------------------------------------------------------


class _Edge(NamedTuple):
    source: str
    target: str
    is_tail: bool


def _find_counted(productions: Productions, whole: Mapping[str, str]) -> set[str]:
    """Return the symbols whose nested uses have to be counted; none if all rules are regular."""
    edges = [edge for name in productions for edge in _edges(name, productions, whole)]
    names = [name for name in productions if name not in whole]
    counted: set[str] = set()
    while blamed := _not_regular(names, edges, counted):
        candidates = [name for name in names if name in blamed]
        if len(candidates) > _MOST_TRIED:
            uses = [edge.target for edge in edges]
            scores = [-uses.count(name) for name in candidates]
        else:
            scores = [len(_not_regular(names, edges, counted | {name})) for name in candidates]
        counted.add(candidates[scores.index(min(scores))])
    return counted


def _edges(name: str, productions: Productions, whole: Mapping[str, str]) -> Iterator[_Edge]:
    for production in productions[name]:
        for i, symbol in enumerate(production):
            if isinstance(symbol, str) and symbol in productions and symbol not in whole:
                yield _Edge(whole.get(name, name), symbol, i == len(production) - 1)


def _not_regular(names: list[str], edges: list[_Edge], counted: Collection[str]) -> set[str]:
    """Return the symbols with an embedding reference on a cycle that no counted rule limits."""
    below: dict[str, set[str]] = {name: set() for name in names}
    edges = [edge for edge in edges if edge.source not in counted or edge.is_tail]
    for edge in edges:
        below[edge.source].add(edge.target)
    number = {name: i for i, group in enumerate(components(below)) for name in group}
    return {e.source for e in edges if not e.is_tail and number[e.source] == number[e.target]}


# -- unrolling -------------------------------------------------------------------------------


class Unrolling:
    """Texts of a grammar in which at most `max_depth` counted rules are nested."""

    def __init__(
        self, rules: Rules, start: str, *, max_depth: int, max_bytes: int | None = None
    ) -> None:
        self.deeper = math.inf  # lower bound on the bytes of texts that the depth limit excludes
        self._rules = rules
        self._start = start, int(start in rules.counted)
        self._max_depth = max_depth
        self._most = math.inf if max_bytes is None else max_bytes
        self._made: dict[Instance, Automaton] = {}
        self._around: dict[Instance, float] = {}  # fewest bytes around an instance in any text
        self._measure()

    def automaton(self) -> Automaton:
        """Return the language of the start rule."""
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

    def admits(self, around: Instance, name: str, level: int, others: float) -> bool:
        """Return whether a production of `around` may use a rule, beside `others` bytes."""
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
        """Yield the rules that a rule uses, with their levels and the fewest bytes beside them."""
        name, level = instance
        for production in self._rules.productions[name]:
            total = sum((self._rules.fewest_bytes[symbol] for symbol in production), 0.0)
            spend(PER_STEP * len(production), f"the rule {self._rules.owner[name]!r}")
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
                    part = self._unrolling._made.get((symbol, inner))
                    if part is not None:
                        self._insert(source, following, part)
            source = following

    def _insert(self, source: int, target: int, part: Automaton) -> None:
        self._states += part.num_states
        self._graph.insert(source, target, part)
        if self._states > max_states():
            raise StateLimitError(max_states())
