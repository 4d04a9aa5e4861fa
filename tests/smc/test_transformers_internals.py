"""The non-public names of `transformers` exist in the supported versions."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from pathlib import Path

import pytest
import transformers

from smc._models import transformers_internals as internals

ROOT = Path(__file__).resolve().parents[2]


def minor(version: str) -> tuple[int, int]:
    first, second = version.split(".")[:2]
    return int(first), int(second)


def test_the_installed_version_is_between_those_that_were_tested() -> None:
    oldest, newest = map(minor, internals.TESTED)
    assert oldest <= minor(transformers.__version__) <= newest


def test_the_oldest_version_is_the_bound_in_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = {
        bound
        for extra in project["optional-dependencies"].values()
        for bound in re.findall(r"'transformers>=([\d.]+),<6'", str(extra))
    }
    assert bounds == {internals.TESTED[0]}


def test_a_missing_name_names_the_versions_that_work() -> None:
    oldest, newest = internals.TESTED
    with pytest.raises(
        ImportError,
        match=rf"transformers\.cache_utils\.Gone, .*{oldest} to {newest}",
    ):
        internals.private("cache_utils", "Gone")
    with pytest.raises(ImportError, match=r"expected transformers\.gone\.Gone"):
        internals.private("gone", "Gone")


def test_every_private_name_is_there() -> None:
    calls = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(inspect.getsource(internals)))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "private"
    ]
    assert calls
    for call in calls:
        assert eval(call, vars(internals)) is not None
