"""Compiled loops that compute masks and states of constraints for serving engines."""

from gcd._support.native import check_built

check_built(__name__, __path__[0])
