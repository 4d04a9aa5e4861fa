"""Arrays kept on disk, from one process to the next.

Kept are the prefix tree of a vocabulary's tokens (`gcd.tokens.trie`), whose building is mostly
sorting, and lifted constraints of requests (`gcd.serving.constraint_cache`). Nothing else.

**Where.** The folder in the environment variable `GCD_CACHE_DIR`; without it, the user's cache
folder: `$XDG_CACHE_HOME/gcd`, `~/.cache/gcd`, `~/Library/Caches/gcd`, `%LOCALAPPDATA%\\gcd\\Cache`.
An empty `GCD_CACHE_DIR` keeps nothing. Vocabularies of fewer than 10 000 ids are not worth a file.

**Files** hold an npz archive of plain arrays, never pickles, behind a digest of it and of the
file's name, which is made of the vocabulary's fingerprint (token bytes and EOS ids) and what is
kept. Nothing is parsed before the digest agrees, and the readers check what the arrays must be
like before they use them; a file that fails is ignored and written anew. Files are written under
another name and then renamed, so that nobody reads half of one. A folder that cannot be written is
read all the same. Beyond half a gigabyte the files unused for longest go.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1
"""Version of the files; to be raised whenever the meaning of an array changes."""

FEWEST_IDS = 10_000
"""Smaller vocabularies are read faster than their files."""

_MOST_BYTES = 512 * 2**20
_DIGEST_SIZE = 16

Arrays = Mapping[str, np.ndarray]


def folder() -> Path | None:
    """Return the folder of the files, whether it exists or not; None if nothing is kept."""
    chosen = os.environ.get("GCD_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home folder
        return None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "gcd" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "gcd"
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification asks that relative paths be ignored.
    return (Path(base) if Path(base).is_absolute() else home / ".cache") / "gcd"


def load(name: str) -> dict[str, np.ndarray] | None:
    """Return the arrays kept under a name, as they were stored; None if there is no intact file."""
    path = _path(name)
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, archive = content[:_DIGEST_SIZE], memoryview(content)[_DIGEST_SIZE:]
    if digest != _digest(name, archive):
        return None
    with suppress(OSError):
        os.utime(path)  # used last now
    with np.load(io.BytesIO(archive), allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def store(name: str, arrays: Arrays) -> None:
    """Keep arrays under a name; this does nothing where the folder cannot be written."""
    path = _path(name)
    if path is None:
        return
    archive = io.BytesIO()
    everything: dict[str, Any] = dict(arrays)
    np.savez(archive, **everything)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(name, archive.getbuffer()))
                file.write(archive.getbuffer())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _prune(path)


def _path(name: str) -> Path | None:
    where = folder()
    return None if where is None else where / f"{name}-{FORMAT}.gcd"


def _digest(name: str, archive: memoryview) -> bytes:
    digest = blake2b(f"gcd {FORMAT} {name}\n".encode(), digest_size=_DIGEST_SIZE)
    digest.update(archive)
    return digest.digest()


def _prune(newest: Path) -> None:
    """Remove the files unused for longest while there is too much."""
    files = []
    for path in newest.parent.glob("*.gcd"):
        with suppress(OSError):
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= _MOST_BYTES:
            break
        if path != newest:
            with suppress(OSError):
                path.unlink()
            total -= size
