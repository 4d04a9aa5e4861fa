"""Answers in JSON: every record has a request, a JSON schema and the right answer."""
