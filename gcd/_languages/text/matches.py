r"""Texts that Python's `re` matches, where the order of alternatives and laziness count.

`re` takes the first alternative that leads to a match. So it matches only `a` of `ab` with `a|ab`,
and only `"x"` of `"x" "` with `".*?"`. A text t is a *match* of a pattern if `re` takes all of t,
and the text to be matched ends after t. Look-around, word boundaries and anchors see the text
before and after t.

If the next character decides every choice, or no match is the beginning of another one, these are
all texts of the pattern. Otherwise, they are found by a subset construction over *ordered* sets:
the positions in the pattern after a text, in the order in which `re` tries them. Positions after
the first complete match are dropped, because `re` doesn't try them (Cox, "Regular Expression
Matching: the Virtual Machine Approach", 2009).

Look-around and other conditions become letters of the text: where `re` may test a condition, there
is one of two marks, for whether it holds. `gcd._languages.text.look_around` selects the texts with
the right marks, and erases the marks.

Cost: O(ordered sets x positions x sets of characters), and up to twice as many sets for each
condition.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price, spend
from gcd._errors import ConstraintError
from gcd._languages.text import look_around
from gcd._languages.text.code_points import Ranges, one_of, ranges, texts
from gcd._languages.text.dialects import LARK
from gcd._languages.text.regex import parse
from gcd._languages.text.syntax import (
    EMPTY,
    Chars,
    Choice,
    End,
    Look,
    Mark,
    Node,
    Repeat,
    Sequence,
    Start,
    has_anchors,
    rebuild,
    show_pattern,
)

BEGIN, END = look_around.MARKS[-2:]  # marks around a match inside a longer text
_FREE = look_around.MARKS[:-2]
_PER_STEP = 400  # units of work of interpreted code
_LAST = 0  # the position after the whole pattern

# The conditions that hold at a position, as their marks; or all marks at a position.
_Marks = tuple[int, ...]


@cache_with_price(256)
def matches(pattern: str) -> Automaton | None:
    """Return the matches of a pattern; None if they depend on the text before or after them."""
    tree = parse(pattern, LARK)
    if has_anchors(tree):
        return None
    whole = look_around.automaton_of(tree, pattern)
    ends = whole.delta[whole.accepting]
    if (ends < 0).all() or _is_decided(tree, (), is_last=True):
        return whole
    return _Positions(tree).automaton([])


@cache_with_price(256)
def matches_in_texts(pattern: str) -> Automaton:
    """Return all texts with a match of a pattern between the marks `BEGIN` and `END`."""
    inside = matches(pattern)
    if inside is not None:
        return _surround(inside)
    inside, conditions = matches_with_marks(pattern)
    found = _surround(inside)
    for look, mark in conditions:
        others = tuple(other for other in _FREE if other not in dict(conditions).values())
        good = look_around.find_positions(look, mark, pattern, others)
        found = look_around.select(found, good, mark)
    return found


@cache_with_price(256)
def matches_with_marks(pattern: str) -> tuple[Automaton, list[tuple[Look, int]]]:
    """Return the matches of a pattern with marks for its conditions, and each mark's condition."""
    tree = _with_looks(parse(pattern, LARK))
    looks = list(dict.fromkeys(look_around.find_looks(tree)))
    if 2 * len(looks) > len(_FREE):
        raise ConstraintError(
            f"expected at most {len(_FREE) // 2} different look-arounds, word boundaries and "
            f"anchors in the pattern {show_pattern(pattern)}, got {len(looks)}; split it into "
            "several patterns"
        )
    pairs = list(zip(_FREE[::2], _FREE[1::2], strict=False))[: len(looks)]
    holding = {look: mark for look, (mark, _) in zip(looks, pairs, strict=True)}
    inside = _Positions(look_around.replace_looks(tree, holding)).automaton(pairs)
    conditions = [
        (replace(look, negated=look.negated != is_false), mark)
        for look, pair in zip(looks, pairs, strict=True)
        for is_false, mark in enumerate(pair)
        if (inside.delta[:, inside.class_of_byte[mark]] >= 0).any()
    ]
    return inside, conditions


def _surround(inside: Automaton) -> Automaton:
    begin, end = Automaton.byte_set([BEGIN]), Automaton.byte_set([END])
    return Automaton.concatenate([texts(), begin, inside, end, texts()])


def _with_looks(node: Node) -> Node:
    """Return the syntax tree with each anchor replaced by an equivalent look-around condition."""
    match node:
        case Start():
            return Look(((Start(), EMPTY),))
        case End():
            return Look(((EMPTY, End()),))
    return rebuild(node, _with_looks)


# -- choices that the next character decides -----------------------------------------------------


def _is_decided(node: Node, after: Ranges, *, is_last: bool) -> bool:
    """Return whether the next character decides each choice, so that `re` takes the only way."""
    match node:
        case Sequence(parts):
            for part in reversed(parts):
                if not _is_decided(part, after, is_last=is_last):
                    return False
                first, is_empty = _first(part)
                after = ranges([*first, *after]) if is_empty else first
                is_last = is_last and is_empty
        case Choice(options):
            firsts = [_first(option) for option in options]
            following = after if firsts[-1][1] else ()
            return (
                not any(is_empty for _, is_empty in firsts[:-1])
                and _are_disjoint(*(first for first, _ in firsts), following)
                and all(_is_decided(option, after, is_last=is_last) for option in options)
            )
        case Repeat(body, minimum, maximum):
            first, is_empty = _first(body)
            if is_empty or (node.lazy and is_last):
                return False
            if minimum != maximum and not _are_disjoint(first, after):
                return False
            more = ranges([*first, *after]) if maximum != 1 else after
            return _is_decided(body, more, is_last=is_last)
    return True


def _first(node: Node) -> tuple[Ranges, bool]:
    """Return the characters with which a node's texts begin, and whether a text is empty."""
    match node:
        case Chars(inside):
            return inside, False
        case Choice(options):
            firsts = [_first(option) for option in options]
            together = ranges(pair for first, _ in firsts for pair in first)
            return together, any(is_empty for _, is_empty in firsts)
        case Repeat(body, minimum):
            first, is_empty = _first(body)
            return first, is_empty or minimum == 0
        case Sequence(parts):
            found: list[tuple[int, int]] = []
            for part in parts:
                first, is_empty = _first(part)
                found += first
                if not is_empty:
                    return ranges(found), False
            return ranges(found), True
    return (), True


def _are_disjoint(*sets: Ranges) -> bool:
    pairs = sorted(pair for inside in sets for pair in inside)
    return all(a[1] < b[0] for a, b in pairwise(pairs))


# -- ordered sets of positions -------------------------------------------------------------------


class _Positions:
    """Positions in a pattern, in the order in which `re` tries them after a text.

    A position is one of these tuples:

        ("read", inside, after)         read a character from a set, by its number
        ("try", positions)              try other positions in order
        ("loop", positions)             the same, where one of them is the body of a loop that may
                                        read nothing
        ("again", loop, onward, leave)  the end of such a body; `re` leaves the loop if the body
                                        has read nothing
        ("if", mark, after)             go on if a condition holds
        ("last",)                       the end of the pattern
    """

    def __init__(self, tree: Node) -> None:
        self._at: list[tuple] = [("last",)]
        self._sets: dict[Ranges, int] = {}
        self._first = self._lay(tree, _LAST)

    def automaton(self, conditions: list[tuple[int, int]]) -> Automaton:
        """Return the matches.

        `conditions` are pairs of marks, for conditions that hold and for those that don't. Where
        `re` may test conditions, the texts have one mark of each of their pairs, in order.
        """
        graph = Assembly()
        start, end = graph.node(), graph.node()
        read: dict[_Marks, int] = {(self._first,): start}
        tried: dict[_Marks, int] = {}
        pending: list[_Marks] = [(self._first,)]
        letters = self._divide()
        while pending:
            before = pending.pop()
            tested = self._close(before, None)
            for marks in product(*(pair for pair in conditions if pair[0] in tested)):
                now = self._close(before, marks)
                node = tried.get(now)
                if node is None:
                    node = tried[now] = graph.node()
                    if now and now[-1] == _LAST:
                        graph.skip(node, end)
                    for after, inside in self._step(now, letters).items():
                        if after not in read:
                            read[after] = graph.node()
                            pending.append(after)
                        graph.insert(node, read[after], one_of(ranges(inside)))
                graph.insert(read[before], node, Automaton.literal(bytes(marks)))
        return graph.build(start, end)

    # -- the tree ---------------------------------------------------------------------------

    def _add(self, *position: object) -> int:
        spend(_PER_STEP)
        self._at.append(position)
        return len(self._at) - 1

    def _lay(self, node: Node, after: int) -> int:
        """Add the positions of a node, and return the first; `after` is the position after it."""
        match node:
            case Chars(inside):
                return self._add("read", self._sets.setdefault(inside, len(self._sets)), after)
            case Mark(byte):
                return self._add("if", byte, after)
            case Sequence(parts):
                for part in reversed(parts):
                    after = self._lay(part, after)
                return after
            case Choice(options):
                return self._add("try", tuple(self._lay(option, after) for option in options))
        assert isinstance(node, Repeat)
        return self._lay_repeat(node, after)

    def _lay_repeat(self, node: Repeat, after: int) -> int:
        entry = after
        rounds = 1 if node.maximum is None else node.maximum - node.minimum
        is_empty = _first(node.body)[1]
        for _ in range(rounds):
            loop = self._add()
            done = loop if node.maximum is None else entry
            if is_empty:
                done = self._add("again", loop, done, after)
            body = self._lay(node.body, done)
            both = (after, body) if node.lazy else (body, after)
            self._at[loop] = "loop" if is_empty else "try", both
            entry = loop
        for _ in range(node.minimum):
            entry = self._lay(node.body, entry)
        return entry

    # -- steps ------------------------------------------------------------------------------

    def _close(self, before: _Marks, marks: _Marks | None) -> _Marks:
        """Return the positions that read, in order; for `marks` None, the marks to test."""
        found: dict[int, None] = {}
        seen: set[tuple[int, _Marks]] = set()
        # A position, and the loops that were entered on the way to it.
        pending: list[tuple[int, _Marks]] = [(position, ()) for position in reversed(before)]
        while pending:
            position, entered = pending.pop()
            spend(_PER_STEP)
            if (position, entered) in seen:
                continue
            seen.add((position, entered))
            match self._at[position]:
                case ("try" | "loop" as kind, positions):
                    inside = (*entered, position) if kind == "loop" else entered
                    pending += [(other, inside) for other in reversed(positions)]
                case ("if", mark, after):
                    if marks is None:
                        found[mark] = None
                    if marks is None or mark in marks:
                        pending.append((after, entered))
                case ("again", loop, onward, leave):
                    pending.append((leave if loop in entered else onward, entered))
                case _ if marks is not None:
                    found[position] = None
                    if position == _LAST:
                        break
        return tuple(found)

    def _step(self, now: _Marks, letters: list[tuple[int, Ranges]]) -> dict[_Marks, list]:
        """Return the positions to which a next character can lead, with the ranges that do."""
        reads = [self._at[position][1:] for position in now if position != _LAST]
        found: dict[_Marks, list[tuple[int, int]]] = {}
        for sets, inside in letters:
            spend(_PER_STEP * (1 + len(reads)))
            after = tuple(dict.fromkeys(after for number, after in reads if sets >> number & 1))
            if after:
                found.setdefault(after, []).extend(inside)
        return found

    def _divide(self) -> list[tuple[int, Ranges]]:
        """Divide the characters by the sets that contain them, as bits of an integer."""
        changes: dict[int, int] = {}
        for inside, number in self._sets.items():
            for first, last in inside:
                for point in (first, last + 1):
                    changes[point] = changes.get(point, 0) ^ 1 << number
        parts: dict[int, list[tuple[int, int]]] = {}
        sets, begin = 0, 0
        for point in sorted(changes):
            if sets and begin < point:
                parts.setdefault(sets, []).append((begin, point - 1))
            sets, begin = sets ^ changes[point], point
        return [(sets, tuple(inside)) for sets, inside in parts.items()]
