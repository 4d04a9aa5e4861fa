"""Experiments: tasks, their shared harness, and the reports of runs."""

from importlib.util import find_spec

from gcd._support.optional import missing

if find_spec("hydra") is None:
    raise missing("hydra", "experiments", "the package experiments")
