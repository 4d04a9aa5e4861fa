"""Languages of texts: regular expressions, sets of code points, formats."""
