"""Compiled CPU loops for the product of an HMM with a constraint."""

from gcd._support.native import check_built

check_built(__name__, __path__[0])
