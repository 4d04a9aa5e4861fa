"""Language models: the interface that the sampler uses, and its implementations."""
