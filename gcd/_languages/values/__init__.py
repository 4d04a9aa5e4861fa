"""Languages of values in a notation: JSON or Python literals."""
