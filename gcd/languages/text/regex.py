"""Regular expressions, matched against the whole text, as byte automata.

The step from pattern to automaton is `outlines-core`'s (the Rust `regex-automata` engine behind
it) over a vocabulary of the 256 single bytes: Unicode classes come out right as UTF-8 bytes. Two
traps of that engine are dealt with here:

* It searches **leftmost-first**, as Perl does: in `a|ab` it commits to `a` and would refuse "ab",
  in `a*?` it stops at once. Constraints mean the set of all matches. Ending the pattern with
  `\\z` makes every alternative count, because only a match that reaches the end is one.
* It needs a start that does not depend on what comes before. A sentinel newline in front gives
  one, and is read off again before the automaton is returned.

The syntax is that of Rust's `regex` crate: no look-around, no back-references. Groups, lazy
quantifiers and flags such as `(?i)` are fine. `^` at the very beginning and `$` at the very end
say what holds anyway and are dropped; anchors anywhere else at an end of the pattern are refused.

The limit on states is checked when the engine is done, so a pattern whose automaton explodes, such
as `(a|b)*a(a|b){22}` with its 2^22 states, takes the engine's time and memory first, and so do
long counted repetitions of large classes, such as `\\w{300}`. For the latter write
`regex(r"\\w").repeat(300, 300)`, which is checked at once. Patterns of strangers need a time limit
around this call.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from outlines_core import Index
from outlines_core import Vocabulary as ByteTokens

from gcd.automata.automaton import Automaton
from gcd.automata.byte_classes import NUM_BYTES
from gcd.automata.limits import max_states
from gcd.errors import ConstraintError, StateLimitError

_EOS = NUM_BYTES  # a token of its own for outlines-core, which marks final states with it
_SENTINEL = ord("\n")


def regex(pattern: str) -> Automaton:
    """All strings that match `pattern` from the first character to the last.

    Args:
        pattern: in the syntax of Rust's `regex` crate, without look-around or back-references.

    Raises:
        ConstraintError: if the engine refuses the pattern; its reason is in the message.
        StateLimitError: if the automaton has more states than `gcd.state_limit` allows.
    """
    body = _without_outer_anchors(pattern)
    # Alone first: wrapped, a pattern such as "a)(b" would read as something else.
    _build_index(body, pattern)
    closing = "\n)" if _ends_in_comment(body) else ")"
    index = _build_index(rf"\n(?:{body}{closing}\z", pattern)
    transitions = index.get_transitions()
    if len(transitions) > max_states():
        raise StateLimitError(max_states(), f"the pattern {pattern!r}")

    names = np.array(sorted(transitions), np.int64)
    table = np.full((names.size, NUM_BYTES), -1, np.int32)
    for row in transitions:
        labels = np.fromiter(transitions[row], np.int64)
        targets = np.fromiter(transitions[row].values(), np.int64)
        live = (labels != _EOS) & np.isin(targets, names)
        table[np.searchsorted(names, row), labels[live]] = np.searchsorted(names, targets[live])
    accepting = np.isin(names, list(index.get_final_states()))
    after_sentinel = table[np.searchsorted(names, index.get_initial_state()), _SENTINEL]
    if after_sentinel < 0:
        return Automaton.empty()
    return Automaton.from_transitions(table, accepting, initial=int(after_sentinel))


def _build_index(pattern: str, shown: str) -> Index:
    try:
        return Index(pattern, _byte_tokens())
    except ValueError as error:
        reason = str(error)
        if "start state" in reason:
            hint = (
                "it has an anchor or a word boundary at one of its ends; the whole text is "
                "matched anyway, so leave `^`, `$` and `\\b` out there"
            )
        elif any(sign in shown for sign in ("(?=", "(?!", "(?<=", "(?<!")):
            hint = "look-around is not supported: intersect or subtract automata (&, -) instead"
        else:
            hint = (
                "it is not valid in the syntax of Rust's regex crate, or uses what that lacks "
                f"(look-around, back-references); the engine says: {reason}"
            )
        raise ConstraintError(f"cannot compile the regular expression {shown!r}: {hint}") from error


def _ends_in_comment(pattern: str) -> bool:
    """Whether anything may follow a valid pattern unread, as behind `(?x)a # b`."""
    if "#" not in pattern:
        return False
    try:
        Index(pattern + "(", _byte_tokens())
    except ValueError:
        return False
    return True


def _without_outer_anchors(pattern: str) -> str:
    """Drop `^` at the very start and `$` at the very end: a full match implies them."""
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$"):
        stem = pattern[:-1]
        escapes = len(stem) - len(stem.rstrip("\\"))
        if escapes % 2 == 0:
            return stem
    return pattern


@lru_cache(maxsize=1)
def _byte_tokens() -> ByteTokens:
    return ByteTokens(_EOS, {bytes([byte]): [byte] for byte in range(NUM_BYTES)})
