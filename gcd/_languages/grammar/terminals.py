r"""Terminals and ignored text, with conditions on the text around them.

A terminal such as `/if\b/` depends on the text after it, and an ignored terminal takes its longest
match: after `# x`, a comment `/#[^\n]*/` goes on unless the line ends. Such a condition becomes a
*mark*, a byte that no text contains, before or after the texts of the terminal. The automaton of
the whole grammar is built from texts with marks. Then the texts whose conditions hold are selected,
and the marks are erased (`gcd._languages.text.look_around`).

For a terminal, let J be the language of texts `l BEGIN t END r` in which t is a match within the
text l t r. In the automaton of J, the state after `BEGIN` determines what may come before t, and
the state after `END` determines what may come after it. So there is one condition for each of these
states, and none if it holds in every text. If there are fewer look-arounds than such conditions, as
in `/(?!(and|or|not)\b)[a-z]+/`, the marks stand for the look-arounds themselves. The longest
matches are the texts of J without those that have a longer match at the same place.

Several ignored terminals may follow each other. The language of texts `l BEGIN u END r`, in which u
consists of longest matches, is split in the same way. A condition is not needed if it holds for all
texts that begin like a terminal, and u is not possible if it holds for none of them. For usual
comments and spaces, no conditions are left: a line comment is only possible before a line end, or
at the end of the text. The end is then a separate language.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from functools import reduce

import numpy as np

from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError
from gcd._languages.text.code_points import texts
from gcd._languages.text.look_around import MARKS, erase_mark, find_positions, ignore_marks, select
from gcd._languages.text.matches import BEGIN, END, matches, matches_in_texts, matches_with_marks
from gcd._languages.text.syntax import Look

_MARKS = MARKS[:-2]  # for conditions

# Condition of a look-around, or the texts before and after a position.
_Condition = Look | tuple[Automaton, Automaton]


class Conditions:
    """Conditions on the text before or after a position, with the marks that stand for them."""

    def __init__(self) -> None:
        self._marks: dict[_Condition, int] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def mark(self, condition: _Condition) -> int:
        """Return the mark for a condition."""
        return self._marks.setdefault(condition, _MARKS[len(self._marks) % len(_MARKS)])

    def impose(self, language: Automaton) -> Automaton:
        """Return the texts in which all conditions hold, without their marks."""
        if len(self._marks) > len(_MARKS):
            raise ConstraintError(
                f"expected at most {len(_MARKS)} different conditions on the text around terminals "
                f"(look-around, and longest matches of ignored text), got {len(self._marks)}; "
                "simplify them"
            )
        for condition, mark in self._marks.items():
            if isinstance(condition, Look):
                others = tuple(other for other in MARKS if other != mark)
                good = find_positions(condition, mark, "", others)
            else:
                good = _between(condition[0], mark, condition[1])
            language = select(language, good, mark)
        return language


def compile_terminal(pattern: str, conditions: Conditions) -> Automaton:
    """Return the matches of a terminal, with marks for conditions on the text around them."""
    inside = matches(pattern)
    if inside is not None:
        return inside
    own = Conditions()
    matched = matches_in_texts(pattern)
    _split(matched, own)
    inside, tested = matches_with_marks(pattern)
    if len(own) <= len(tested):
        return _split(matched, conditions)
    return _rename(inside, {mark: conditions.mark(look) for look, mark in tested})


def compile_ignored(
    patterns: Collection[str],
    conditions: Conditions,
    first: Collection[int],
    *,
    narrow: bool = False,
) -> tuple[Automaton, Automaton]:
    """Return the ignored texts before a terminal, and those at the end of the text.

    A text ends with texts from both languages. Other terminals begin with a byte of `first`. If
    `narrow`, the longest match is that of all ignored terminals together.
    """
    known = [matches(pattern) for pattern in patterns]
    if not narrow and _need_no_conditions(known, first):
        between = Automaton.union(
            [each - Automaton.epsilon() for each in known if each is not None]
        ).star()
        return between, Automaton.epsilon()
    own = Conditions()
    longest = []
    for matched in map(matches_in_texts, patterns):
        matched &= _between(texts(), BEGIN, _some_text(), END, texts())
        rivals = _any_match(patterns) if narrow else matched
        longest.append(_split(_without_longer(matched, rivals), own))
    ignored = Automaton.union(longest).star()
    ignored = own.impose(_between(texts(), BEGIN, ignored, END, texts()))
    others = texts() & (Automaton.byte_set(first) + Automaton.any_bytes())
    new = Conditions()
    between, at_end = _split(ignored, new, others), _split(ignored, new, Automaton.epsilon())
    if not len(new) and (between + at_end) == at_end:
        return between, Automaton.epsilon() if at_end == between else at_end
    return _split(ignored, conditions, others | Automaton.epsilon()), Automaton.epsilon()


def compile_narrow(pattern: str, ignored: list[str], conditions: Conditions) -> Automaton:
    """Return the matches of a terminal where no longer ignored text begins, with marks."""
    if measure_overlap(pattern, ignored) == math.inf:
        return compile_terminal(pattern, conditions)
    return _split(_without_longer(matches_in_texts(pattern), _any_match(ignored)), conditions)


def measure_overlap(pattern: str, ignored: list[str]) -> float:
    """Return the fewest bytes of an ignored text that begins with a shorter terminal."""
    bare, others = _bare(pattern), Automaton.union([_bare(other) for other in ignored])
    if not {*first_bytes(bare)} & {*first_bytes(others)}:
        return math.inf
    longer = others & (bare + ~Automaton.epsilon())
    if not longer.is_empty and None in map(matches, [pattern, *ignored]):
        matched = matches_in_texts(pattern)
        longer = matched - _without_longer(matched, _any_match(ignored))
        longer = erase_mark(erase_mark(longer, BEGIN), END)
    return math.inf if longer.is_empty else float(len(longer.shortest()))


def _bare(pattern: str) -> Automaton:
    """Return the matches of a terminal, whether conditions hold or not."""
    inside = matches(pattern)
    if inside is not None:
        return inside
    return erase_marks(_split(matches_in_texts(pattern), Conditions()))


def _any_match(patterns: Iterable[str]) -> Automaton:
    """Return all texts with a match of one of the patterns between the marks `BEGIN` and `END`."""
    return Automaton.union([matches_in_texts(pattern) for pattern in patterns])


def first_bytes(terminal: Automaton) -> Collection[int]:
    """Return the bytes with which the texts of a terminal and what follows may begin."""
    terminal = erase_marks(terminal)
    if terminal.accepting[0]:
        return range(256)
    return np.flatnonzero(terminal.delta[0, terminal.class_of_byte] >= 0).tolist()


def erase_marks(language: Automaton) -> Automaton:
    """Return the texts of a language without marks, whether their conditions hold or not."""
    return reduce(erase_mark, _MARKS, language)


def _need_no_conditions(known: list[Automaton | None], first: Collection[int]) -> bool:
    """Return whether texts of ignored terminals are longest matches, however they are divided."""
    begins = [() if inside is None else first_bytes(inside) for inside in known]
    for number, inside in enumerate(known):
        if inside is None or inside.accepting[0]:
            return False
        longer = inside.delta[inside.accepting][:, inside.class_of_byte] >= 0
        following = {*first, *(byte for b in begins[:number] + begins[number + 1 :] for byte in b)}
        if longer.any() and (
            longer[:, list(following)].any() or inside.star() != inside | Automaton.epsilon()
        ):
            return False
    return True


def _without_longer(matched: Automaton, rivals: Automaton) -> Automaton:
    """Return the texts with a marked match, unless `rivals` has a longer match at its place."""
    other = MARKS[0]
    longer = ignore_marks(_rename(rivals, {END: other}), [END])
    longer &= _between(texts(), BEGIN, texts(), END, _some_text(), other, texts())
    return matched - erase_mark(longer, other)


def _some_text() -> Automaton:
    return texts() - Automaton.epsilon()


def _split(
    matched: Automaton, conditions: Conditions, possible: Automaton | None = None
) -> Automaton:
    """Return the parts between `BEGIN` and `END`, with marks for conditions on the text around."""
    possible = texts() if possible is None else possible
    table = np.concatenate([matched.transitions, np.full((1, 256), -1, np.int32)])
    begin, end = table[:, BEGIN].copy(), table[:, END].copy()
    table[:, [BEGIN, END]] = -1
    accepting, last = np.append(matched.accepting, False), len(table) - 1
    plain = table.copy()
    inside = np.arange(last + 1) == last
    for state in np.unique(end[end >= 0]).tolist():
        after = Automaton.from_transitions(plain, accepting, state)
        if (possible - after).is_empty:
            inside |= end == state
        elif not (possible & after).is_empty:
            table[end == state, conditions.mark((texts(), after))] = last
    parts = []
    for state in np.unique(begin[begin >= 0]).tolist():
        part = Automaton.from_transitions(table, inside, state)
        before = Automaton.from_transitions(plain, begin == state)
        if before != texts():
            part = _between(conditions.mark((before, texts())), part)
        parts.append(part)
    return Automaton.union(parts)


def _rename(language: Automaton, marks: dict[int, int]) -> Automaton:
    """Return the texts of a language with other marks."""
    table = language.transitions.copy()
    table[:, list(marks)] = -1
    table[:, list(marks.values())] = language.transitions[:, list(marks)]
    return Automaton.from_transitions(table, language.accepting)


def _between(*parts: Automaton | int) -> Automaton:
    """Return the concatenation of languages and marks."""
    return Automaton.concatenate(
        [Automaton.byte_set([part]) if isinstance(part, int) else part for part in parts]
    )
