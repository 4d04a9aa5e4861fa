"""What users write, as byte automata."""

from gcd.languages.json_schema import json_schema
from gcd.languages.literal import choice, literal
from gcd.languages.pattern import ASCII_CLASSES, pattern
from gcd.languages.regex import regex
from gcd.languages.tool_calls import tool_calls
from gcd.languages.tool_types import Parameter, Tool, ToolList, parse_tools

__all__ = [
    "ASCII_CLASSES",
    "Parameter",
    "Tool",
    "ToolList",
    "choice",
    "json_schema",
    "literal",
    "parse_tools",
    "pattern",
    "regex",
    "tool_calls",
]
