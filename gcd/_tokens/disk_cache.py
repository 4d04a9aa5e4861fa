"""Disk cache of arrays, shared by processes.

It stores the prefix trees of vocabularies (`gcd._tokens.trie`), which take long to sort, and the
lifted constraints of requests (`gcd._serving.constraint_cache`).

**Location.** The environment variable `GCD_CACHE_DIR` names the folder. If it is unset, the folder
is the user's cache folder: `$XDG_CACHE_HOME/gcd`, `~/.cache/gcd`, `~/Library/Caches/gcd` or
`%LOCALAPPDATA%\\gcd\\Cache`. An empty `GCD_CACHE_DIR` disables the cache. Vocabularies of fewer
than 10,000 ids are not stored.

**Files** begin with a digest of their name and their content, followed by an npz archive of plain
arrays, never pickles. The name consists of the vocabulary's fingerprint (token bytes and EOS ids)
and the kind of content. The digest is checked before anything is parsed, and readers validate the
arrays before using them. An invalid file is ignored and rewritten. Files are written under a
temporary name and then renamed, so that no process reads an incomplete file. Files in a read-only
folder are used as well. If the files exceed half a gigabyte, the least recently used are deleted.
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
"""Version of the files; increase it whenever the meaning of an array changes."""

FEWEST_IDS = 10_000
"""Ids of the smallest vocabulary that is stored; smaller trees are faster to build than to read."""

_MOST_BYTES = 512 * 2**20
_DIGEST_SIZE = 16

Arrays = Mapping[str, np.ndarray]


def folder() -> Path | None:
    """Return the cache folder, whether it exists or not; None if the cache is disabled."""
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
    # The XDG specification requires that relative paths be ignored.
    return (Path(base) if Path(base).is_absolute() else home / ".cache") / "gcd"


def load(name: str) -> dict[str, np.ndarray] | None:
    """Return the arrays stored under a name; None if there is no such file, or it is damaged."""
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
        os.utime(path)  # mark as most recently used
    with np.load(io.BytesIO(archive), allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def store(name: str, arrays: Arrays) -> None:
    """Store arrays under a name; do nothing if the folder isn't writable."""
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
    """Delete the least recently used files while the cache is too large."""
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
