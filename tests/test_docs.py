"""The pages name files, functions and tests that exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
)
PATH = re.compile(
    r"`((?:gcd|hmm|smc|experiments|scripts|tests|benchmarks|configs|docs)/[\w/.]+)(?:::(\w+))?`"
)
# `hmm.…` on these pages is a key of the configuration.
DOTTED = re.compile(r"`((?:gcd|smc|experiments)(?:\.\w+)+)(?:\([^`]*)?`")


def _defined(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def _resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:size]))
        except ImportError:
            continue
        for part in parts[size:]:
            if not hasattr(found, part):
                return part in getattr(found, "__annotations__", {})
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path, function in PATH.findall(text):
        assert (ROOT / path).exists(), f"{page.name}: {path}"
        assert not function or function in _defined(ROOT / path), f"{page.name}: {path}::{function}"
    for name in set(DOTTED.findall(text)):
        assert _resolves(name), f"{page.name}: {name}"


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.stem)
def test_a_benchmark_is_a_module_that_can_be_imported(script: Path) -> None:
    """As a file it would take `benchmarks/smc.py` for the package of that name."""
    if script.stem == "smc_genlm":
        pytest.importorskip("genlm.control", reason="genlm-control is an optional extra")
    importlib.import_module(f"benchmarks.{script.stem}")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_runs_benchmarks_that_there_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"python benchmarks/", text)
    for name in re.findall(r"-m benchmarks\.(\w+)", text):
        assert (ROOT / "benchmarks" / f"{name}.py").exists(), f"{page.name}: {name}"


def test_the_paper_is_held_by_tests() -> None:
    named = PATH.findall((ROOT / "docs" / "paper.md").read_text(encoding="utf-8"))
    assert sum(function.startswith("test_") for _, function in named) > 20
