"""Syntax trees of expressions, common to regular expressions and grammars.

Dialects differ in how they spell a class or a group, but all are built of a few kinds of node.
Captures, names and laziness are not among them: they affect how a text is matched, but not which
texts match. Regular expressions have classes of characters and anchors. Right-hand sides of grammar
rules have finished automata and references to rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gcd._automata.automaton import Automaton
from gcd._languages.text.code_points import Ranges, complement


@dataclass(frozen=True)
class Chars:
    """One code point from this set."""

    inside: Ranges


@dataclass(frozen=True)
class Start:
    """Condition that there is no text before."""


@dataclass(frozen=True)
class End:
    """Condition that there is no text after."""


@dataclass(frozen=True)
class Look:
    """Condition on a position of the text.

    The condition holds if, for one of the `options`, the text before the position ends with a match
    of the first node and the text after it begins with a match of the second. `negated` inverts it.
    """

    options: tuple[tuple[Node, Node], ...]
    negated: bool = False


@dataclass(frozen=True)
class Mark:
    """One byte that no UTF-8 text contains; represents a `Look` while an automaton is built."""

    byte: int


@dataclass(frozen=True)
class Reference:
    """Texts of the rule of this name."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """Parts one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """Any one of these options."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """Repetition of the body, `minimum` to `maximum` times; None: no upper bound.

    `span` is its position in the pattern, from its first character to after its last.
    """

    body: Node
    minimum: int
    maximum: int | None
    span: tuple[int, int] = field(default=(0, 0), compare=False)


Node = Chars | Start | End | Look | Mark | Automaton | Reference | Sequence | Choice | Repeat


EMPTY = Sequence(())
_LF, _CR = ((0x0A, 0x0A),), ((0x0D, 0x0D),)


def repeat(body: Node, minimum: int, maximum: int | None, span: tuple[int, int]) -> Node:
    """Return a repetition in its simplest form: single ones are dropped, nested counts merged.

    `(x{a,b}){c,d}` is `x{ac,bd}` if the intervals ka to kb, for k = c, ..., d, have no gap between
    them. So nested counters are recognized before their graph is built.
    """
    if _reads_nothing(body):  # a condition that holds once holds any number of times
        minimum = min(minimum, 1)
        maximum = 1 if maximum is None else min(maximum, 1)
    if maximum == 0:
        return EMPTY
    if (minimum, maximum) == (1, 1):
        return body
    if isinstance(body, Repeat) and _no_gaps(body, minimum, maximum):
        most = None if maximum is None or body.maximum is None else body.maximum * maximum
        return Repeat(body.body, body.minimum * minimum, most, span)
    return Repeat(body, minimum, maximum, span)


def _no_gaps(inner: Repeat, minimum: int, maximum: int | None) -> bool:
    if minimum == maximum:
        return True
    # Rounds k and k + 1 meet if (k + 1) a <= k b + 1; harder for smaller k.
    if minimum == 0 and inner.minimum > 1:
        return False
    rounds = max(minimum, 1)
    return inner.maximum is None or (rounds + 1) * inner.minimum <= rounds * inner.maximum + 1


def _reads_nothing(node: Node) -> bool:
    match node:
        case Chars():
            return False
        case Sequence(parts) | Choice(parts):
            return all(map(_reads_nothing, parts))
        case Repeat(body):
            return _reads_nothing(body)
    return True


def has_anchors(node: Node) -> bool:
    """Return whether the node contains a condition: `Start`, `End`, `Look` or its `Mark`."""
    match node:
        case Start() | End() | Look() | Mark():
            return True
        case Sequence(parts) | Choice(parts):
            return any(map(has_anchors, parts))
        case Repeat(body):
            return has_anchors(body)
    return False


def look_around(body: Node, *, ahead: bool, negated: bool) -> Look:
    """Return look-ahead or look-behind of a body."""
    return Look((((EMPTY, body) if ahead else (body, EMPTY)),), negated)


def word_boundary(word: Ranges, *, negated: bool = False) -> Look:
    """Return the boundary of a word with the given characters."""
    inside, before, after = Chars(word), _start_or(complement(word)), _end_or(complement(word))
    return Look(((inside, after), (before, inside)), negated)


def word_edge(word: Ranges, *, end: bool, half: bool = False) -> Look:
    """Return the start of a word, or its end; if `half`, check only the side outside the word."""
    inside = EMPTY if half else Chars(word)
    if end:
        return Look(((inside, _end_or(complement(word))),))
    return Look(((_start_or(complement(word)), inside),))


def line_start(ends: Ranges, *, crlf: bool = False) -> Look:
    """Return the start of a line.

    Args:
        ends: the characters that end a line.
        crlf: whether `\\r` followed by `\\n` is a single end; `ends` contains both then.
    """
    if not crlf:
        return Look(((_start_or(ends), EMPTY),))
    return Look(((_start_or(_LF), EMPTY), (Chars(_CR), _end_or(complement(_LF)))))


def line_end(ends: Ranges, *, crlf: bool = False) -> Look:
    """Return the end of a line; arguments as in `line_start`."""
    if not crlf:
        return Look(((EMPTY, _end_or(ends)),))
    return Look(((EMPTY, _end_or(_CR)), (_start_or(complement(_CR)), Chars(_LF))))


def _start_or(inside: Ranges) -> Node:
    return Choice((Start(), Chars(inside)))


def _end_or(inside: Ranges) -> Node:
    return Choice((End(), Chars(inside)))


def literal_text(node: Node) -> str | None:
    """Return the only text of a node that is a sequence of characters, None for other nodes."""
    match node:
        case Chars(((first, last),)) if first == last:
            return chr(first)
        case Sequence(parts):
            texts = [literal_text(part) for part in parts]
            return None if None in texts else "".join(filter(None, texts))
    return None


def shown_pattern(pattern: str) -> str:
    """Quote a pattern for a message, shortened to its beginning if it is long."""
    return repr(pattern) if len(pattern) <= 200 else f"{pattern[:200]!r}..."
