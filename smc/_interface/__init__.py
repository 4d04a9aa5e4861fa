"""Calls that users make: `sample`, `ask`, and their asynchronous forms."""
