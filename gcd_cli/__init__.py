"""This package is the command `gcd`: compile, explain and check constraints, and sample."""
