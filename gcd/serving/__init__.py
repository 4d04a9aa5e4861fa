"""Constraints as serving engines call them: one token and one packed mask at a time."""
