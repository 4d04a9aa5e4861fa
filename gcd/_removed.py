"""Public names that were removed, and what to use instead; version 0.4 drops this table."""

_EXTENT = "GrammarLanguage.extent, which states how much of the grammar a language covers"
_DRAW = "the command `gcd compile SCHEMA --draw FILE`"

REMOVED = {
    "Coverage": _EXTENT,
    "GrammarMatcher": "gcd.Matcher",
    "LazyAutomaton": "gcd.Matcher(language, vocabulary), which lifts the language",
    "ServedAutomaton": "gcd.Matcher(automaton), whose matchers share their masks",
    "UndecidedBudgetError": "InfeasibleBudgetError, as every budget is decided exactly",
    "grammar_coverage": _EXTENT,
    "to_dot": _DRAW,
    "to_svg": _DRAW,
}
