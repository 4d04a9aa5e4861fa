"""`python -m gcd_cli` is the command `gcd`."""

from gcd_cli.main import main

main(prog_name="gcd")
