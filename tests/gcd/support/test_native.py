"""Errors for kernels that aren't compiled, are stale, or lack a compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gcd._support import native

ROOT = Path(__file__).resolve().parents[3]


def test_every_folder_of_kernels_is_compiled() -> None:
    folders = [path for name in ("gcd", "hmm", "smc") for path in (ROOT / name).rglob("*kernels")]
    with_kernels = {
        folder.relative_to(ROOT).as_posix()
        for folder in folders
        if any(native.is_kernel(path) for path in folder.glob("*.py"))
    }
    assert with_kernels == set(native.FOLDERS)


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Return a folder whose two sources have been compiled."""
    (tmp_path / "__init__.py").touch()
    (tmp_path / "triton_loops.py").touch()
    (tmp_path / "loops.py").write_text("x = 1\n")
    (tmp_path / "loops.pxd").write_text("cdef int x\n")
    (tmp_path / "loops.py").with_suffix(native.SUFFIX).touch()
    (tmp_path / native.RECORD).write_text(json.dumps(native.digests(tmp_path)))
    native.check_built("some.kernels", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "loops.py").write_text("x = 2\n"), "have changed.*: loops.py;"),
        (lambda folder: (folder / "loops.pxd").write_text(""), "have changed.*: loops.pxd;"),
        (lambda folder: (folder / "more.py").touch(), "aren't compiled for this Python: more.py;"),
        (
            lambda folder: (folder / "loops.py").with_suffix(native.SUFFIX).unlink(),
            "aren't compiled for this Python: loops.py;",
        ),
        (lambda folder: (folder / native.RECORD).unlink(), "have changed"),
    ],
)
def test_kernels_of_other_sources_are_an_error(built: Path, change, said, monkeypatch) -> None:
    change(built)
    with pytest.raises(ImportError, match=said) as caught:
        native.check_built("some.kernels", str(built))
    assert caught.value.name == "some.kernels"
    assert "setup.py build_ext --inplace" in str(caught.value)
    monkeypatch.setenv(native.UNCOMPILED, "1")
    native.check_built("some.kernels", str(built))


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("no-such-compiler", "expected a C compiler, found none; install"),
        ("cc", "expected Python's headers at /nowhere/Python.h, found none"),
    ],
)
def test_missing_parts_of_a_build_are_named(tmp_path: Path, compiler: str, said: str) -> None:
    if compiler != "cc":
        pytest.importorskip("Cython")
        if find_spec("ziglang"):
            pytest.skip("zig is installed, whose compiler would be taken")
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / "gcd" / "_support").mkdir(parents=True)
    shutil.copy(ROOT / "gcd" / "_support" / "native.py", tmp_path / "gcd" / "_support")
    patch = "sysconfig.get_path = lambda name: '/nowhere'; " if compiler == "cc" else ""
    program = (
        f"import runpy, sys, sysconfig; {patch}sys.argv = ['setup.py', 'build_ext', '--inplace']; "
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"CC": compiler},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert said in done.stderr
