"""JSON Schema, from the document to the language of its values."""
