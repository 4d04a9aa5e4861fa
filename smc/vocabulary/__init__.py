"""This package has passes over the vocabulary, for all prefixes of a step at once."""
