"""Packages of the library, for scripts and tests that treat all of them alike.

`pyproject.toml` is the source: a package is part of the library if an installation contains it.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _installed() -> tuple[str, ...]:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    patterns = setup["setuptools"]["packages"]["find"]["include"]
    return tuple(sorted({pattern.partition(".")[0] for pattern in patterns}))


def _has_exports(package: str) -> bool:
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    assigned = [node.targets for node in tree.body if isinstance(node, ast.Assign)]
    return "__all__" in (ast.unparse(target) for targets in assigned for target in targets)


LIBRARY = _installed()
"""Packages that an installation contains."""
EXPORTING = tuple(package for package in LIBRARY if _has_exports(package))
"""Packages with public names; the others are commands."""
