"""Public names that were removed, and what to do instead, until 0.4."""

REMOVED = {"Monarch": "use hmm.Dense"}
