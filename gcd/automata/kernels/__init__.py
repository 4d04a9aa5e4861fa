"""This package has compiled loops (numba) over byte automata."""
