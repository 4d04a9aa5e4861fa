"""This package has compiled loops (numba) over vocabularies and token automata: plain arrays in and
out.
"""
