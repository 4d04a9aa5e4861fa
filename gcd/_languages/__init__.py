"""Compilers from the constraints that users write to byte automata."""
