"""Automata over bytes: their algebra, normal form, construction and limits."""
