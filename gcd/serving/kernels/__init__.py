"""Compiled steps of served constraints (numba)."""
