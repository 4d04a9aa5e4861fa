"""Posteriors over answers: probabilities, fields, and their reliability."""
