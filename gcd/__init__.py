"""Hard constraints on language models, as automata with a token budget."""

from gcd.automaton import Automaton
from gcd.batch import AutomatonBatch
from gcd.budget import BudgetMask, check_budget
from gcd.diagnostics import PrefixReport, inspect_prefix, why_refused
from gcd.drawing import to_dot, to_svg
from gcd.errors import (
    ConstraintError,
    EmptyLanguageError,
    InfeasibleBudgetError,
    StateLimitError,
    UnsupportedSchemaError,
)
from gcd.languages import (
    ASCII_CLASSES,
    Parameter,
    Tool,
    ToolList,
    choice,
    json_schema,
    literal,
    parse_tools,
    pattern,
    regex,
    tool_calls,
)
from gcd.lift import lift
from gcd.limits import state_limit
from gcd.matcher import Matcher, MatcherBatch, ServedAutomaton
from gcd.tensors import TensorAutomaton
from gcd.token_automaton import TokenAutomaton
from gcd.vocabulary import Vocabulary, eos_ids_of

__all__ = [
    "ASCII_CLASSES",
    "Automaton",
    "AutomatonBatch",
    "BudgetMask",
    "ConstraintError",
    "EmptyLanguageError",
    "InfeasibleBudgetError",
    "Matcher",
    "MatcherBatch",
    "Parameter",
    "PrefixReport",
    "ServedAutomaton",
    "StateLimitError",
    "TensorAutomaton",
    "TokenAutomaton",
    "Tool",
    "ToolList",
    "UnsupportedSchemaError",
    "Vocabulary",
    "check_budget",
    "choice",
    "eos_ids_of",
    "inspect_prefix",
    "json_schema",
    "lift",
    "literal",
    "parse_tools",
    "pattern",
    "regex",
    "state_limit",
    "to_dot",
    "to_svg",
    "tool_calls",
    "why_refused",
]
