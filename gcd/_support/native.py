"""Check that the kernels were compiled from the sources beside them.

The modules of a kernel folder are Python files that Cython compiles when the project is built
(setup.py). The build writes a digest of each source into the folder. Importing the folder's package
compares the digests with the sources. It raises an error if a kernel isn't compiled, or was
compiled from another source.
"""

from __future__ import annotations

import json
import os
import sysconfig
from hashlib import blake2b
from pathlib import Path

FOLDERS = (
    "gcd/_support/kernels",
    "gcd/_automata/kernels",
    "gcd/_tokens/kernels",
    "gcd/_serving/kernels",
    "hmm/_kernels",
    "smc/_vocabulary/kernels",
)
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
"""File name suffix of extension modules, specific to the Python version and the platform."""
RECORD = f"built{SUFFIX.rpartition('.')[0]}.json"
UNCOMPILED = "GCD_UNCOMPILED"
"""Environment variable that runs the kernels in Python, for debuggers; a thousand times slower."""


def is_kernel(path: Path) -> bool:
    """Return whether Cython compiles a file of a kernel folder, unlike files of Triton kernels."""
    return path.stem != "__init__" and not path.stem.startswith("triton")


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of each source file in a folder."""
    return {
        path.name: blake2b(path.read_bytes(), digest_size=16).hexdigest()
        for pattern in ("*.py", "*.pxd")
        for path in sorted(folder.glob(pattern))
        if is_kernel(path)
    }


def check_built(package: str, folder: str) -> None:
    """Raise `ImportError` unless a package's modules were compiled from the sources beside them."""
    if os.environ.get(UNCOMPILED):
        return
    here = Path(folder)
    sources = digests(here)
    record = here / RECORD
    built = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    missing = [
        name
        for name in sources
        if name.endswith(".py") and not (here / name).with_suffix(SUFFIX).is_file()
    ]
    changed = [name for name, digest in sources.items() if built.get(name) != digest]
    if not missing and not changed:
        return
    state = (
        "aren't compiled for this Python" if missing else "have changed since they were compiled"
    )
    raise ImportError(
        f"expected compiled kernels in {package}, but these {state}: "
        f"{', '.join(missing or changed)}; run `python setup.py build_ext --inplace` in a checkout "
        "(`make run` and `make test` do), or `pip install` the package again",
        name=package,
    )
