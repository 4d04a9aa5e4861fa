"""Hard constraints on language models, as automata with a token budget."""

from gcd.automaton import Automaton
from gcd.errors import (
    ConstraintError,
    EmptyLanguageError,
    InfeasibleBudgetError,
    StateLimitError,
    UnsupportedSchemaError,
)
from gcd.languages import choice, literal, regex
from gcd.limits import state_limit

__all__ = [
    "Automaton",
    "ConstraintError",
    "EmptyLanguageError",
    "InfeasibleBudgetError",
    "StateLimitError",
    "UnsupportedSchemaError",
    "choice",
    "literal",
    "regex",
    "state_limit",
]
