"""Automata over bytes: their operations, normal form, construction, and limits."""
