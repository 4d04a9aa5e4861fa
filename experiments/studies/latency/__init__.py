"""Latency study (`+task=latency`): milliseconds per token, as in the paper's Table 2."""
