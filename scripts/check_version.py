"""Check that the version is stated alike everywhere, before a release.

    python -m scripts.check_version             # pyproject.toml, CITATION.cff and CHANGELOG.md
    python -m scripts.check_version v0.3.0      # a release: tag, changelog's date and address, too

`pyproject.toml` is the source; `gcd.__version__` reads the installed package's metadata.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACEHOLDER = "OWNER"
"""Stands for the owner of the repository in `pyproject.toml`, until the project is published."""


def problems(root: Path, tag: str | None = None) -> list[str]:
    """Return a description of each place that disagrees with the version of `pyproject.toml`."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = []
    cited = re.findall(r"^version: *['\"]?([^'\"\n]+)", citation, re.MULTILINE)
    if cited != [version]:
        found.append(f"expected 'version: {version}' in CITATION.cff, got {cited}")
    sections = re.findall(r"^## \[?([\w.]+)\]?(?: - (\S+))?", changelog, re.MULTILINE)
    newest, date = sections[0] if sections else ("nothing", "")
    if newest != version:
        found.append(f"expected {version} as the first section of CHANGELOG.md, got {newest}")
    if tag is not None:
        if tag != f"v{version}":
            found.append(f"expected the tag v{version}, got {tag}")
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
            found.append(f"expected the date of {version} in CHANGELOG.md, got {date or 'none'}")
        if any(f"/{PLACEHOLDER}/" in each for each in project.get("urls", {}).values()):
            found.append(f"expected the repository's address in pyproject.toml, got {PLACEHOLDER}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the problems; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tag", nargs="?", help="the tag of a release, such as v0.3.0")
    found = problems(ROOT, parser.parse_args(arguments).tag)
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
