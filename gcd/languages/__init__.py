"""This package turns what users write into byte automata."""
