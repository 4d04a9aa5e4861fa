"""CommonGen (`+task=commongen`): write a sentence with all given concepts."""
