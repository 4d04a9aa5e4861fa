"""Distillation of a hidden Markov model from a language model: `python -m scripts.distill_hmm`."""
