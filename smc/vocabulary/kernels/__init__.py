"""This package has the loops of passes over the vocabulary: compiled for the CPU, and in Triton."""
