"""Language models: the protocol that the sampler uses, and its implementations."""
