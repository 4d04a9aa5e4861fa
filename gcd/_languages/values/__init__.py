"""Languages of values, written in JSON or as Python literals."""
