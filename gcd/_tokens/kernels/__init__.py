"""Compiled loops over vocabularies and token automata."""

from gcd._support.native import check_built

check_built(__name__, __path__[0])
