"""Compiled code is renewed when what it is made of changes, and only then; users are told once."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from numba.core import config

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


class Kept:
    """A kernel that is loaded anew, as by another process, from files in a folder of its own."""

    _number = itertools.count()

    def __init__(self, folder: Path) -> None:
        self.name = f"kernel_{next(self._number)}"
        self.source = folder / f"{self.name}.py"
        self.compiled = folder / "compiled"
        self.write("x + 2")

    def write(self, formula: str) -> None:
        """Write the kernel's source."""
        kernel = f"@kernel\ndef plus(x):\n    return {formula}\n"
        self.source.write_text(f"from gcd.support.compiled import kernel\n\n{kernel}")
        compiled.source_digest.cache_clear()

    def answers(self) -> tuple[int, bool]:
        """Return what the kernel makes of 40, and whether it was compiled for that."""
        spec = importlib.util.spec_from_file_location(self.name, self.source)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[self.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        answer = module.plus(40)
        return answer, not module.plus.stats.cache_hits

    def files(self) -> list[Path]:
        return sorted(path for path in self.compiled.rglob("*") if path.is_file())


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    one = Kept(tmp_path)
    monkeypatch.setattr(config, "CACHE_DIR", str(one.compiled))
    monkeypatch.setitem(sys.modules, one.name, None)  # to be removed at the end
    compiled.environment.cache_clear()
    return one


@pytest.mark.parametrize("part", ["numba", "llvmlite", "python", "processor"])
def test_two_environments_keep_their_own_files(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    assert kept.answers() == (42, True)
    first = {path: path.read_bytes() for path in kept.files()}
    with monkeypatch.context() as other:
        if part == "processor":
            other.setattr(compiled.llvm, "get_host_cpu_name", lambda: "another")
        elif part == "python":
            other.setattr(sys.implementation, "cache_tag", "another")
        else:
            other.setattr(getattr(compiled, part), "__version__", "0.0.1")
        compiled.environment.cache_clear()
        assert kept.answers() == (42, True)
        assert kept.answers() == (42, False)
    compiled.environment.cache_clear()
    assert {path: path.read_bytes() for path in first} == first
    assert kept.answers() == (42, False)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "noise": lambda content: bytes(255 - byte for byte in content),
    "one bit": lambda content: (
        content[:-500] + bytes([content[-500] ^ 1]) + content[-499:]
        if len(content) > 500
        else content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
    ),
    "a pickle": lambda content: b"cos\nnothing\n.",
}


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_cannot_be_read_is_written_anew(kept: Kept, suffix: str, damage: str) -> None:
    assert kept.answers() == (42, True)
    [path] = [path for path in kept.files() if path.suffix == suffix]
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert kept.answers() == (42, True)
    assert kept.answers() == (42, False)


def test_an_index_that_names_code_of_other_sources_is_not_believed(kept: Kept) -> None:
    """As after an interruption: the index was written, the code is still the old one."""
    assert kept.answers() == (42, True)
    [code] = [path for path in kept.files() if path.suffix == ".nbc"]
    old = code.read_bytes()
    kept.write("x + 3")
    assert kept.answers() == (43, True)
    code.write_bytes(old)
    assert kept.answers() == (43, True)


def test_without_a_folder_for_files_kernels_are_compiled_in_each_process(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only installation, in the hands of a user without a home."""
    for path in (kept.compiled, kept.source.parent / "__pycache__", kept.source.parent / "home"):
        path.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept.source.parent / "home"))
    assert kept.answers() == (42, True)
    assert kept.answers() == (42, True)


def test_a_disk_that_is_full_keeps_nothing_and_fails_nothing(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_data", full)
    assert kept.answers() == (42, True)
    assert kept.answers() == (42, True)


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
    files._py_func, files._enabled = function, True
    assert files.load_overload((), None) == result
