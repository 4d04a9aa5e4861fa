"""Command `gcd`: compile, explain and check constraints, and sample under them."""
