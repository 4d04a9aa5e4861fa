"""Compiled code is renewed when what it is made of changes, and only then; users are told once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLEE = """
from gcd.support.compiled import helper

@helper
def number():
    return 1
"""
CALLER = """
from gcd.support.compiled import kernel
from {package}.callee import number

@kernel
def twice(x):
    return x * number()
"""
PROGRAM = """
import gc
import sys
from numba.core import event
compiled = []
class Recorder(event.Listener):
    def on_start(self, event):
        compiled.append(event.data["dispatcher"].py_func.__name__)
        assert not gc.isenabled()
    def on_end(self, event):
        pass
from {package}.caller import twice
event.register("numba:compile", Recorder())
print(twice(int(sys.argv[1])), ",".join(compiled))
assert gc.isenabled()
"""


class Package:
    """A package with a kernel whose callee lies in another file, run by processes of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, "package_of_kernels"
        (folder / self.name).mkdir()
        self.write("__init__", "")
        self.write("callee", CALLEE)
        self.write("caller", CALLER.format(package=self.name))

    def write(self, module: str, source: str) -> None:
        """Write a module; all of them have one date, as after a checkout by some tools."""
        file = self.folder / self.name / f"{module}.py"
        file.write_text(source, encoding="utf-8")
        os.utime(file, (1, 1))

    def run(self, argument: int = 3) -> tuple[str, str]:
        """What the program says, on both streams."""
        root = str(Path(__file__).resolve().parents[3])
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(self.folder), root]),
            "NUMBA_CACHE_DIR": str(self.folder / "compiled"),
            "PYTHONDONTWRITEBYTECODE": "1",  # Python, too, would go by the date
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(package=self.name), str(argument)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip(), done.stderr.strip()


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


def test_a_kernel_is_compiled_again_when_only_its_callee_has_changed(package: Package) -> None:
    said, told = package.run()
    assert said == "3 twice,number"
    assert told.count("compiles its kernels") == 1
    assert len(told.splitlines()) == 1
    (package.folder / package.name / "callee.py").touch()  # dates do not matter
    assert package.run(argument=5) == ("5", "")  # from the file, in silence
    package.write("callee", CALLEE.replace("1", "7"))
    said, told = package.run()
    assert said == "21 twice,number"
    assert len(told.splitlines()) == 1
