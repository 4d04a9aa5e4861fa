"""Look-around, word boundaries and line anchors, compiled exactly into automata.

A `Look` is a condition on a position of the text. Each distinct condition gets a *mark*: a byte
that no UTF-8 text contains. The pattern is compiled in four steps:

1. Compile the pattern with the mark in place of the condition. This gives a language P of texts
   with marks.
2. Let G be the language of texts with one mark, at a position where the condition holds. It is the
   language of `.* behind mark ahead .*`, which is compiled recursively if it contains look-around.
   If the condition is negated, G is the complement of this language among the texts with one mark.
3. Let C be the language of texts in which the condition holds at every mark. If the pattern
   requires a condition at most once on a path, C is the union of G and the texts without marks.
   Otherwise, C is the complement of the texts that have at least one mark at a wrong position.
4. The result is the intersection of P with the C of every condition, with the marks erased.

This is correct for look-around anywhere: inside repetitions, alternatives and other look-around. At
one position, there may be any number of marks in any order, because each C ignores the marks of
other conditions.

Cost: for each distinct condition, a product with a deterministic automaton, and a subset
construction to erase its mark. For a condition inside a repetition, C tracks a set of states of G.
"""

from __future__ import annotations

import numpy as np

from gcd._automata.automaton import Automaton
from gcd._automata.kernels import joining
from gcd._automata.limits import count_work, kernel_limits, pay
from gcd._errors import ConstraintError
from gcd._languages.text import thompson
from gcd._languages.text.code_points import SCALARS, texts
from gcd._languages.text.syntax import (
    Chars,
    Choice,
    Look,
    Mark,
    Node,
    Repeat,
    Sequence,
    children,
    rebuild,
    show_pattern,
)

# Bytes that no UTF-8 text contains.
MARKS = (*range(0xF5, 0x100), 0xC0, 0xC1)
_ANY = Repeat(Chars(SCALARS), 0, None)


def automaton_of(tree: Node, pattern: str, *, search: bool = False) -> Automaton:
    """Return the texts that match a pattern as a whole or, in a `search`, contain a match."""
    with count_work():
        return _automaton(tree, pattern, MARKS, search=search)


def _automaton(tree: Node, pattern: str, free: tuple[int, ...], *, search: bool) -> Automaton:
    """Return the texts in which all conditions hold, which may use the marks in `free`."""
    looks = dict.fromkeys(find_looks(tree))
    if len(looks) > len(free):
        raise ConstraintError(
            f"expected at most {len(MARKS)} different look-arounds, word boundaries and line "
            f"anchors, nested ones included, in the pattern {show_pattern(pattern)}, got more; "
            "split it into several patterns"
        )
    marks = dict(zip(looks, free, strict=False))
    found = thompson.automaton_of(replace_looks(tree, marks), pattern, search=search)
    for look, mark in marks.items():
        inner = tuple(byte for byte in free if byte not in marks.values())
        good = find_positions(look, mark, pattern, inner)
        found = select(found, good, mark, once=_times(tree, look) < 2)
    return found


def select(found: Automaton, good: Automaton, mark: int, *, once: bool = False) -> Automaton:
    """Return the texts whose marks are at positions in `good`, with the marks erased."""
    fitting = texts() | good if once else _require_everywhere(good, mark)
    fitting = ignore_marks(fitting, [byte for byte in MARKS if byte != mark])
    return erase_mark(found & fitting, mark)


def find_positions(look: Look, mark: int, pattern: str, free: tuple[int, ...]) -> Automaton:
    """Return the texts with one mark (a special byte), at a position where a condition holds."""
    options = tuple(
        Sequence((_ANY, behind, Mark(mark), ahead, _ANY)) for behind, ahead in look.options
    )
    good = _automaton(Choice(options), pattern, free, search=False)
    return _with_one(mark) - good if look.negated else good


def _require_everywhere(good: Automaton, mark: int) -> Automaton:
    """Return the texts with any number of marks, each at a position as in `good`."""
    bad = _with_one(mark) - good
    if bad.is_empty:
        return ignore_marks(texts(), [mark])
    also = [(state, [mark], state) for state in range(bad.num_states)]
    ends = np.flatnonzero(bad.accepting).tolist()
    wrong = Automaton.from_nfa(bad.num_states, [*_edges(bad), *also], accepting=ends)
    return ignore_marks(texts(), [mark]) - wrong


def ignore_marks(automaton: Automaton, marks: list[int]) -> Automaton:
    """Return the strings of a language, with any of these marks (special bytes) anywhere."""
    table = automaton.transitions.copy()
    table[:, marks] = np.arange(automaton.num_states)[:, None]
    return Automaton.from_transitions(table, automaton.accepting)


def erase_mark(automaton: Automaton, mark: int) -> Automaton:
    """Return the strings of a language, with the mark (a special byte) removed."""
    after = automaton.delta[:, automaton.class_of_byte[mark]]
    if (after < 0).all():
        return automaton
    classes = automaton.class_of_byte.copy()
    classes[mark] = automaton.delta.shape[1]
    delta = np.pad(automaton.delta, ((0, 0), (0, 1)), constant_values=-1)
    start, end, skips, leaves = 0, 1, [], []
    node_of: dict[tuple[int, bool], int] = {}  # by the states after a mark, and before it
    for state in np.flatnonzero(after >= 0).tolist():
        target = int(after[state]), bool(automaton.accepting[state])
        if target not in node_of:
            node = node_of[target] = 2 + len(node_of)
            skips += [(node, -1 - target[0]), *([(node, end)] if target[1] else [])]
        leaves.append((state, node_of[target]))
    *table, count, work = joining.join(
        [delta],
        [automaton.accepting],
        [classes],
        [0],
        [(start, end)],
        skips,
        2 + len(node_of),
        (start, end, -1),
        kernel_limits(),
        leaves,
    )
    pay(count, work)
    return Automaton.minimal(*table)


def _edges(automaton: Automaton) -> list[tuple[int, list[int], int]]:
    """Return triples (source, bytes, target) for all pairs of states with a transition."""
    return [
        (source, np.flatnonzero(row == target).tolist(), int(target))
        for source, row in enumerate(automaton.transitions)
        for target in np.unique(row[row >= 0])
    ]


def _with_one(mark: int) -> Automaton:
    return Automaton.concatenate([texts(), Automaton.byte_set([mark]), texts()])


def find_looks(node: Node) -> list[Look]:
    """Return the conditions in a syntax tree, without those inside other conditions."""
    if isinstance(node, Look):
        return [node]
    return [look for part in children(node) for look in find_looks(part)]


def replace_looks(node: Node, marks: dict[Look, int]) -> Node:
    """Return the syntax tree with the mark of each look-around condition in its place."""
    if isinstance(node, Look):
        return Mark(marks[node])
    return rebuild(node, lambda part: replace_looks(part, marks)) if marks else node


def _times(node: Node, look: Look) -> int:
    """Return how often a path may require a condition: 0, 1, or 2 for more than once."""
    match node:
        case Look():
            return int(node == look)
        case Sequence(parts):
            return min(2, sum(_times(part, look) for part in parts))
        case Choice(options):
            return max((_times(option, look) for option in options), default=0)
        case Repeat(body, _, maximum):
            return min(2, _times(body, look) * (2 if maximum is None else maximum))
    return 0
