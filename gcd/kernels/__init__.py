"""Compiled inner loops (numba). Plain arrays in, plain arrays out; the callers know what they mean."""
