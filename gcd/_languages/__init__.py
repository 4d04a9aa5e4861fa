"""Compilers from constraints, as users write them, to byte automata."""
