"""This module has kernels: functions that numba compiles at their first call, and keeps on disk.

A function marked `kernel` is called from Python, one marked `helper` by kernels alone. A helper has
no entry from Python and no file of its own, which is a third of what it would cost to compile.

**One type.** A kernel is compiled once for every combination of argument types it meets, and so is
what it calls, even for types that a variable has only until inference has seen the whole loop: a
plain `0` is a type of its own. Such a second compilation costs as much as the first and gives
nothing; hence `np.int64(0)` where a count begins and is then handed on.

**Renewal.** numba takes compiled code from its file when the source file of the function has the
old date, whatever has become of functions in other files that it calls. Here the file is good for
the *content* of the function's module and of the modules that this one imports by
`from ... import`, to any depth; dates do not matter, and neither does where the code was compiled.

**Where.** In the folder that numba chooses: `NUMBA_CACHE_DIR`, else `__pycache__` beside the
source, else, where an installation is read-only, the user's cache folder; without any, each process
compiles for itself. In it each choice of numba, llvmlite, Python and processor has a folder of its
own, as none of them can read, or may overwrite, what another one wrote. A file that is damaged, or
of other sources, is a miss: the kernel is compiled, and the file written again.

The first time that something must be compiled, a line on the log (`gcd`) says so, since all of it
takes long enough to be taken for a hang, and a second process helps (`_Second`).
"""

from __future__ import annotations

import atexit
import gc
import logging
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import llvmlite
import numba
from llvmlite import binding as llvm
from numba.core import event
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps

_Function = TypeVar("_Function", bound=Callable[..., Any])

_IMPORT = re.compile(r"^from (\w+(?:\.\w+)*) import ", re.MULTILINE)


def kernel(function: _Function | None = None, **options: Any) -> Any:
    """Mark a function to be compiled without the interpreter (`numba.njit`), and kept on disk.

    Args:
        function: what to compile; without it, a decorator with these options is returned.
        options: for `numba.njit`.
    """
    if function is None:
        return partial(kernel, **options)
    compiled: Any = numba.njit(**{"no_cfunc_wrapper": True, **options})(function)
    if hasattr(compiled, "enable_caching"):  # not with NUMBA_DISABLE_JIT
        compiled._cache = _Files(function)
    return compiled


def helper(function: _Function | None = None, **options: Any) -> Any:
    """Mark a function that only kernels call; Python cannot, once it is compiled."""
    if function is None:
        return partial(helper, **options)
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options}
    return numba.njit(**options)(function)


@cache
def source_digest(module: str) -> str:
    """Return a digest of a module's source and of all that it imports, at any depth, from its own
    package and others of this project; modules outside of it are told apart by numba's version.
    """
    found: dict[str, bytes] = {}
    waiting = [module]
    top = {module.partition(".")[0], __name__.partition(".")[0]}
    while waiting:
        name = waiting.pop()
        file = getattr(sys.modules.get(name), "__file__", None)
        if name in found or file is None:
            continue
        found[name] = Path(file).read_bytes()
        imported = _IMPORT.findall(found[name].decode())
        waiting += [other for other in imported if other.partition(".")[0] in top]
    digest = blake2b(digest_size=16)
    for name in sorted(found):
        digest.update(f"{name} {len(found[name])}\n".encode() + found[name])
    return digest.hexdigest()


@cache
def environment() -> str:
    """Return the name of the folder for files of this numba, llvmlite, Python and processor."""
    model = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    processor = blake2b(model.encode(), digest_size=4).hexdigest()
    versions = f"numba-{numba.__version__}-llvmlite-{llvmlite.__version__}"
    return f"{versions}-{sys.implementation.cache_tag}-{processor}"


class _Contents(CompileResultCacheImpl):
    """numba's files of one function, dated by what the sources say.

    The index is written before the code that it names, so that after an interruption it may name
    what was compiled of other sources; hence code comes with a digest of itself and the sources.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._digest = digest = source_digest(function.__module__)
        folder = os.path.join(self.locator.get_cache_path(), environment())
        self.locator.get_source_stamp = lambda: digest
        self.locator.get_cache_path = lambda: folder

    def reduce(self, data: Any) -> tuple[bytes, bytes]:
        """Return a digest, and the compiled code as bytes."""
        code = dumps(super().reduce(data))
        return self._seal(code), code

    def rebuild(self, target_context: Any, reduced_data: tuple[bytes, bytes]) -> Any:
        """Return the compiled code; None, if it is damaged or of other sources."""
        seal, code = reduced_data
        if seal != self._seal(code):
            return None
        return super().rebuild(target_context, pickle.loads(code))

    def _seal(self, code: bytes) -> bytes:
        return blake2b(code, key=self._digest.encode(), digest_size=16).digest()


class _Files(FunctionCache):
    """Where a kernel's compiled code is kept; nowhere, if no folder can be written."""

    _impl_class = _Contents

    def __init__(self, function: Callable[..., Any]) -> None:
        self._py_func, self._enabled, self._cache_path = function, False, None
        with suppress(RuntimeError):  # numba's, for want of a folder
            super().__init__(function)

    @property
    def is_kept(self) -> bool:
        """Whether there is a folder for files."""
        return bool(self._enabled)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code for these types; None, if there is none and none is being made."""
        loaded = self._load(sig, target_context)
        while loaded is None and self.is_kept and _second.is_compiling(self._py_func):
            with suppress(subprocess.TimeoutExpired):
                _second.process.wait(0.02)
            loaded = self._load(sig, target_context)
        return loaded

    def _load(self, sig: Any, target_context: Any) -> Any:
        """The compiled code for these types; None, if no file has it or it cannot be read."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # damaged pickles fail in every way there is
            with suppress(OSError):
                self.flush()  # an index that cannot be read could not be added to either
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled code for these types, where there is room for it."""
        with suppress(OSError):
            super().save_overload(sig, data)


class _Second:
    """A process that compiles the kernels of tokens while this one compiles those of automata.

    Started by the first process that has to compile a kernel of automata, where there is a second
    processor and no other process of one's own that is likely to do the same.
    """

    process: Any = None
    _PARTS = ("gcd.tokens.", "gcd.serving.")
    _ALONE = ("GCD_WARM_UP", "PYTEST_XDIST_WORKER", "LOCAL_RANK")  # in the environment

    def start(self, function: Callable[..., Any]) -> None:
        """Start it if that is worth it, seeing which function must be compiled first."""
        if (
            not function.__module__.startswith("gcd.automata.")
            or (os.cpu_count() or 1) < 2
            or not sys.executable
            or multiprocessing.parent_process() is not None
            or any(name in os.environ for name in self._ALONE)
        ):
            return
        # Found as here, but for the working directory, where anything may lie.
        here = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([entry for entry in sys.path if entry] + [here])
        with suppress(OSError):
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gcd.warm_up"],
                env=os.environ | {"GCD_WARM_UP": "1", "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            atexit.register(self.process.terminate)

    def is_compiling(self, function: Callable[..., Any]) -> bool:
        """Whether it is at work, and this function is among those it sees to."""
        return (
            self.process is not None
            and function.__module__.startswith(self._PARTS)
            and self.process.poll() is None
        )


_second = _Second()


class _Compiling(event.Listener):
    """What goes with compiling a kernel: a word to the user, and no garbage collection meanwhile.

    The compiler makes and drops objects by the hundred thousand, and each full collection looks at
    all modules that are loaded, too: together a sixth of the time. Compilation is under numba's own
    lock, so one is counted at a time, with those inside of it.
    """

    def __init__(self) -> None:
        self.has_told = False
        self.depth = 0
        self.collects = False

    def on_start(self, event: Any) -> None:
        files = event.data["dispatcher"]._cache
        if self.depth == 0 and not isinstance(files, _Files):
            return
        if not self.has_told:
            self.has_told = True
            often = (
                "for this machine, once"
                if files.is_kept
                else "in every process (set NUMBA_CACHE_DIR to a folder that can be written)"
            )
            logging.getLogger("gcd").warning(
                f"gcd compiles its kernels {often}; it may take half a minute"
            )
            if files.is_kept:
                _second.start(event.data["dispatcher"].py_func)
        if self.depth == 0:
            self.collects = gc.isenabled()
            gc.disable()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        if self.depth > 0:
            self.depth -= 1
            if self.depth == 0 and self.collects:
                gc.enable()


event.register("numba:compile", _Compiling())
