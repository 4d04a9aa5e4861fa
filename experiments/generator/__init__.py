"""Tool-calling records made up from scratch: for training, and held out for evaluation."""

from experiments.generator.mixture import generate, training_record

__all__ = ["generate", "training_record"]
