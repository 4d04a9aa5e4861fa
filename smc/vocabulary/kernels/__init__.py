"""This package has compiled passes over the vocabulary, for the CPU; see `smc.vocabulary.class_mass`."""
