"""Hard constraints on language models, as automata with a token budget."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gcd._automata.automaton import Automaton
from gcd._automata.horizon import Caveat, CaveatWarning
from gcd._automata.limits import state_limit, work_limit
from gcd._diagnostics import PrefixReport, inspect_prefix, why_refused
from gcd._errors import (
    ConstraintError,
    EmptyLanguageError,
    InfeasibleBudgetError,
    OverlongBudgetError,
    StateLimitError,
    UnsupportedSchemaError,
    WorkLimitError,
)
from gcd._infilling import Infill, infill
from gcd._languages.grammar.grammar import GrammarLanguage, grammar
from gcd._languages.json_schema.reader import IgnoredKeyword, IgnoredKeywordWarning
from gcd._languages.json_schema.schema import ignored_keywords, json_schema
from gcd._languages.literal import choice, literal
from gcd._languages.required_words import keywords
from gcd._languages.sql.database import Column, ForeignKey, SqlSchema, Table
from gcd._languages.sql.reading import sql_schema, sql_values
from gcd._languages.sql.sql import SqlDialect, sql, widest_dialect
from gcd._languages.text.code_points import anything
from gcd._languages.text.regex import regex
from gcd._languages.tools.call_formats import CallFormat
from gcd._languages.tools.tool_calls import call_format, tool_calls
from gcd._languages.tools.tool_lists import Parameter, Tool, ToolList, parse_tools
from gcd._removed import REMOVED
from gcd._serving.matcher import Matcher, MatcherBatch
from gcd._serving.scores import ScoresProcessor
from gcd._tokens.lifting import lift
from gcd._tokens.segments import Segment, Segments, segments
from gcd._tokens.token_automaton import TokenAutomaton, check_budget
from gcd._tokens.vocabulary import Vocabulary, eos_ids_of

if TYPE_CHECKING:
    from gcd._tokens.batch import AutomatonBatch, BudgetMask
    from gcd._tokens.tensor_automaton import TensorAutomaton

_WITH_TORCH = {
    "AutomatonBatch": "gcd._tokens.batch",
    "BudgetMask": "gcd._tokens.batch",
    "TensorAutomaton": "gcd._tokens.tensor_automaton",
}

__all__ = [
    "Automaton", "AutomatonBatch", "BudgetMask", "CallFormat", "Caveat", "CaveatWarning", "Column",
    "ConstraintError", "EmptyLanguageError", "ForeignKey", "GrammarLanguage", "IgnoredKeyword",
    "IgnoredKeywordWarning", "InfeasibleBudgetError", "Infill", "Matcher", "MatcherBatch",
    "OverlongBudgetError", "Parameter", "PrefixReport", "ScoresProcessor", "Segment", "Segments",
    "SqlDialect", "SqlSchema", "StateLimitError", "Table", "TensorAutomaton", "TokenAutomaton",
    "Tool", "ToolList", "UnsupportedSchemaError", "Vocabulary", "WorkLimitError", "anything",
    "call_format", "check_budget", "choice", "eos_ids_of", "grammar", "ignored_keywords", "infill",
    "inspect_prefix", "json_schema", "keywords", "lift", "literal", "parse_tools", "regex",
    "segments", "sql", "sql_schema", "sql_values", "state_limit", "tool_calls", "why_refused",
    "widest_dialect", "work_limit",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name that needs torch on first access, which is slow; say what replaced others."""
    if name == "__version__":
        return import_module("importlib.metadata").version("globally-constrained-decoding")
    if name in REMOVED:
        raise AttributeError(f"gcd.{name} was removed; use {REMOVED[name]}")
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_WITH_TORCH[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
