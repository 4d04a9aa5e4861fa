"""Public names: what users may import, and that nothing outside of the library needs more."""

from __future__ import annotations

import ast
import importlib
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.list_api import LISTING, list_interface
from scripts.packages import EXPORTING, LIBRARY

ROOT = Path(__file__).resolve().parent.parent
PUBLIC_MODULES = {*LIBRARY, "gcd_cli.__main__", "smc.captured", "smc.testing"}
EXCEPTIONS: dict[str, dict[str, set[str]]] = {
    "experiments": {
        "files are written whole, and errors name them, as in the library": {
            "gcd._support.optional", "hmm._files",
        },
        "answers are judged by the rules that constrain them": {
            "gcd._automata.horizon", "gcd._languages.sql.database",
            "gcd._languages.json_schema.keywords", "gcd._languages.tools.tool_lists",
            "gcd._languages.values.python_values",
        },
        "calls in models' own formats are read and written as smc.ask does": {
            "gcd._automata.automaton", "gcd._languages.tools.call_formats",
            "gcd._replies", "smc._results.posterior",
        },
        "settings are checked before a run by what the sampler checks them with": {
            "smc._inference.captured", "smc._inference.arguments",
        },
        "distillation writes the files of a model, and what a stopped run resumes from": {
            "hmm._checkpoint",
        },
        "options of P-GCD are checked as the proposal checks them": {
            "smc._proposals.twisted",
        },
    },
    "scripts": {
        "a page lists every format": {"gcd._languages.text.formats"},
        "schemas are read as the command reads them": {"gcd_cli._explaining"},
    },
    "gcd_cli": {
        "errors and texts read as in the library": {
            "gcd._readable", "gcd._support.optional",
        },
    },
    "gcd_vllm": {
        "the plugin has the library's version, and runs its serving parts on the engine's device": {
            "gcd._errors", "gcd._serving.matcher", "gcd._tokens.distances",
        },
        "requests are read with the checks of the functions that they name": {
            "gcd._arguments", "gcd._automata.horizon", "gcd._languages.literal",
            "gcd._languages.sql.reading",
        },
        "constraints pass between processes as arrays": {
            "gcd._automata.byte_classes", "gcd._tokens.rows",
        },
        "it converts requests to the format of calls that the server's parser reads": {
            "gcd._languages.tools.call_formats", "gcd._replies",
        },
        "its posteriors are made by the sampler's own parts": {
            "smc._inference.arguments", "smc._inference.deadlines",
            "smc._inference.resampling", "smc._models.protocol", "smc._results.posterior",
            "smc._results.reliability", "smc._vocabulary.factors",
        },
        "former names of arguments are those of the sampler": {"smc._removed"},
    },
    "docs": {},
    "README.md": {},
}  # fmt: skip
"""Private modules that are imported outside of their package, by folder and reason.

Benchmarks measure single parts and may import any. So do `hmm` and `smc`, which are the core of the
library together with `gcd`.
"""
CHECKED = {*LIBRARY, *EXCEPTIONS} - {"gcd", "hmm", "smc"}


@pytest.mark.parametrize("package", LIBRARY)
def test_what_is_not_exported_is_private_by_its_name(package):
    for path in (ROOT / package).rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        assert parts[1].startswith("_") or module in PUBLIC_MODULES, f"{module} looks public"


def sources(folder: str) -> Iterator[tuple[Path, str]]:
    """Return the Python files of a folder, and the Python blocks of its pages."""
    root = ROOT / folder
    for path in sorted([root] if root.is_file() else root.rglob("*")):
        if path.suffix == ".py":
            yield path, path.read_text(encoding="utf-8")
        elif path.suffix == ".md":
            for block in re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.DOTALL):
                yield path, block


def private_imports(source: str, package: str) -> set[str]:
    """Return the private modules of other packages of the library that a source imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name if _is_module(name) else node.module for name in names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            top = module.split(".")[0]
            if top in LIBRARY and top != package and "._" in module:
                found.add(module)
    return found


def _is_module(name: str) -> bool:
    return (ROOT / name.replace(".", "/")).with_suffix(".py").exists()


@pytest.mark.parametrize("folder", sorted(CHECKED))
def test_private_modules_are_imported_for_a_stated_reason(folder):
    allowed = set().union(*EXCEPTIONS.get(folder, {}).values())
    used = set()
    for path, source in sources(folder):
        found = private_imports(source, folder)
        beyond = found - allowed
        assert not beyond, f"{path.relative_to(ROOT)} imports {sorted(beyond)}"
        used |= found
    assert used == allowed, f"no longer needed: {sorted(allowed - used)}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from gcd import _errors, lift", {"gcd._errors"}),
        ("def f():\n    import smc._inference.captured", {"smc._inference.captured"}),
        ("import gcd\nfrom smc.testing import ToyLM", set()),
        ("from experiments._private import x", set()),
    ],
)
def test_private_imports_are_found(source, found):
    assert private_imports(source, "experiments") == found


@pytest.mark.parametrize("module", [*EXPORTING, "smc.captured", "smc.testing"])
def test_dir_shows_public_names_only(module):
    found = importlib.import_module(module)
    assert dir(found) == sorted(found.__all__)
    assert not [name for name in dir(found) if name.startswith("_") or name in dir(typing)]


def test_the_listing_shows_the_present_interface():
    """A change of the interface shows in a review as a change of this file."""
    assert LISTING.read_text(encoding="utf-8") == list_interface(), (
        "expected the listing of the interface as it is; run `python -m scripts.list_api --write`"
    )
