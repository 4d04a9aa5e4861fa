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
from gcd._automata.limits import count_work, spend
from gcd._errors import ConstraintError
from gcd._languages.text import thompson
from gcd._languages.text.code_points import SCALARS, one_of
from gcd._languages.text.syntax import (
    Chars,
    Choice,
    Look,
    Mark,
    Node,
    Repeat,
    Sequence,
    show_pattern,
)

# Bytes that no UTF-8 text contains.
_MARKS = (*range(0xF5, 0x100), 0xC0, 0xC1)
_ANY = Repeat(Chars(SCALARS), 0, None)
_PER_STATE = 2_000  # units of work of an interpreted loop that copies the edges of a state


def automaton_of(tree: Node, pattern: str, *, search: bool = False) -> Automaton:
    """Return the texts that match a pattern as a whole or, in a search, contain a match.

    Args:
        tree: the pattern's syntax tree.
        pattern: the pattern itself, for error messages.
        search: whether any text may come before and after the match, except at anchors.

    Raises:
        ConstraintError: the pattern has too many different look-arounds.
        StateLimitError: an automaton has more states than `gcd.state_limit` allows.
        WorkLimitError: the pattern takes more work than `gcd.work_limit` allows.
    """
    with count_work():
        return _automaton(tree, pattern, _MARKS, search=search)


def _automaton(tree: Node, pattern: str, free: tuple[int, ...], *, search: bool) -> Automaton:
    """Return the texts of a syntax tree in which all conditions hold.

    `free` are the marks (special bytes) that conditions in the tree may use. The texts may contain
    other marks, which are already in the tree.
    """
    looks = dict.fromkeys(_looks(tree))
    if len(looks) > len(free):
        raise ConstraintError(
            f"expected at most {len(_MARKS)} different look-arounds, word boundaries and line "
            f"anchors, nested ones included, in the pattern {show_pattern(pattern)}, got more; "
            "split it into several patterns"
        )
    marks = dict(zip(looks, free, strict=False))
    found = thompson.automaton_of(_mark(tree, marks), pattern, search=search)
    for look, mark in marks.items():
        inner = tuple(byte for byte in free if byte not in marks.values())
        good = _positions(look, mark, pattern, inner)
        fitting = _without_marks() | good if _times(tree, look) < 2 else _everywhere(good, mark)
        found &= _ignoring(fitting, [byte for byte in _MARKS if byte != mark])
        found = _erase(found, mark)
    return found


def _positions(look: Look, mark: int, pattern: str, free: tuple[int, ...]) -> Automaton:
    """Return the texts with one mark (a special byte), at a position where a condition holds."""
    options = tuple(
        Sequence((_ANY, behind, Mark(mark), ahead, _ANY)) for behind, ahead in look.options
    )
    good = _automaton(Choice(options), pattern, free, search=False)
    return _with_one(mark) - good if look.negated else good


def _everywhere(good: Automaton, mark: int) -> Automaton:
    """Return the texts with any number of marks, each at a position where a condition holds.

    A mark is a special byte. `good` contains the texts with one mark at such a position.
    """
    bad = _with_one(mark) - good
    if bad.is_empty:
        return _ignoring(_without_marks(), [mark])
    spend(_PER_STATE * bad.num_states)
    also = [(state, [mark], state) for state in range(bad.num_states)]
    ends = np.flatnonzero(bad.accepting).tolist()
    wrong = Automaton.from_nfa(bad.num_states, [*_edges(bad), *also], accepting=ends)
    return _ignoring(_without_marks(), [mark]) - wrong


def _ignoring(automaton: Automaton, marks: list[int]) -> Automaton:
    """Return the strings of a language, with any of these marks (special bytes) anywhere."""
    table = automaton.transitions.copy()
    table[:, marks] = np.arange(automaton.num_states)[:, None]
    return Automaton.from_transitions(table, automaton.accepting)


def _erase(automaton: Automaton, mark: int) -> Automaton:
    """Return the strings of a language, with the mark (a special byte) removed."""
    after = automaton.transitions[:, mark]
    if (after < 0).all():
        return automaton
    spend(_PER_STATE * automaton.num_states)
    edges = [
        (source, kept, target)
        for source, labels, target in _edges(automaton)
        if (kept := [byte for byte in labels if byte != mark])
    ]
    silent = [(int(source), int(after[source])) for source in np.flatnonzero(after >= 0)]
    ends = np.flatnonzero(automaton.accepting).tolist()
    return Automaton.from_nfa(automaton.num_states, edges, accepting=ends, epsilon=silent)


def _edges(automaton: Automaton) -> list[tuple[int, list[int], int]]:
    """Return triples (source, bytes, target) for all pairs of states with a transition."""
    return [
        (source, np.flatnonzero(row == target).tolist(), int(target))
        for source, row in enumerate(automaton.transitions)
        for target in np.unique(row[row >= 0])
    ]


def _without_marks() -> Automaton:
    return one_of(SCALARS).star()


def _with_one(mark: int) -> Automaton:
    texts = _without_marks()
    return Automaton.concatenate([texts, Automaton.byte_set([mark]), texts])


# -- the tree ---------------------------------------------------------------------------------


def has_looks(node: Node) -> bool:
    """Return whether a syntax tree contains look-around, a word boundary or a line anchor."""
    return bool(_looks(node))


def _looks(node: Node) -> list[Look]:
    """Return the conditions in a syntax tree, without those inside other conditions."""
    match node:
        case Look():
            return [node]
        case Sequence(parts) | Choice(parts):
            return [look for part in parts for look in _looks(part)]
        case Repeat(body):
            return _looks(body)
    return []


def _mark(node: Node, marks: dict[Look, int]) -> Node:
    """Return the syntax tree with each condition replaced by its mark."""
    match node:
        case Look():
            return Mark(marks[node])
        case Sequence(parts):
            return Sequence(tuple(_mark(part, marks) for part in parts))
        case Choice(options):
            return Choice(tuple(_mark(option, marks) for option in options))
        case Repeat(body, minimum, maximum, span) if marks:
            return Repeat(_mark(body, marks), minimum, maximum, span)
    return node


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
