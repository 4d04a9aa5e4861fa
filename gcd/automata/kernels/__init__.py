"""This package has compiled loops (numba) over byte automata: plain arrays in and out."""
