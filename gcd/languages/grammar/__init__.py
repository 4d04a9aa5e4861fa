"""This package approximates context-free grammars by regular languages."""
