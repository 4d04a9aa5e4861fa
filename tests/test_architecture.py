"""Rules of the code: imports go in one direction, modules are short, tests don't measure time."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from scripts.packages import LIBRARY

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"hydra", "omegaconf", "wandb", "datasets", "matplotlib", "pandas"}
ALLOWED = {  # packages of ours, and those that take long to import
    "gcd": set(),
    "hmm": {"gcd"},
    "smc": {"gcd", "hmm"},
    "experiments": {"gcd", "gcd_vllm", "hmm", "smc", *HEAVY},
    "gcd_cli": {"gcd", "gcd_vllm", "hmm", "smc"},
    "gcd_vllm": {"gcd", "hmm", "smc"},
}
LAYERS = {  # a module in a layer may import these layers, and modules that are in none
    "gcd._support": set(),
    "gcd._automata": {"gcd._support"},
    "gcd._languages": {"gcd._support", "gcd._automata"},
    "gcd._tokens": {"gcd._support", "gcd._automata"},
    "gcd._serving": {"gcd._support", "gcd._automata", "gcd._tokens"},
    "smc._vocabulary": set(),
    "smc._models": set(),
    "smc._proposals": {"smc._vocabulary"},
    "smc._forward": {"smc._vocabulary", "smc._models", "smc._proposals"},
    "smc._inference": {"smc._vocabulary", "smc._models", "smc._proposals", "smc._forward"},
    "smc._results": {"smc._vocabulary", "smc._proposals", "smc._inference"},
}
LAYERS["smc._search"] = {layer for layer in LAYERS if layer.startswith("smc.")}
LAYERS["smc._interface"] = {layer for layer in LAYERS if layer.startswith("smc.")}
LAYERS["smc._transformers"] = {layer for layer in LAYERS if layer.startswith("smc.")}
OURS = {*ALLOWED, "scripts", "tests", "benchmarks", "configs"}


def test_every_package_is_installed_and_has_its_imports_declared():
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    missing = sorted(found - {*LIBRARY, "experiments", "scripts", "tests"})
    assert not missing, f"add {missing} to tool.setuptools.packages.find in pyproject.toml"
    assert {*ALLOWED} == {*LIBRARY, "experiments"}, "add the package to ALLOWED"


def test_every_package_is_type_checked():
    settings_of = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    missing = sorted({*ALLOWED, "scripts"} - {*settings_of["mypy"]["files"]})
    assert not missing, f"add {missing} to tool.mypy in pyproject.toml"


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_packages(path: Path) -> set[str]:
    """Top-level names a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(parsed(path)):
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
        forbidden = (imported_packages(path) & (OURS | HEAVY)) - ALLOWED[package] - {package}
        assert not forbidden, f"{path.relative_to(ROOT)} imports {sorted(forbidden)}"


PUBLIC = {"transformers", "transformers.generation", "transformers.utils"}
"""The documented modules of `transformers`, whose names may be imported."""


def imported_from_transformers(source: str) -> Iterator[tuple[str, str]]:
    """The modules and names of `transformers` that a file imports, also by `import_module`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found = [(ast.unparse(each).strip("f'\""), "") for each in node.args[:1]]
        else:
            continue
        for module, name in found:
            if module.split(".")[0] == "transformers":
                yield module, name


def is_public(module: str, name: str) -> bool:
    return module in PUBLIC and not name.startswith("_")


@pytest.mark.parametrize(
    "source",
    [
        "from transformers.cache_utils import DynamicLayer",
        "def f():\n    import transformers.models.llama.modeling_llama",
        "from transformers import _LazyModule",
        "import_module(f'transformers.{name}')",
    ],
)
def test_private_imports_of_transformers_are_found(source):
    assert not all(is_public(*each) for each in imported_from_transformers(source))


def test_one_module_reaches_into_transformers():
    """Only one module depends on private names of transformers."""
    for path in sorted((ROOT / "smc").rglob("*.py")):
        if path.name != "transformers_internals.py":
            for module, name in imported_from_transformers(path.read_text(encoding="utf-8")):
                assert is_public(module, name), f"{path.relative_to(ROOT)}: {module} {name}"


VERBS = {"embed", "exceed", "feed", "need", "seed", "tagged", "typed"}
"""Words in -ed that functions may begin with; pydantic names the last two."""
FACTORIES = {
    "arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn",
    "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip


def modules() -> dict[str, Path]:
    """Every module of ours that others import, by its dotted name."""
    found = {}
    for package in ALLOWED:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_functions_are_called_by_verbs():
    """Not by participles: `parse`, not `parsed`. Public names that would break users may stay."""
    listing = (ROOT / "docs/reference/interface.txt").read_text(encoding="utf-8")
    public = set(re.findall(r"(\w+)\(", listing))
    for module, path in modules().items():
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if any("property" in ast.unparse(each) for each in node.decorator_list):
                continue
            word = node.name.strip("_").split("_")[0]
            assert not word.endswith("ed") or word in VERBS or node.name in public, (
                f"expected a verb as the name of a function, got {node.name} in {module}, line "
                f"{node.lineno}; {word} is a participle"
            )


def test_tensors_are_made_on_a_device_that_is_named():
    """`torch.set_default_device` of the caller changes nothing."""
    for module, path in modules().items():
        for node in ast.walk(parsed(path)) if not module.startswith("experiments") else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                named = any(word.arg in ("device", None) for word in node.keywords)
                made = node.func.attr in FACTORIES and ast.unparse(node.func.value) == "torch"
                assert named or not made, f"{module}, line {node.lineno}"


def test_modules_are_small_and_functions_of_experiments_fit_on_a_screen():
    for module, path in modules().items():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 900, f"{module} has {lines} lines: is it one concept?"
        for node in ast.walk(parsed(path)) if module.startswith("experiments") else ():
            if isinstance(node, ast.FunctionDef):
                size = (node.end_lineno or 0) + 1 - node.lineno
                assert size <= 60, f"{module}: {node.name} has {size} lines"


def imported_modules(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of ours that a file imports, inside of functions and for types alone as well."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                yield inside if inside in known else node.module


def layer_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_layers_import_one_way_and_no_module_imports_itself_by_way_of_others():
    known = modules()
    graph = {name: set(imported_modules(path, known)) - {name} for name, path in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import circle: {' <- '.join(error.args[1])}")
    for name, imported in graph.items():
        layer, package = layer_of(name), name.split(".")[0]
        of_package = {other for other in imported if other.split(".")[0] == package}
        for other in of_package if layer in LAYERS else ():
            theirs = layer_of(other)
            assert theirs not in LAYERS or theirs in LAYERS[layer] | {layer}, f"{name}: {other}"


def test_property_tests_have_no_deadline():
    """One profile says so for all; where a test says something else, it is not for all."""
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text("utf-8")
        if "deadline" not in text and "suppress_health_check" not in text:
            continue
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        of_hypothesis = [n for n in calls if ast.unparse(n.func).endswith(("settings", "profile"))]
        words = [word for call in of_hypothesis for word in call.keywords]
        own = [word.lineno for word in words if word.arg in ("deadline", "suppress_health_check")]
        assert not own or path.name == "conftest.py", f"{path.relative_to(ROOT)}, lines {own}"


def test_tests_wait_long_enough_for_a_busy_machine():
    """Only a test that fails waits so long; half a second or less is for what never comes."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        found = re.findall(r"(?:timeout=|\.(?:wait|result)\()(\d[\d.]*)", path.read_text("utf-8"))
        assert all(not 0.5 < float(each) < 600 for each in found), f"{path.relative_to(ROOT)}"
