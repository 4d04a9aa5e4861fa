"""Tool lists as people write them, and the calls that they allow."""
