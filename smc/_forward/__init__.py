"""Forward passes over prefixes, by eager execution or in static shapes."""
