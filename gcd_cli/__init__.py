"""Command `gcd`: compile, explain and check constraints, and sample under them."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command `gcd`; exit with an error message if the extra `cli` is not installed."""
    try:
        from gcd_cli._main import main
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        from gcd._support.optional import missing

        sys.exit(f"Error: {missing('click', 'cli', 'the command `gcd`')}")
    main(prog_name="gcd")
