"""Forward passes over prefixes: eager over distinct prefixes, or in static shapes."""
