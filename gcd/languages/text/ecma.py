"""The texts in which a JSON Schema `pattern` finds a match.

JSON Schema takes its patterns from ECMA-262 (with the `u` flag), and a text satisfies one if some
part of it matches: the language is `.* P .*`, but for the anchors in P.
`gcd.languages.text.ecma_syntax` reads the pattern as a tree; here Thompson's construction (1968)
wires the tree's characters together with epsilon edges, and one subset construction gives the
automaton. Counted repetitions are measured before they are laid out, the limit on states stops what
grows, and what grows slowly because its sets of states are large is given up, so a hostile pattern
ends in a refusal by name and not in a hang.

**Anchors** are edges that read nothing and have a condition: `^` that nothing was read before,
`$` that nothing is read after. They may stand anywhere, as in `(^|,)x(,|$)`, so a path through the
pattern is in one of four *phases*:

    0  nothing read yet          --any byte-->  1            --$-->  3
    1  something read            --any byte-->  1            --$-->  2
    2  something read, and `$` passed: it must end here
    3  nothing read, and `$` passed: the text is empty

`^` is open in phases 0 and 3, `$` in all of them. The conditional edges become ordinary ones in
four copies of the automaton. Patterns such as `^P$` need none of that: an alternative that begins
with `^` goes without the leading `.*`, one that ends in `$` without the trailing one.
"""

from __future__ import annotations

import time
from functools import lru_cache

import numpy as np

from gcd.automata.automaton import Automaton
from gcd.automata.byte_classes import joint_classes
from gcd.automata.limits import max_states, state_limit
from gcd.automata.nfa import NFA
from gcd.errors import ConstraintError, StateLimitError
from gcd.languages.text.code_points import SCALARS, one_of
from gcd.languages.text.ecma_syntax import Chars, Choice, End, Node, Repeat, Sequence, Start, parse
from gcd.languages.text.texts import texts

_MAX_CELLS = 30_000_000  # entries of the table (state, byte class) of the automaton to determinise
_FIRST_STATES = 250
# Seconds of this thread's processor time: a step that fails later than that is the last.
_PATIENCE = 0.3


@lru_cache(maxsize=256)
def ecma_pattern(pattern: str) -> Automaton:
    """UTF-8 texts in which an ECMA-262 pattern (`u` flag, not anchored) finds a match.

    Raises:
        ConstraintError: if the pattern is not valid, or uses what is not supported; says what and
            where.
        StateLimitError: if its automaton has more states than `gcd.state_limit` allows.
    """
    shown = repr(pattern) if len(pattern) <= 200 else f"{pattern[:200]!r}..."
    tree = parse(pattern)
    if _size(tree) > max_states():
        raise StateLimitError(max_states(), f"the pattern {shown}")
    nfa = _Thompson(tree).nfa()
    cells = nfa.num_states * (int(nfa.class_of_byte.max()) + 1)
    if cells > _MAX_CELLS:
        raise ConstraintError(
            f"the pattern {shown} is laid out in a table of {cells} entries, more than "
            f"{_MAX_CELLS}; lower its counted repetitions, or use smaller classes in them"
        )
    return _determinized(nfa, f"the pattern {shown}")


def _determinized(nfa: NFA, what: str) -> Automaton:
    """The automaton, built with ever higher limits for as long as that is quick.

    States of the subset construction are sets, and it is their sizes that make a few patterns
    costly, `[a-z]{5000}` somewhere in a text for one: after k letters any k of the places may be
    the next. A step has four times the states of the last one, so it takes at most some sixteen
    times as long.
    """
    texts()  # so that no step pays for loading the compiled loops
    limit = _FIRST_STATES
    while limit < max_states():
        began = time.thread_time()
        try:
            with state_limit(limit):
                return Automaton.determinize(nfa)
        except StateLimitError as error:
            if time.thread_time() - began > _PATIENCE:
                raise ConstraintError(
                    f"{what} matches in so many ways at once that {limit} states of its automaton "
                    f"take more than {_PATIENCE} s; lower its counted repetitions, anchor it with "
                    "`^`, or make its alternatives exclude each other"
                ) from error
        limit *= 4
    try:
        return Automaton.determinize(nfa)
    except StateLimitError as error:
        raise StateLimitError(max_states(), what) from error


def _size(node: Node) -> int:
    """How many states the node is laid out in, at most."""
    match node:
        case Chars(inside):
            return one_of(inside).num_states + 1
        case Sequence(parts) | Choice(parts):
            return 1 + sum(map(_size, parts))
        case Repeat(body):
            least, most = _counts(node)
            return 2 + (_size(body) + 1) * (max(least, 1) if most is None else most)
    return 1


def _counts(node: Repeat) -> tuple[int, int | None]:
    """How often to lay out the body; what reads nothing holds twice if it holds once."""
    if _reads_nothing(node.body):
        return min(node.minimum, 1), 1 if node.maximum is None else min(node.maximum, 1)
    return node.minimum, node.maximum


def _reads_nothing(node: Node) -> bool:
    match node:
        case Chars():
            return False
        case Sequence(parts) | Choice(parts):
            return all(map(_reads_nothing, parts))
        case Repeat(body):
            return _reads_nothing(body)
    return True


def _options(node: Node) -> tuple[Node, ...]:
    return node.options if isinstance(node, Choice) else (node,)


def _parts(node: Node) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Sequence) else (node,)


class _Thompson:
    """States of the tree: those of its characters' automata, and single ones between them."""

    def __init__(self, tree: Node) -> None:
        self._count = 0
        self._placed: dict[Automaton, list[int]] = {}  # where copies of an automaton begin
        self._epsilon: list[tuple[int, int]] = []
        self._starts: list[tuple[int, int]] = []  # the edges of `^`
        self._ends: list[tuple[int, int]] = []  # the edges of `$`

        self._initial, self._accepting = [self._state()], []
        before: int | None = None
        after: int | None = None
        for option in _options(tree):
            parts = _parts(option)
            first, last = 0, len(parts)
            while first < last and isinstance(parts[first], Start):
                first += 1
            while first < last and isinstance(parts[last - 1], End):
                last -= 1
            if first == 0 and before is None:
                before = self._anything(self._initial[0])
            entry = self._initial[0] if first or before is None else before
            found = self._lay(Sequence(parts[first:last]), entry)
            if last == len(parts):
                if after is None:
                    after = self._anything(self._state())
                    self._accepting.append(after)
                self._epsilon.append((found, after))
            else:
                self._accepting.append(found)

    def _anything(self, entry: int) -> int:
        return self._lay(Repeat(Chars(SCALARS), 0, None), entry)

    def _lay(self, node: Node, entry: int) -> int:
        """Lay the node out from a state; the state in which it is done.

        Only loops lead back, and only to states of their own: alternatives may share an entry.
        """
        match node:
            case Chars(inside):
                return self._place(one_of(inside), entry)
            case Start():
                self._starts.append((entry, self._state()))
                return self._count - 1
            case End():
                self._ends.append((entry, self._state()))
                return self._count - 1
            case Sequence(parts):
                for part in parts:
                    entry = self._lay(part, entry)
                return entry
            case Choice(options):
                done = self._state()
                self._epsilon += [(self._lay(option, entry), done) for option in options]
                return done
            case Repeat(body):
                return self._repeat(body, *_counts(node), entry)

    def _repeat(self, body: Node, minimum: int, maximum: int | None, entry: int) -> int:
        for _ in range(minimum if maximum is not None else minimum - 1):
            entry = self._lay(body, entry)
        if maximum is None:
            loop = self._state()
            self._epsilon.append((entry, loop))
            once = self._lay(body, loop)
            self._epsilon.append((once, loop))
            return once if minimum else loop
        done = self._state()
        for _ in range(maximum - minimum):
            self._epsilon.append((entry, done))
            entry = self._lay(body, entry)
        self._epsilon.append((entry, done))
        return done

    def _place(self, character: Automaton, entry: int) -> int:
        if character.is_empty:  # `[]`: no way on
            return self._state()
        begin = self._count
        self._count += character.num_states
        self._placed.setdefault(character, []).append(begin)
        self._epsilon.append((entry, begin))
        return begin + int(np.argmax(character.accepting))  # there is one such state

    def _state(self) -> int:
        self._count += 1
        return self._count - 1

    def nfa(self) -> NFA:
        """All of it as arrays, copies of one automaton at once."""
        placed = self._placed or {Automaton.empty(): [0]}
        class_of_byte, columns = joint_classes([part.class_of_byte for part in placed])
        source, byte_class, target = [], [], []
        for (part, begins), column in zip(placed.items(), columns, strict=True):
            table = part.delta[:, column]
            state, label = np.nonzero(table >= 0)
            begin = np.array(begins)[:, None]
            source.append((begin + state).ravel())
            byte_class.append(np.tile(label, len(begins)))
            target.append((begin + table[state, label]).ravel())
        accepting = np.zeros(self._count, bool)
        accepting[self._accepting] = True
        nfa = NFA(
            np.concatenate(source).astype(np.int32),
            np.concatenate(byte_class).astype(np.int32),
            np.concatenate(target).astype(np.int32),
            np.array(self._epsilon, np.int32).reshape(-1, 2),
            np.array(self._initial, np.int32),
            accepting,
            class_of_byte,
        )
        return self._in_phases(nfa) if self._starts or self._ends else nfa

    def _in_phases(self, nfa: NFA) -> NFA:
        """Four copies of the automaton, one for each phase of the module's table."""
        size = nfa.num_states
        starts, ends = (np.array(e, np.int32).reshape(-1, 2) for e in (self._starts, self._ends))
        epsilon = [nfa.epsilon + phase * size for phase in range(4)]
        epsilon += [starts + phase * size for phase in (0, 3)]
        epsilon += [
            ends + np.array([a * size, b * size]) for a, b in ((0, 3), (1, 2), (2, 2), (3, 3))
        ]
        return NFA(
            np.concatenate([nfa.source, nfa.source + size]),
            np.tile(nfa.byte_class, 2),
            np.tile(nfa.target + size, 2),
            np.concatenate(epsilon).astype(np.int32),
            nfa.initial,
            np.tile(nfa.accepting, 4),
            nfa.class_of_byte,
        )
