"""Source digests change exactly with the imported sources."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from gcd._support.sources import source_digest


def test_a_digest_follows_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_of_sources"
    package.mkdir()
    sources = {
        "__init__": "",
        "caller": "import os\n\nif True:\n    from package_of_sources.callee import x\n",
        "callee": "x = 1\n",
        "other": "",
    }
    for name, source in sources.items():
        (package / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for name in sources:
        importlib.import_module(f"package_of_sources.{name}".removesuffix(".__init__"))

    def digest() -> str:
        source_digest.cache_clear()
        return source_digest("package_of_sources.caller")

    first = digest()
    os.utime(package / "callee.py", (1, 1))
    (package / "other.py").write_text("y = 2\n")
    assert digest() == first
    (package / "callee.py").write_text("x = 2\n")
    assert digest() != first
    source_digest.cache_clear()


def test_an_extension_module_counts_by_its_source() -> None:
    from gcd._automata.kernels import canonical

    assert canonical.__file__ is not None
    assert not canonical.__file__.endswith(".py")
    assert source_digest(canonical.__name__)
