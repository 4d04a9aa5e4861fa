"""Parsers of tool lists, and compilers of the calls that these tools allow."""
