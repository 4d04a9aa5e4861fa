"""This package has compiled loops for the product of an HMM with a constraint, on the CPU."""
