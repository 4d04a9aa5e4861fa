"""This package is about the machine, not constraints: whole files, kernels, threads."""
