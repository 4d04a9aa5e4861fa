"""Tool-calling records made up from scratch: for training, and held out for evaluation."""

from experiments.tool_calling.generator.groups import training_group
from experiments.tool_calling.generator.mixture import generate, training_record

__all__ = ["generate", "training_group", "training_record"]
