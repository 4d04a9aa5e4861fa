"""Contents of an installation: the library, and nothing that belongs to the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import gcd
from gcd._support.native import FOLDERS, RECORD, SUFFIX

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ("gcd", "hmm", "smc", "gcd_cli", "gcd_vllm")
KERNELS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob(f"*{SUFFIX}"))


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Return a copy of the source to build from, because a build leaves files in its source.

    The kernels are those of the checkout: to compile them again takes a minute.
    """
    source = tmp_path_factory.mktemp("source")
    platform = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for path in KERNELS:
        kernel = source / "build" / platform / path.relative_to(ROOT)
        kernel.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, kernel)
    if (ROOT / "build" / "cython").is_dir():
        shutil.copytree(ROOT / "build" / "cython", source / "build" / "cython")
    nothing = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "built.*.json")
    for name in (*LIBRARY, "experiments", "configs", "scripts", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, ignore=nothing)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    return source


def build(kind: str, source: Path) -> None:
    code = f"import setuptools.build_meta as backend; backend.build_{kind}('.')"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(source: Path) -> list[str]:
    """Return the names of the files in a wheel."""
    build("wheel", source)
    [path] = source.glob("*.whl")
    return zipfile.ZipFile(path).namelist()


def test_a_wheel_installs_only_the_library(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(LIBRARY)


@pytest.mark.parametrize("package", LIBRARY)
def test_a_wheel_has_every_module_and_is_marked_as_typed(wheel, package):
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")}
    found = {name for name in wheel if name.startswith(f"{package}/")}
    kernels = {
        str(path.relative_to(ROOT)) for path in KERNELS if path.is_relative_to(ROOT / package)
    }
    records = {f"{folder}/{RECORD}" for folder in FOLDERS if folder.startswith(f"{package}/")}
    assert found == modules | kernels | records | {f"{package}/py.typed"}


def test_a_source_distribution_has_what_the_kernels_are_built_from(source):
    build("sdist", source)
    [path] = source.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for package in LIBRARY:
        for suffix in ("*.py", "*.pxd"):
            found = {str(each.relative_to(ROOT)) for each in (ROOT / package).rglob(suffix)}
            assert found <= names
    assert {"setup.py", "pyproject.toml", "LICENSE"} <= names
    assert not [name for name in names if name.startswith(("tests", "build/"))]


def test_the_version_is_that_of_the_installation():
    assert gcd.__version__ == version("globally-constrained-decoding")
    with pytest.raises(AttributeError, match="no attribute '__versions__'"):
        gcd.__versions__  # noqa: B018
