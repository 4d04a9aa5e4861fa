"""This package has compiled loops (numba) over vocabularies and automata over tokens."""
