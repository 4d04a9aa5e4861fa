"""Experiments: tasks, the loop that evaluates methods on them, and the reports of runs."""
