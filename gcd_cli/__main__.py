"""Entry point: `python -m gcd_cli` runs the command `gcd`."""

from gcd_cli import run

run()
