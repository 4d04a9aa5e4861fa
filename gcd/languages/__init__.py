"""What users write, as byte automata."""
