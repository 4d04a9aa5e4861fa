"""Passes over the vocabulary, for all prefixes of a step at once."""
