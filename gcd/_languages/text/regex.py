"""Compiler of regular expressions, matched against the whole text, to byte automata.

The syntax is the common part of Python's `re` and Rust's `regex` crate
(`gcd._languages.text.python_syntax`). A constraint is the set of all texts that match from the
first character to the last. So it doesn't matter which match an engine would find first: `a|ab`
contains both texts, and laziness has no effect.
"""

from __future__ import annotations

from gcd._automata.automaton import Automaton
from gcd._automata.limits import count_work
from gcd._errors import check_kind
from gcd._languages.text.look_around import automaton_of
from gcd._languages.text.python_syntax import parse


def regex(pattern: str) -> Automaton:
    """Return the language of UTF-8 texts that match a pattern from the first character to the last.

    Args:
        pattern: a regular expression in the common syntax of Python's `re` and Rust's `regex`, with
            Python's look-around and without back-references.

    Raises:
        ConstraintError: the pattern is invalid, or uses unsupported syntax. The message gives the
            problem and its position.
        StateLimitError: the automaton has more states than `gcd.state_limit` allows.
        WorkLimitError: building the automaton takes more work than `gcd.work_limit` allows.
    """
    check_kind(
        pattern,
        str,
        "a pattern as str",
        "decode bytes, and pass a compiled pattern's .pattern",
    )
    with count_work():
        return automaton_of(parse(pattern), pattern)
