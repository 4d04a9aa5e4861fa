"""Loops over the vocabulary, compiled for the CPU by Cython, and for GPUs by Triton."""

from gcd._support.native import check_built

check_built(__name__, __path__[0])
