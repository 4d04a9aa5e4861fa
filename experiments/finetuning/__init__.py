"""This package trains a LoRA adapter of a language model on a task's own answers."""
