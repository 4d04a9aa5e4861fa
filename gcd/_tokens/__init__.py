"""Vocabularies, lifting of byte automata to token automata, and token budgets."""
