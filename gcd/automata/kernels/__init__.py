"""Compiled loops over byte automata (numba): plain arrays in and out."""
