"""Compiled loops over vocabularies and automata over tokens."""

from gcd.support.native import check_built

check_built(__name__, __path__[0])
