"""Sampling and masking inside `generate` of `transformers`."""
