"""Compiled loops that more than one room uses."""
