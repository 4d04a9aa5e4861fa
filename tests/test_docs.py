"""The pages name files, functions and tests that exist."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest

from experiments.config import Config
from scripts.packages import LIBRARY
from tests import processes

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    page
    for folder in (".", "docs", "benchmarks")
    for page in (ROOT / folder).glob("*.md")
    if page.name != "CHANGELOG.md"  # also names what was removed
)
CODE = (*LIBRARY, "experiments", "scripts", "benchmarks")
FOLDERS = "|".join((*CODE, r"tests\w*", "configs", "docs", r"\.github"))
PATH = re.compile(rf"`((?:{FOLDERS})/[\w/.]+)(?:::(\w+))?`")
# `hmm.…` on these pages is a key of the configuration, and removed benchmarks are named, too.
DOTTED = re.compile(rf"`((?:{'|'.join({*CODE} - {'hmm', 'benchmarks'})})(?:\.\w+)+)(?:\([^`]*)?`")


# In code whole files are meant, wherever they are named.
FILE = re.compile(rf"(?<![\w/.-])((?:{FOLDERS})/[\w/-]+\.(?:py|md|yaml|jsonl?))\b")
NAMED = re.compile(rf"`((?:{'|'.join(CODE)})(?:\.\w+)+)(?:\([^`]*)?`")
SOURCES = sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))


def _defined(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def _resolves(name: str) -> bool:
    """Return whether a dotted name is a module, or something in one."""
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
def test_names_in_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path, function in PATH.findall(text):
        assert (ROOT / path).exists(), f"{page.name}: {path}"
        assert not function or function in _defined(ROOT / path), f"{page.name}: {path}::{function}"
    for name in set(DOTTED.findall(text)):
        assert _resolves(name), f"{page.name}: {name}"
    assert not re.findall(r"python benchmarks/", text)
    for name in re.findall(r"-m benchmarks\.(\w+)", text):
        assert (ROOT / "benchmarks" / f"{name}.py").exists(), f"{page.name}: {name}"


def _docstrings(source: str) -> str:
    values = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
    texts = (node.value for node in values if isinstance(node, ast.Constant))
    return "\n".join(text for text in texts if isinstance(text, str))


@pytest.mark.parametrize("folder", sorted({path.relative_to(ROOT).parts[0] for path in SOURCES}))
def test_names_in_code_exist(folder: str) -> None:
    """Files that comments and docstrings name, and dotted names in docstrings."""
    groups = [(group, kind) for group, kind in get_type_hints(Config).items() if is_dataclass(kind)]
    settings = {f"{group}.{each.name}" for group, kind in groups for each in fields(kind)}
    for path in (path for path in SOURCES if path.is_relative_to(ROOT / folder)):
        source = path.read_text(encoding="utf-8")
        for file in FILE.findall(source):
            assert (ROOT / file).exists(), f"{path.relative_to(ROOT)}: {file}"
        for name in set(NAMED.findall(_docstrings(source))) - settings:
            parts = name.split(".")
            is_file = len(parts) == 2 and parts[1] in ("safetensors", "json")
            assert is_file or _resolves(name), f"{path.relative_to(ROOT)}: {name}"


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.stem)
def test_a_benchmark_is_a_module_that_can_be_imported(script: Path) -> None:
    importlib.import_module(f"benchmarks.{script.stem}")


@pytest.mark.slow("reads the whole site")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """As `make docs`, but nothing is written: links lead somewhere, and references are found."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    command = ("-m", "sphinx", "-W", "--keep-going", "--quiet", "-b", "dummy", "-c", "docs")
    done = processes.run(*command, "-d", str(tmp_path / "trees"), ".", str(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trees" / "docs" / "index.doctree").exists()


def test_the_layout_describes_every_folder_and_the_paper_is_held_by_tests() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    layout = page.partition("## 2. Layout")[2]
    for folder in CODE:
        assert re.search(rf"^    (?:\w+/, )?{folder}/", layout, re.MULTILINE), folder
    assert sum(function.startswith("test_") for _, function in PATH.findall(page)) > 20
