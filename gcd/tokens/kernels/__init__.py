"""This package has compiled loops (numba) over vocabularies and token automata, arrays in and out."""
