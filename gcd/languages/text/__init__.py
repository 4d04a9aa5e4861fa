"""This package has languages of texts: regular expressions, sets of code points, formats."""
