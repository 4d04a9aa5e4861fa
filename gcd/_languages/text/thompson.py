"""Construction of the automaton of an expression's texts from its syntax tree.

Thompson's construction (1968) converts the tree into a graph. Nodes that read text become edges,
which are labeled with an automaton over UTF-8 bytes instead of one byte. All others become epsilon
edges (*skips*), which read nothing. One subset construction over the whole graph (`Automaton.join`)
gives the result. Automata as labels keep the graph small. One edge is enough for a class of
characters, for a word or a list of words (as a prefix tree), and for a counted repetition, which is
made deterministic separately.

**Anchors** are epsilon edges with a condition: `Start` requires that there is no text before, and
`End` that there is none after. They may occur anywhere, as in `(^|,)x(,|$)`, so a path through the
graph is in one of four *phases*:

    0  nothing read yet          --any byte-->  1            --End-->  3
    1  something read            --any byte-->  1            --End-->  2
    2  something read, and `End` passed: the text must end here
    3  nothing read, and `End` passed: the text is empty

`Start` can be passed in phases 0 and 3, and `End` in all phases. In four copies of the graph, one
for each phase, the edges with conditions become ordinary edges. Patterns such as `^P$` don't need
copies: a match of the whole text begins and ends there anyway, and a search omits the text before
and after the match.

**Look-around** is represented by a `Mark`, an edge with a byte that no text contains
(`gcd._languages.text.look_around`). Marks are not part of the text, so they don't change the phase.

All expensive steps count toward the work limit (`gcd._automata.limits`). The size of the graph is
counted before it is built, and errors name the part of the pattern that is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import Automaton
from gcd._automata.limits import count_work, max_states
from gcd._errors import StateLimitError, WorkLimitError
from gcd._languages.text.code_points import one_of, texts
from gcd._languages.text.syntax import (
    Chars,
    Choice,
    End,
    Mark,
    Node,
    Reference,
    Repeat,
    Sequence,
    Start,
    has_anchors,
    literal_text,
    show_pattern,
)

_EPSILON = Automaton.epsilon()


def automaton_of(tree: Node, pattern: str, *, search: bool = False) -> Automaton:
    """Return the texts that match a pattern as a whole or, in a `search`, contain a match."""
    with count_work(), _blame(f"the pattern {show_pattern(pattern)}"):
        layout = _Layout(pattern)
        layout.lay_options(tree, search=search)
        return layout.automaton()


def automaton_of_rule(tree: Node, language: Callable[[str], Automaton]) -> Automaton:
    """Return the texts of a rule's right-hand side, given the texts of rules to which it refers."""
    if isinstance(tree, Automaton):
        return tree
    if isinstance(tree, Reference):
        return language(tree.name)
    layout = _Layout("", language)
    layout.lay_rule(tree)
    return layout.automaton()


@contextmanager
def _blame(what: str) -> Iterator[None]:
    """Add the name of a part of the pattern to limit errors that don't name a part yet."""
    try:
        yield
    except (StateLimitError, WorkLimitError) as error:
        if error.__cause__ is not None:
            raise
        raise type(error)(error.limit, what) from error


class _Layout(Assembly):
    """Graph that is built from a syntax tree, with edges for anchors and look-around (marks)."""

    def __init__(self, pattern: str, language: Callable[[str], Automaton] | None = None) -> None:
        super().__init__()
        self._pattern = pattern
        self._language = language
        self._num_nodes = 2  # texts begin at node 0 and end at node 1
        self._num_states = 0
        self._absorbing = -1  # the edge that reads any text after a match
        self._starts: list[tuple[int, int]] = []
        self._ends: list[tuple[int, int]] = []
        self._marks: list[tuple[int, int, int]] = []

    def lay_options(self, tree: Node, *, search: bool) -> None:
        """Add the tree between nodes 0 and 1, with any text in place of anchors in a search."""
        at_ends: dict[tuple[bool, bool], list[Node]] = {}  # options by anchors at their ends
        for option in tree.options if isinstance(tree, Choice) else (tree,):
            parts = option.parts if isinstance(option, Sequence) else (option,)
            first, last = 0, len(parts)
            while first < last and isinstance(parts[first], Start):
                first += 1
            while first < last and isinstance(parts[last - 1], End):
                last -= 1
            anchors = first > 0 or not search, last < len(parts) or not search
            at_ends.setdefault(anchors, []).append(Sequence(parts[first:last]))
        before = 0
        if not all(begins for begins, _ in at_ends):
            before = self._insert(texts(), 0)
        after = 1
        if not all(ends for _, ends in at_ends):
            after, self._absorbing = self.node(), len(self._parts)
            self.skip(self._insert(texts(), after), 1)
        for (begins, ends), options in at_ends.items():
            done = self._choice(tuple(options), 0 if begins else before)
            self.skip(done, 1 if ends else after)

    def lay_rule(self, tree: Node) -> None:
        """Add the whole syntax tree between the graph's nodes 0 and 1."""
        self.skip(self._lay(tree, 0), 1)

    def _lay(self, node: Node, entry: int) -> int:
        """Add a node of the tree, starting at the graph's node `entry`; return where it ends."""
        match node:
            case Start():
                self._starts.append((entry, self.node()))
                return self._num_nodes - 1
            case End():
                self._ends.append((entry, self.node()))
                return self._num_nodes - 1
            case Mark(byte):
                self._marks.append((entry, self.node(), byte))
                return self._num_nodes - 1
            case Automaton():
                return self._insert(node, entry)
            case Reference(name):
                assert self._language is not None
                return self._insert(self._language(name), entry)
            case Sequence(parts):
                return self._sequence(parts, entry)
            case Choice(options):
                return self._choice(options, entry)
            case Repeat(_, minimum, maximum) if (
                maximum == 1 or (maximum is None and minimum < 2) or has_anchors(node)
            ):
                return self._repeat(node, entry)
        return self._insert(self._alone(node), entry)

    def _alone(self, node: Node) -> Automaton:
        """Return the automaton of a node of the tree by itself."""
        match node:
            case Chars(inside):
                return one_of(inside)
            case Repeat(body, minimum, maximum) if not has_anchors(node):
                with _blame(self._quote(node)):
                    return self._alone(body).repeat(minimum, maximum)
        inner = _Layout(self._pattern, self._language)
        inner.lay_rule(node)
        return inner.automaton()

    def _sequence(self, parts: tuple[Node, ...], entry: int) -> int:
        word: list[str] = []  # consecutive characters form one literal
        for part in parts:
            text = literal_text(part)
            if text is not None:
                word.append(text)
                continue
            entry = self._lay(part, self._word(word, entry))
            word = []
        return self._word(word, entry)

    def _word(self, word: list[str], entry: int) -> int:
        if not word:
            return entry
        return self._insert(Automaton.literal("".join(word)), entry)

    def _choice(self, options: tuple[Node, ...], entry: int) -> int:
        if len(options) == 1:
            return self._lay(options[0], entry)
        done = self.node()
        words = []
        for option in options:
            text = literal_text(option)
            if text is None:
                self.skip(self._lay(option, entry), done)
            else:
                words.append(text)
        if words:
            self.skip(self._insert(Automaton.from_strings(words), entry), done)
        return done

    def _repeat(self, node: Repeat, entry: int) -> int:
        minimum, maximum = node.minimum, node.maximum
        for number in range(minimum if maximum is not None else minimum - 1):
            entry = self._lay_once_of(node, number, entry)
        if maximum is None:
            loop = self.node()
            self.skip(entry, loop)
            once = self._lay(node.body, loop)
            self.skip(once, loop)
            return once if minimum else loop
        done = self.node()
        for number in range(minimum, maximum):
            self.skip(entry, done)
            entry = self._lay_once_of(node, number, entry)
        self.skip(entry, done)
        return done

    def _lay_once_of(self, node: Repeat, number: int, entry: int) -> int:
        """Add one copy of a repeated body; after the first copy, check that all copies will fit."""
        before = self._num_states
        done = self._lay(node.body, entry)
        if number == 0:
            rounds = node.minimum if node.maximum is None else node.maximum
            if rounds * (self._num_states - before) > max_states():
                with _blame(self._quote(node)):
                    raise StateLimitError(max_states())
        return done

    def _quote(self, node: Repeat) -> str:
        """Return the part of the pattern that a node was parsed from, with its position."""
        first, last = node.span
        part = show_pattern(self._pattern[first:last])
        return f"{part} at position {first} of the pattern {show_pattern(self._pattern)}"

    def node(self) -> int:
        self._count(0)
        return super().node()

    def _insert(self, part: Automaton, entry: int) -> int:
        """Add an edge labeled with an automaton from node `entry`; return the target node."""
        if part.num_states == 1 and part == _EPSILON:
            return entry
        done = self.node()
        self._count(part.num_states)
        self.insert(entry, done, part)
        return done

    def skip(self, source: int, target: int) -> None:
        self._count(0)
        super().skip(source, target)

    def _count(self, states: int) -> None:
        self._num_states += states
        if self._num_states > max_states():
            raise StateLimitError(max_states())

    def automaton(self) -> Automaton:
        """Return the language of the strings on paths from node 0 to node 1."""
        if self._starts or self._ends:
            self._split_into_phases()
        for source, target, byte in self._marks:
            self.insert(source, target, Automaton.byte_set([byte]))
        if len(self._parts) == 1 and self._is_chain():
            return self._parts[0]
        return self.build(0, 1, self._absorbing)

    def _is_chain(self) -> bool:
        """Return whether the graph is one path from node 0 to 1 with one edge that isn't a skip."""
        ((entry, done),) = self._joints
        following = dict(self._skips)
        if entry != 0 or len(following) != len(self._skips):
            return False
        passed = 0
        while done in following:
            done = following.pop(done)
            passed += 1
        return done == 1 and not following and passed == len(self._skips)

    def _split_into_phases(self) -> None:
        """Replace the graph by four copies, one for each phase in the module docstring."""
        size = self._num_nodes
        joints = np.array(self._joints, np.int64).reshape(-1, 2)
        nullable = [i for i, part in enumerate(self._parts) if part.accepting[0]]
        # An edge that accepts the empty text is also a skip, which doesn't change the phase.
        skips = np.array(self._skips, np.int64).reshape(-1, 2)
        skips = np.concatenate([skips, joints[nullable]])
        starts, ends = (np.array(e, np.int64).reshape(-1, 2) for e in (self._starts, self._ends))
        copies = [skips + phase * size for phase in range(4)]
        copies += [starts + phase * size for phase in (0, 3)]
        copies += [ends + np.array([a, b]) * size for a, b in ((0, 3), (1, 2), (2, 2), (3, 3))]
        copies.append(np.array([[1 + phase * size, 1] for phase in (1, 2, 3)]))
        both = [joints + np.array([phase, 1]) * size for phase in (0, 1)]
        if self._absorbing >= 0:  # its copy for phase 1
            self._absorbing += len(self._parts)
        self._skips = [(a, b) for a, b in np.concatenate(copies).tolist()]
        self._joints = [(a, b) for a, b in np.concatenate(both).tolist()]
        self._parts = 2 * self._parts
        self._marks = [
            (a + phase * size, b + phase * size, byte)
            for a, b, byte in self._marks
            for phase in range(4)
        ]
        self._num_nodes = 4 * size
