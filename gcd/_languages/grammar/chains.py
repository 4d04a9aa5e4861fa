r"""Conversion of recursion at the ends of rules, such as chains of operators, to loops.

The rule `e -> e "+" e | n` refers to itself at both ends, and its texts are the chains n ("+" n)*.
The same holds if the sum is a separate rule, if several operators alternate, and if operators come
before or after their operand. A set of references between rules is *flat* if following them doesn't
need a stack. All other symbols of the productions (finished automata, and references that are not
flat) are *letters*. The symbols that reach each other by flat references have a regular language
over letters.

References at the left end of a production are always flat: the path through the automaton
determines which symbol was just completed. Other references are made flat as long as the resulting
language is proven exact. The proof has three steps for the symbols X of a strongly connected
component:

1. *Guess.* Each X has an entry node and an exit node. A production X -> u Y v Z w becomes three
   paths. From X's entry, the first leads through u to Y's entry. From Y's exit, the second leads
   through v to Z's entry. From Z's exit, the third leads through w to X's exit. The paths from the
   entry of X to its exit spell a superset R_X of the texts of X (Mohri and Nederhof, "Regular
   approximation of context-free grammars through transformation", 2001).
2. *Improve.* First repeat the guess for each X alone, with R in place of all other symbols. Then
   replace R_X by H(R)_X, the texts that the productions of X form from texts in R. The least
   fixed point of both replacements is the texts of the grammar. So R stays a superset of these.
3. *Prove.* If H(R) = R, then R is exact: a shortest text of R without a derivation would have a
   shorter text without a derivation as a part, which is impossible. For this argument, H must form
   each text from at least two non-empty parts, or with a letter. So a production that consists of a
   single symbol (X -> Y, also beside symbols that derive the empty text) is first replaced by the
   productions of Y.

The proof treats letters as distinct symbols. Its result also holds after the letters are replaced
by their languages, because substitution preserves unions, products and least fixed points. If there
is no proof after a few rounds, the reference remains a letter.

Cost: O(references) proofs. Each takes O(rounds x symbols) subset constructions over graphs as large
as the component's productions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import Automaton
from gcd._automata.limits import max_states, state_limit
from gcd._errors import StateLimitError
from gcd._languages.cycles import components
from gcd._languages.grammar.expressions import Production, Productions, Symbol

_MOST_LETTERS = 256  # a letter is a byte in the automata of a proof
_MOST_STATES = 2000  # states of each of these automata
_MOST_ROUNDS = 4
_MOST_TRIED = 60  # sets of references that may be tried


class Occurrence(NamedTuple):
    """Position of a symbol: index `position` in production number `way` of the rule `name`."""

    name: str
    way: int
    position: int


Component = tuple[str, ...]
NewSymbol = Callable[[str], str]


def flatten(
    productions: Productions, entries: Iterable[str], owner: Mapping[str, str], new: NewSymbol
) -> Productions:
    """Return productions with the same texts, but without left recursion.

    Other symbols in `productions` must not lead back to them, and other rules refer to `entries`.
    `owner` is the rule that each symbol is a part of. `new` makes a part of a symbol, which will
    occur only at the ends of productions of this symbol and of its other parts.
    """
    chains = _Chains(productions, owner)
    rewritten = {name: chain for chain in chains.components() for name in chain}
    made: Productions = {}
    pending = list(entries)
    while pending:
        name = pending.pop()
        if name in made:
            continue
        if name not in rewritten:
            family = {name: productions[name]}
        elif (languages := chains.proven(rewritten[name])) is not None:
            family = _of_automaton(name, languages, new)
        else:
            family = _of_left_recursion(name, rewritten[name], productions, new)
        made |= family
        symbols = {symbol for ways in family.values() for way in ways for symbol in way}
        pending += [name for name in productions if name in symbols and name not in made]
    return {name: made[name] for name in dict.fromkeys([*productions, *made]) if name in made}


class _Language(NamedTuple):
    """Texts of a symbol, as an automaton in which byte i stands for the symbol `letters[i]`."""

    automaton: Automaton
    letters: list[Symbol]


class _Chains:
    """References that don't need a stack (*flat* in the module docstring), with the proofs."""

    def __init__(self, productions: Productions, owner: Mapping[str, str]) -> None:
        self._productions = productions
        self._proofs: dict[
            tuple[Component, frozenset[Occurrence]], dict[str, Automaton] | None
        ] = {}
        self._letters: dict[tuple[Component, frozenset[Occurrence]], list[Symbol]] = {}
        self._owner = owner
        self._empty = _empty_symbols(productions)
        self._flat: set[Occurrence] = set()
        self._tried: set[frozenset[Occurrence]] = set()
        outer: list[Occurrence] = []
        inner: list[Occurrence] = []
        for name, ways in productions.items():
            for number, way in enumerate(ways):
                for position, symbol in enumerate(way):
                    if isinstance(symbol, Automaton) or symbol not in productions:
                        continue
                    if position == 0:
                        self._flat.add(Occurrence(name, number, position))
                    elif not self._is_bracketed(way, position):
                        occurrences = inner if self._is_inside(way, position) else outer
                        occurrences.append(Occurrence(name, number, position))
        self._add(frozenset(outer + inner))
        self._add_all(outer)
        self._add_all(inner)

    def components(self) -> list[Component]:
        """Return the groups of symbols that flat references connect, except right recursion."""
        return [chain for chain in self._components(self._flat) if self._is_left_recursive(chain)]

    def proven(self, chain: Component) -> dict[str, _Language] | None:
        """Return the language of each symbol of a group; None for references at left ends alone."""
        inside = self._inside(chain, self._flat)
        if self._is_left_linear(inside):
            return None
        found, letters = self._prove(chain, inside), self._letters[chain, inside]
        assert found is not None
        return {name: _Language(language, letters) for name, language in found.items()}

    def _is_bracketed(self, way: Production, position: int) -> bool:
        """Return whether a reference has symbols on both sides, but none that lead back to it."""
        return 0 < position < len(way) - 1 and not any(
            isinstance(symbol, str) and symbol in self._productions
            for symbol in (*way[:position], *way[position + 1 :])
        )

    def _is_inside(self, way: Production, position: int) -> bool:
        """Return whether all texts of a production have bytes before and after a symbol's text."""
        return not (
            self._empty.issuperset(way[:position]) or self._empty.issuperset(way[position + 1 :])
        )

    def _components(self, flat: Collection[Occurrence]) -> list[Component]:
        below: dict[str, set[str]] = {name: set() for name in self._productions}
        for occurrence in flat:
            below[occurrence.name].add(self._at(occurrence))
        return [tuple(sorted(c)) for c in components(below) if len(c) > 1 or c[0] in below[c[0]]]

    def _at(self, occurrence: Occurrence) -> str:
        symbol = self._productions[occurrence.name][occurrence.way][occurrence.position]
        assert isinstance(symbol, str)
        return symbol

    def _inside(self, chain: Component, flat: Collection[Occurrence]) -> frozenset[Occurrence]:
        names = set(chain)
        return frozenset(p for p in flat if p.name in names and self._at(p) in names)

    def _is_left_recursive(
        self, chain: Component, flat: Collection[Occurrence] | None = None
    ) -> bool:
        inside = self._inside(chain, self._flat if flat is None else flat)
        return any(p.position < len(self._productions[p.name][p.way]) - 1 for p in inside)

    @staticmethod
    def _is_left_linear(inside: Iterable[Occurrence]) -> bool:
        return all(occurrence.position == 0 for occurrence in inside)

    def _add_all(self, occurrences: Collection[Occurrence]) -> None:
        """Find references that don't need a stack, as many as can be proven."""
        is_stable = False
        while not is_stable:
            before = len(self._flat)
            for group in self._groups(occurrences):
                self._add(group)
            is_stable = len(self._flat) == before

    def _groups(self, occurrences: Collection[Occurrence]) -> Iterator[frozenset[Occurrence]]:
        """Yield sets to prove: all references, those of a rule, of a production, single ones."""
        yield frozenset(occurrences)
        for owner in dict.fromkeys(self._owner[occurrence.name] for occurrence in occurrences):
            yield frozenset(p for p in occurrences if self._owner[p.name] == owner)
        for name, way in dict.fromkeys(occurrence[:2] for occurrence in occurrences):
            parts = self._parts(self._productions[name][way])
            yield frozenset(p for p in occurrences if p[:2] == (name, way) or p.name in parts)
        for occurrence in occurrences:
            yield frozenset([occurrence])

    def _parts(self, way: Production) -> set[str]:
        """Return the symbols for choices and repetitions inside a production."""
        found: set[str] = set()
        pending = [*way]
        while pending:
            symbol = pending.pop()
            if isinstance(symbol, Automaton) or symbol not in self._productions or symbol in found:
                continue
            if self._owner[symbol] != symbol:
                found.add(symbol)
                pending += [s for way in self._productions[symbol] for s in way]
        return found

    def _add(self, group: frozenset[Occurrence]) -> None:
        """Mark references as flat (not needing a stack) if the resulting language is exact."""
        flat = group | self._flat
        if len(flat) == len(self._flat) or flat in self._tried or len(self._tried) == _MOST_TRIED:
            return
        self._tried.add(flat)
        if self._is_proven(flat):
            self._flat |= group

    def _is_proven(self, flat: Collection[Occurrence]) -> bool:
        for chain in self._components(flat):
            inside = self._inside(chain, flat)
            is_clear = self._is_left_linear(inside) or not self._is_left_recursive(chain, inside)
            if not is_clear and self._prove(chain, inside) is None:
                return False
        return True

    def _prove(
        self, chain: Component, inside: frozenset[Occurrence]
    ) -> dict[str, Automaton] | None:
        key = chain, inside
        if key not in self._proofs:
            proof = _Proof(chain, inside, self._productions)
            self._letters[key] = list(proof.letters)
            try:
                with state_limit(min(max_states(), _MOST_STATES)):
                    self._proofs[key] = proof.languages()
            except StateLimitError:
                self._proofs[key] = None
        return self._proofs[key]


class _Proof:
    """Languages of mutually recursive symbols, found and proven as in the module docstring."""

    def __init__(
        self, chain: Component, inside: Collection[Occurrence], productions: Productions
    ) -> None:
        self.letters: dict[Symbol, int] = {}  # the byte for each symbol that isn't expanded
        self._ways: dict[str, list[list[str | Automaton]]] = {}  # a letter is an automaton here
        for name in chain:
            self._ways[name] = []
            for number, way in enumerate(productions[name]):
                written: list[str | Automaton] = []
                for position, symbol in enumerate(way):
                    if Occurrence(name, number, position) in inside:
                        assert isinstance(symbol, str)
                        written.append(symbol)
                    else:
                        code = self.letters.setdefault(symbol, len(self.letters))
                        written.append(Automaton.byte_set([code % _MOST_LETTERS]))
                self._ways[name].append(written)
        self._empty = _empty_symbols(self._ways)
        self._same = self._find_same()

    def languages(self) -> dict[str, Automaton] | None:
        """Return the language of each symbol; None if they cannot be proven exact."""
        if len(self.letters) > _MOST_LETTERS:
            return None
        found = self._guess(self._ways, {})
        for _ in range(_MOST_ROUNDS):
            for name in self._ways:
                found |= self._guess([name], found)
            derived = {name: self._derive(name, found) for name in self._ways}
            if derived == found:
                return found
            found = derived
        return None

    def _guess(
        self, names: Collection[str], known: Mapping[str, Automaton]
    ) -> dict[str, Automaton]:
        """Return supersets of the texts of the symbols `names`, given languages of the others."""
        graph = Assembly()
        entry = {name: graph.node() for name in names}
        leave = {name: graph.node() for name in names}
        for name in names:
            for way in self._ways[name]:
                node = entry[name]
                for symbol in way:
                    if isinstance(symbol, str) and symbol in entry:
                        graph.skip(node, entry[symbol])
                        node = leave[symbol]
                    else:
                        following = graph.node()
                        part = known[symbol] if isinstance(symbol, str) else symbol
                        graph.insert(node, following, part)
                        node = following
                graph.skip(node, leave[name])
        return {name: graph.build(entry[name], leave[name]) for name in names}

    def _derive(self, name: str, found: Mapping[str, Automaton]) -> Automaton:
        """Return the texts that the productions of a symbol form from the texts `found`."""
        graph = Assembly()
        start, end = graph.node(), graph.node()
        if name in self._empty:
            graph.skip(start, end)
        parts = {symbol: found[symbol] - Automaton.epsilon() for symbol in self._ways}
        for other in self._same[name]:
            for way in self._ways[other]:
                # Nodes after 0, 1, and more non-empty parts.
                now = [start, graph.node(), graph.node()]
                for symbol in way:
                    following = [graph.node() for _ in now]
                    for count, (source, empty) in enumerate(zip(now, following, strict=True)):
                        if not isinstance(symbol, str):
                            graph.insert(source, following[2], symbol)
                            continue
                        graph.insert(source, following[min(count + 1, 2)], parts[symbol])
                        if symbol in self._empty:
                            graph.skip(source, empty)
                    now = following
                graph.skip(now[2], end)
        return graph.build(start, end)

    def _find_same(self) -> dict[str, set[str]]:
        """Return the symbols that each symbol derives beside empty texts, and itself."""
        single: dict[str, set[str]] = {name: set() for name in self._ways}
        for name, ways in self._ways.items():
            for way in ways:
                full = [symbol for symbol in way if symbol not in self._empty]
                if not full:
                    single[name].update(symbol for symbol in way if isinstance(symbol, str))
                elif len(full) == 1 and isinstance(full[0], str):
                    single[name].add(full[0])
        reached: dict[str, set[str]] = {}
        for name in single:
            reached[name], pending = {name}, [name]
            while pending:
                more = single[pending.pop()] - reached[name]
                reached[name] |= more
                pending += more
        return reached


def _empty_symbols(productions: Mapping[str, Sequence[Sequence[Symbol]]]) -> set[str]:
    """Return the symbols that derive the empty text, which no automaton in `productions` has."""
    empty: set[str] = set()
    is_stable = False
    while not is_stable:
        more = {
            name
            for name, ways in productions.items()
            if name not in empty and any(empty.issuperset(way) for way in ways)
        }
        empty |= more
        is_stable = not more
    return empty


def _of_automaton(name: str, languages: Mapping[str, _Language], new: NewSymbol) -> Productions:
    """Return productions for a symbol's automaton over letters; states become new symbols."""
    automaton, letters = languages[name]
    targets = automaton.transitions
    edges = [
        [(letters[code], int(row[code])) for code in range(len(letters)) if row[code] >= 0]
        for row in targets
    ]
    is_end = [bool(a) and not e for a, e in zip(automaton.accepting, edges, strict=True)]
    part = {state: new(name) for state in range(len(edges)) if not is_end[state]}
    made: Productions = {name: [()], **{symbol: [] for symbol in part.values()}}
    for state, symbol in part.items():
        made[symbol] = [(s,) if is_end[to] else (s, part[to]) for s, to in edges[state]]
        if automaton.accepting[state]:
            made[symbol].append(())
    if 0 in part:
        made[name] = list(made[part[0]])
    return made


def _of_left_recursion(
    name: str, chain: Component, productions: Productions, new: NewSymbol
) -> Productions:
    """Rewrite left as right recursion: a new symbol derives what may follow each symbol."""
    read = {other: new(name) for other in chain}
    made: Productions = {name: [], **{part: [] for part in read.values()}}
    for other in chain:
        for way in productions[other]:
            if way and isinstance(way[0], str) and way[0] in read:
                made[read[way[0]]].append((*way[1:], read[other]))
            else:
                made[name].append((*way, read[other]))
    made[read[name]].append(())
    return made
