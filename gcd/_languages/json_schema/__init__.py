"""Compiler from JSON Schema documents to the languages of their valid values."""
