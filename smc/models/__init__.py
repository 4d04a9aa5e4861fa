"""This package has language models: what the sampler asks of one, and those that answer."""
