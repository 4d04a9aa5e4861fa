"""This package has automata over bytes: their algebra, normal form, construction and limits."""
