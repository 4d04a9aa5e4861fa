"""Compiled code is renewed when what it is made of changes, and only then; users are told once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gcd.support import compiled

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


def in_the_automata() -> None:
    """A function of a module whose kernels this process compiles itself."""


def in_the_tokens() -> None:
    """A function of a module whose kernels the second process sees to."""


in_the_automata.__module__ = "gcd.automata.kernels.graph"
in_the_tokens.__module__ = "gcd.tokens.kernels.lifting"


class Process:
    """A second process that is at work for so many looks."""

    looks = 2
    terminate = staticmethod(lambda: None)

    def __init__(self, command: list[str], **options: object) -> None:
        self.command = command

    def wait(self, timeout: float) -> None:
        self.looks -= 1

    def poll(self) -> int | None:
        return None if self.looks > 0 else 0


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> compiled._Second:
    monkeypatch.setattr(compiled.subprocess, "Popen", Process)
    monkeypatch.setattr(compiled.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(compiled.multiprocessing, "parent_process", lambda: None)
    for name in compiled._Second._ALONE:
        monkeypatch.delenv(name, raising=False)
    one = compiled._Second()
    monkeypatch.setattr(compiled, "_second", one)
    return one


def test_a_second_process_is_started_for_kernels_of_automata(second: compiled._Second) -> None:
    second.start(in_the_tokens)
    assert second.process is None  # this process is where the second one would begin
    second.start(in_the_automata)
    assert second.process.command[-1] == "gcd.warm_up"


@pytest.mark.parametrize("name", compiled._Second._ALONE)
def test_none_is_started_where_others_do_the_same(
    second: compiled._Second, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    second.start(in_the_automata)
    assert second.process is None


def test_none_is_started_on_one_processor(
    second: compiled._Second, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled.os, "cpu_count", lambda: 1)
    second.start(in_the_automata)
    assert second.process is None


@pytest.mark.parametrize(
    ("found_after", "function", "result"),
    [(1, in_the_tokens, "code"), (9, in_the_tokens, None), (1, in_the_automata, None)],
)
def test_what_the_second_process_compiles_is_waited_for(
    second: compiled._Second,
    monkeypatch: pytest.MonkeyPatch,
    found_after: int,
    function: Callable[[], None],
    result: str | None,
) -> None:
    """Found while it is at work; not found until it ends; not its business."""
    second.start(in_the_automata)
    answers = iter([None] * found_after + ["code"] * 9)
    monkeypatch.setattr(compiled.FunctionCache, "load_overload", lambda *_: next(answers))
    files = object.__new__(compiled._Files)
    files._py_func = function
    assert files.load_overload((), None) == result
