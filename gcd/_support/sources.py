"""Digests of source code, to recognize cached results of the same code."""

from __future__ import annotations

import re
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path

_IMPORT = re.compile(r"^\s*from (\w+(?:\.\w+)*) import ", re.MULTILINE)


@cache
def source_digest(module: str) -> str:
    """Return a digest of a module's source and of everything that it imports from this project.

    Imports of the form `from ... import` are followed recursively. For a compiled module, the
    Python file beside it is read.
    """
    found: dict[str, bytes] = {}
    waiting = [module]
    top = {module.partition(".")[0], __name__.partition(".")[0]}
    while waiting:
        name = waiting.pop()
        file = getattr(sys.modules.get(name), "__file__", None)
        if name in found or file is None:
            continue
        path = Path(file)
        if path.suffix != ".py":
            path = path.with_name(f"{name.rpartition('.')[2]}.py")
        found[name] = path.read_bytes()
        imported = _IMPORT.findall(found[name].decode())
        waiting += [other for other in imported if other.partition(".")[0] in top]
    digest = blake2b(digest_size=16)
    for name in sorted(found):
        digest.update(f"{name} {len(found[name])}\n".encode() + found[name])
    return digest.hexdigest()
