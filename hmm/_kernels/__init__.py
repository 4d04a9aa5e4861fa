"""Compiled loops for the product of an HMM with a constraint, on the CPU."""

from gcd._support.native import check_built

check_built(__name__, __path__[0])
