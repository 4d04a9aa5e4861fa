"""Automata for the regular part of a grammar, and productions for the rest.

Rules are processed after the rules to which they refer. A rule is *regular* if it doesn't contain
itself, or only in a way that is equivalent to a loop (`gcd._languages.grammar.recursion`), and if
all rules to which it refers are regular. Regular rules become exact automata. All other rules
become productions over symbols, which are automata or rules. A choice or repetition that contains
such a rule becomes a separate rule, so that nothing is multiplied out: n optional parts become n
rules, not 2^n productions. Recursion at the ends of rules, such as chains of operators, is first
rewritten as loops (`gcd._languages.grammar.chains`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from gcd._automata.automaton import Automaton
from gcd._automata.kernels import graph
from gcd._automata.limits import spend
from gcd._errors import ConstraintError
from gcd._languages.cycles import components
from gcd._languages.grammar.chains import flatten
from gcd._languages.grammar.expressions import PER_KEPT_ENTRY, PER_STEP, Grammar, blame, references
from gcd._languages.grammar.recursion import Production, Productions, Symbol, find_counted
from gcd._languages.grammar.unrolling import Unrolling
from gcd._languages.text.look_around import MARKS
from gcd._languages.text.syntax import Choice, Node, Reference, Repeat, Sequence
from gcd._languages.text.thompson import automaton_of_rule


class Rules:
    """Rules of a grammar that are reachable from the start rule.

    Attributes:
        start: the start rule.
        productions: productions of each rule that is not regular, and of the parts of such rules.
        owner: the rule that each symbol of `productions` is a part of; a rule is a part of itself.
        whole: rewriting a symbol's recursion as loops makes new symbols; `whole` maps them to the
            rewritten symbol.
        counted: the symbols whose nested uses are limited by the maximum depth.
        fewest_bytes: length in bytes of the shortest text of each symbol; infinite if it has no
            text.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.start = grammar.start
        self.productions: Productions = {}
        self.owner: dict[str, str] = {}
        self.whole: dict[str, str] = {}
        self.counted: set[str] = set()
        self.fewest_bytes: dict[Symbol, float] = {}
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
                needed = find_counted(made, self.whole)
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
        """Return the level of a reference: the number of rules from `counted` that are around it.

        A reference at the end of a rule doesn't count as nested in that rule.

        Args:
            name, level: the rule that contains the reference, and its level.
            production, position: the production, and the index of the reference in it.
        """
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
            spend(PER_STEP * (1 + len(below[name])))
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
        spend(PER_STEP)
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
        """Add a symbol with the given productions, and return its name.

        In the productions, None stands for the symbol itself.
        """
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
            spend(PER_STEP * sum(1 + len(way) for ways in made.values() for way in ways))
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
        spend(language.delta.size)
        after = np.where(language.delta >= 0, fewest[language.delta], math.inf) + lengths
        fewer = np.minimum(fewest, after.min(axis=1))
        is_stable, fewest = bool((fewer == fewest).all()), fewer
    return float(fewest[0])
