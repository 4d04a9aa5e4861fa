"""Regular approximation of context-free grammars."""
