"""This package has the Triton kernel that moves rows of a cache."""
