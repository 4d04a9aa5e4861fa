"""Compiled loops over vocabularies and automata over tokens (numba): plain arrays in and out."""
