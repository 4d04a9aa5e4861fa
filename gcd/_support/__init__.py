"""Support code that is independent of constraints: whole files, kernels, threads."""
