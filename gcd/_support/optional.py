"""Errors for optional dependencies that are not installed.

A package that only some functions need is imported inside these functions. If it is missing, the
error names the extra that installs it.
"""

from __future__ import annotations


def missing(package: str, extra: str, purpose: str) -> ImportError:
    """Return the error for a package that isn't installed, with this library's extra."""
    return ImportError(
        f"{purpose} needs the package {package}, which is not installed; run "
        f"pip install 'globally-constrained-decoding[{extra}]'",
        name=package,
    )
