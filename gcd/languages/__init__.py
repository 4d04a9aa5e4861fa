"""What users write, as byte automata."""

from gcd.languages.literal import choice, literal
from gcd.languages.regex import regex

__all__ = ["choice", "literal", "regex"]
