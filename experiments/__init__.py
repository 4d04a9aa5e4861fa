"""Experiments: tasks, their shared harness, and the reports of runs."""
