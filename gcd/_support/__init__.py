"""Support code that is independent of constraints: checks of kernels and of optional packages."""
