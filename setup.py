"""Build the kernels: each module of a kernel folder becomes an extension module.

Everything else about the package is in pyproject.toml. In a checkout, `make run` and `make test`
compile what has changed; so does `python setup.py build_ext --inplace`.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Not imported: the package needs what isn't installed yet.
NATIVE = runpy.run_path("gcd/_support/native.py")
FOLDERS, RECORD, digests, is_kernel = (
    NATIVE[name] for name in ("FOLDERS", "RECORD", "digests", "is_kernel")
)

SHARED = "gcd._support.kernels._shared"  # Cython's own code for memoryviews, compiled once
# Without contractions sums are the same numbers on every processor.
FLAGS = ["-O3", "-g0", "-ffp-contract=off"]
DIRECTIVES = {
    "language_level": "3",
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "infer_types": True,
}


class Build(build_ext):
    """Build the extension modules, and record which sources they were built from."""

    def finalize_options(self) -> None:
        """Translate the kernels to C, except for metadata and source distributions."""
        if {"dist_info", "egg_info", "sdist"} & {*sys.argv}:
            super().finalize_options()
            return
        choose_compiler()
        from Cython.Build import cythonize

        self.distribution.ext_modules = cythonize(
            self.distribution.ext_modules,
            build_dir="build/cython",
            compiler_directives=DIRECTIVES,
            nthreads=os.cpu_count() or 1,
            shared_utility_qualified_name=SHARED,
        )
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        """Compile everything that has changed."""
        super().run()
        root = Path() if self.inplace or self.editable_mode else Path(self.build_lib)
        for folder in FOLDERS:
            record = root / folder / RECORD
            record.write_text(json.dumps(digests(Path(folder)), indent=1) + "\n", encoding="utf-8")


def has_compiler() -> bool:
    """Return whether the C compiler is there that Python was built with, or that `CC` names."""
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(named.split()[0]) is not None


def choose_compiler() -> None:
    """Check what compiling needs; take zig's C compiler where there is no other.

    Raises:
        SystemExit: no compiler, or no headers of Python.
    """
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not headers.is_file():
        raise SystemExit(
            f"expected Python's headers at {headers}, found none; install them (Debian, Ubuntu: "
            "python3-dev; Fedora: python3-devel), or use a Python that has them"
        )
    if has_compiler():
        return
    try:
        import ziglang  # noqa: F401
    except ImportError:
        raise SystemExit(
            "expected a C compiler, found none; install one (Debian, Ubuntu: gcc), or "
            "`pip install ziglang`, which brings one"
        ) from None
    os.environ["CC"] = f"{sys.executable} -m ziglang cc"
    os.environ["LDSHARED"] = f"{os.environ['CC']} -shared"


def extensions() -> list[Extension]:
    """Return an extension for each module with kernels."""
    kernels = [
        Extension(".".join(path.with_suffix("").parts), [str(path)], extra_compile_args=FLAGS)
        for folder in FOLDERS
        for path in sorted(Path(folder).glob("*.py"))
        if is_kernel(path)
    ]
    return [Extension(SHARED, [], extra_compile_args=FLAGS), *kernels]


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": Build},
    # pip asks with this command what a build needs, and installs that for the build alone.
    setup_requires=["ziglang"] if "egg_info" in sys.argv and not has_compiler() else [],
)
