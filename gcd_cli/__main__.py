"""`python -m gcd_cli` is the command `gcd`."""

from gcd_cli import run

run()
