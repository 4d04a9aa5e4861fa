"""This package has the compiled steps (numba) of served constraints."""
