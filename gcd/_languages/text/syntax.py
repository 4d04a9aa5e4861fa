"""Syntax trees of regular expressions and grammars.

Dialects spell classes and groups differently, but all of them consist of a few kinds of nodes.
Captures and names of groups have no node: they affect how a text is matched, but not which texts
match. Laziness matters only to `gcd._languages.text.matches`. Only regular expressions have classes
of characters and anchors. Only right-hand sides of grammar rules have finished automata and
references to rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gcd._automata.automaton import Automaton
from gcd._languages.text.code_points import Ranges, complement


@dataclass(frozen=True)
class Chars:
    """Node for one code point from the set `inside`."""

    inside: Ranges


@dataclass(frozen=True)
class Start:
    """Node for the condition that the text begins here."""


@dataclass(frozen=True)
class End:
    """Node for the condition that the text ends here."""


@dataclass(frozen=True)
class Look:
    """Node for a condition on a position of the text.

    It holds if one of the `options` matches: the text before the position ends with a match of the
    option's first node, and the text after it begins with a match of the second. `negated` inverts
    the condition.
    """

    options: tuple[tuple[Node, Node], ...]
    negated: bool = False


@dataclass(frozen=True)
class Mark:
    """Node for a byte that no text contains; it replaces a `Look` before an automaton is built."""

    byte: int


@dataclass(frozen=True)
class Reference:
    """Node for the texts of the rule with this name."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """Node for the texts of its parts, one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """Node for the texts of any one of its options."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """Node for `minimum` to `maximum` repetitions of its body; None means no upper bound.

    `span` is the start and the end of the repetition in the pattern. `lazy` means that an engine
    tries few repetitions first.
    """

    body: Node
    minimum: int
    maximum: int | None
    span: tuple[int, int] = field(default=(0, 0), compare=False)
    lazy: bool = False


Node = Chars | Start | End | Look | Mark | Automaton | Reference | Sequence | Choice | Repeat


EMPTY = Sequence(())
_LF, _CR = ((0x0A, 0x0A),), ((0x0D, 0x0D),)


def repeat(
    body: Node, minimum: int, maximum: int | None, span: tuple[int, int], *, lazy: bool = False
) -> Node:
    """Return a repetition in its simplest form.

    `x{1}` becomes `x`. `(x{a,b}){c,d}` becomes `x{ac,bd}` if the intervals from ka to kb, for k =
    c, ..., d, have no gap between them, and an engine takes the same match of both. Nested counts
    are thus simplified before their graph is built.
    """
    if _reads_nothing(body):  # a condition that holds also holds if repeated
        minimum = min(minimum, 1)
        maximum = 1 if maximum is None else min(maximum, 1)
    if maximum == 0:
        return EMPTY
    if (minimum, maximum) == (1, 1):
        return body
    if not lazy and isinstance(body, Repeat) and _is_one_count(body, minimum, maximum):
        most = None if maximum is None or body.maximum is None else body.maximum * maximum
        return Repeat(body.body, body.minimum * minimum, most, span)
    return Repeat(body, minimum, maximum, span, lazy)


def _is_one_count(inner: Repeat, minimum: int, maximum: int | None) -> bool:
    # An engine that has to give back repetitions first tries other matches of their body.
    is_free = inner.minimum <= 1 or minimum == maximum or inner.maximum is None
    is_single = is_free and isinstance(inner.body, Chars)
    if inner.lazy or not (is_single or max(inner.minimum, minimum) <= 1):
        return False
    if minimum == maximum:
        return True
    # The intervals of k and k + 1 meet if (k + 1) a <= k b + 1, so it is enough to check the
    # smallest k.
    if minimum == 0 and inner.minimum > 1:
        return False
    rounds = max(minimum, 1)
    return inner.maximum is None or (rounds + 1) * inner.minimum <= rounds * inner.maximum + 1


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly inside a node."""
    match node:
        case Sequence(parts) | Choice(parts):
            return parts
        case Repeat(body):
            return (body,)
    return ()


def rebuild(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return a node with a function applied to the nodes directly inside it."""
    match node:
        case Sequence(parts) | Choice(parts):
            return type(node)(tuple(map(change, parts)))
        case Repeat(body):
            return replace(node, body=change(body))
    return node


def _reads_nothing(node: Node) -> bool:
    return not isinstance(node, Chars) and all(map(_reads_nothing, children(node)))


def has_anchors(node: Node) -> bool:
    """Return whether a node contains a condition: `Start`, `End`, `Look` or its `Mark`."""
    return isinstance(node, Start | End | Look | Mark) or any(map(has_anchors, children(node)))


def look_around(body: Node, *, ahead: bool, negated: bool) -> Look:
    """Return the condition that `body` matches after (`ahead`) or before a position."""
    return Look((((EMPTY, body) if ahead else (body, EMPTY)),), negated)


def word_boundary(word: Ranges, *, negated: bool = False) -> Look:
    """Return the condition that a word of the given characters begins or ends at a position."""
    inside, before, after = Chars(word), _start_or(complement(word)), _end_or(complement(word))
    return Look(((inside, after), (before, inside)), negated)


def word_edge(word: Ranges, *, end: bool, half: bool = False) -> Look:
    """Return the condition that a word begins or ends; if `half`, only check its outside."""
    inside = EMPTY if half else Chars(word)
    if end:
        return Look(((inside, _end_or(complement(word))),))
    return Look(((_start_or(complement(word)), inside),))


def line_start(ends: Ranges, *, crlf: bool = False) -> Look:
    """Return the condition that a line begins; with `crlf`, after CR, LF or both as one end."""
    if not crlf:
        return Look(((_start_or(ends), EMPTY),))
    return Look(((_start_or(_LF), EMPTY), (Chars(_CR), _end_or(complement(_LF)))))


def line_end(ends: Ranges, *, crlf: bool = False) -> Look:
    """Return the condition that a line ends at a position; arguments as in `line_start`."""
    if not crlf:
        return Look(((EMPTY, _end_or(ends)),))
    return Look(((EMPTY, _end_or(_CR)), (_start_or(complement(_CR)), Chars(_LF))))


def _start_or(inside: Ranges) -> Node:
    return Choice((Start(), Chars(inside)))


def _end_or(inside: Ranges) -> Node:
    return Choice((End(), Chars(inside)))


def literal_text(node: Node) -> str | None:
    """Return the only text of a node that is a sequence of characters; None for other nodes."""
    match node:
        case Chars(((first, last),)) if first == last:
            return chr(first)
        case Sequence(parts):
            texts = [literal_text(part) for part in parts]
            return None if None in texts else "".join(filter(None, texts))
    return None


def show_pattern(pattern: str) -> str:
    """Quote a pattern for a message, shortened to 200 characters."""
    return repr(pattern) if len(pattern) <= 200 else f"{pattern[:200]!r}..."
