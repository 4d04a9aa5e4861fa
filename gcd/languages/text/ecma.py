"""This module builds the language of the texts in which a JSON Schema `pattern` finds a match.

JSON Schema takes its patterns from ECMA-262 (with the `u` flag), and a text satisfies one if some
part of it matches: the language is `.* P .*`, but for the anchors in P.
`gcd.languages.text.ecma_syntax` reads the pattern, `gcd.languages.text.thompson` builds it.
"""

from __future__ import annotations

from gcd.automata.automaton import Automaton
from gcd.automata.limits import priced_cache
from gcd.languages.text.ecma_syntax import parse
from gcd.languages.text.thompson import automaton_of


@priced_cache(256)
def ecma_pattern(pattern: str) -> Automaton:
    """Return the UTF-8 texts in which an ECMA-262 pattern (`u` flag, not anchored) finds a match.

    Raises:
        ConstraintError: if the pattern is not valid, or uses what is not supported; says what and
            where.
        StateLimitError: if its automaton has more states than `gcd.state_limit` allows.
        WorkLimitError: if building it takes more work than `gcd.work_limit` allows.
    """
    return automaton_of(parse(pattern), pattern, search=True)
