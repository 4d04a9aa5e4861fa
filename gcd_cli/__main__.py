"""Entry point: `python -m gcd_cli` runs the command `gcd`."""

from gcd_cli.main import main

main(prog_name="gcd")
