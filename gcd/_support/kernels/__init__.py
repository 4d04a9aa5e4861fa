"""Compiled loops that several packages use."""

from gcd._support.native import check_built

check_built(__name__, __path__[0])
