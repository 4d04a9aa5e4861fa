"""Compiled inner loops of the product with a constraint, for the CPU; see `hmm.recursion`."""
