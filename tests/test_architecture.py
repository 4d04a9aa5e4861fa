"""The one direction of dependency, and modules small enough to hold one concept."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "gcd": set(),
    "hmm": {"gcd"},
    "smc": {"gcd", "hmm"},
    "experiments": {"gcd", "hmm", "smc"},
}
OURS = {*ALLOWED, "scripts", "tests", "benchmarks", "configs"}


def imported_packages(path: Path) -> set[str]:
    """Top-level names a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_dependencies_point_one_way(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        forbidden = (imported_packages(path) & OURS) - ALLOWED[package] - {package}
        assert not forbidden, f"{path.relative_to(ROOT)} imports {sorted(forbidden)}"


def test_the_library_needs_no_experiment_dependency():
    """`gcd` alone: no configuration, plotting, tracking or model library is imported by it."""
    heavy = {"hydra", "omegaconf", "wandb", "datasets", "matplotlib", "pandas", "transformers"}
    for path in (ROOT / "gcd").rglob("*.py"):
        assert not imported_packages(path) & heavy, path


def test_modules_are_small():
    for package in ALLOWED:
        for path in (ROOT / package).rglob("*.py"):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            assert lines <= 480, f"{path.relative_to(ROOT)} has {lines} lines: is it one concept?"
