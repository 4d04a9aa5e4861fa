"""A sentence with every given concept, on the sets of CommonGen: `+task=commongen`."""
