"""This package leads from bytes to tokens: vocabularies, lifting, token automata, and budgets."""
