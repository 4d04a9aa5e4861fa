"""Compiler from a JSON schema document to the language of its values."""
