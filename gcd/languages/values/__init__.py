"""This package has languages of values as a notation writes them: JSON and Python literals."""
