"""Compiled inner loops (numba): plain arrays in and out; the callers know what they mean."""
