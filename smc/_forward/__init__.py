"""Forward passes over prefixes: eager with distinct prefixes, or in static shapes."""
