"""This package reads tool lists as people write them, and compiles the calls that they allow."""
