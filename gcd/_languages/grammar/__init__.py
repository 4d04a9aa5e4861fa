"""Compiler from context-free grammars to automata, which contain nested texts up to a depth."""
