"""Triton kernel that copies rows of a cache."""
