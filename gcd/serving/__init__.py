"""This package serves constraints to engines: one token and one packed mask at a time."""
