"""Automata over bytes: their algebra, their normal form, and what they are put together from."""
