"""Errors for optional dependencies that are not installed.

A package that only some calls need is imported by those calls. If it is missing, the error names
the extra to install, in one line.
"""

from __future__ import annotations


def missing(package: str, extra: str, purpose: str) -> ImportError:
    """Return the error for an optional package that is not installed.

    Args:
        package: the package that could not be imported.
        extra: the extra of this distribution that installs the package.
        purpose: the feature that needs the package, as the subject of the sentence.
    """
    return ImportError(
        f"{purpose} needs the package {package}, which is not installed; run "
        f"pip install 'globally-constrained-decoding[{extra}]'",
        name=package,
    )
