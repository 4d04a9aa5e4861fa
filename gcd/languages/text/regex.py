"""This module compiles regular expressions, matched against the whole text, into byte automata.

The syntax is what Python's `re` and Rust's `regex` crate have in common, where they agree on what
it means (`gcd.languages.text.python_syntax`). A constraint is the set of all texts that match from
the first character to the last, so it makes no difference which match an engine would find first:
`a|ab` has both, and laziness changes nothing.
"""

from __future__ import annotations

from gcd.automata.automaton import Automaton
from gcd.automata.limits import metered
from gcd.errors import check_kind
from gcd.languages.text.look_around import automaton_of
from gcd.languages.text.python_syntax import parse


def regex(pattern: str) -> Automaton:
    """Return the texts, in UTF-8, that match `pattern` from the first character to the last.

    Args:
        pattern: in the common syntax of Python's `re` and Rust's `regex`, with Python's look-around
            and without back-references.

    Raises:
        ConstraintError: if the pattern is not valid, or uses what is not supported; says what and
            where.
        StateLimitError: if the automaton has more states than `gcd.state_limit` allows.
        WorkLimitError: if building it takes more work than `gcd.work_limit` allows.
    """
    check_kind(
        pattern, str, "a pattern is a str", "decode bytes, and give a compiled one's .pattern"
    )
    with metered():
        return automaton_of(parse(pattern), pattern)
