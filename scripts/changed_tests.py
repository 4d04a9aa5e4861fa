"""Print the tests for the changes relative to a branch, for `make check`.

    python -m scripts.changed_tests main

The tests for a changed file depend on its kind:

* a test file: the file itself;
* a helper of tests: all tests in its folder;
* a module: the test files in the corresponding folder that are named like the module or import it,
  or the whole folder if there is no such file;
* a module of the library: also the tests of its layout and its interface;
* a page or a configuration file: the test files that check it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from scripts.packages import LIBRARY

ROOT = Path(__file__).resolve().parent.parent
CORE = ("tests/test_architecture.py", "tests/hmm/test_inference.py", "tests/smc/test_walk.py",
        "tests/gcd/test_paper.py", "tests/gcd/tokens/test_lifting.py")  # fmt: skip
"""Tests to run if nothing has changed: laws and oracles that take a minute."""
_PAGES = ("tests/test_docs.py", "tests/test_pages.py")
_OF_LIBRARY = ("tests/test_architecture.py", "tests/test_interface.py")
_INTERFACE = "docs/reference/interface.txt"
_CONFIGURED = ("tests/experiments/test_config.py", "tests/experiments/test_experiments.py")


def list_changed(base: str) -> list[str]:
    """Return the files that are new or differ from the common ancestor with a branch."""
    return _git("diff", "--name-only", "--diff-filter=d", "--merge-base", base) + _git(
        "ls-files", "--others", "--exclude-standard"
    )


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout.splitlines()


def tests_of(changed: Iterable[str]) -> list[str]:
    """Return the test files and folders for changed files, each once."""
    found: set[str] = set()
    for name in changed:
        path = Path(name)
        if path.parts[0] == "tests":
            found |= {name} if path.name.startswith("test_") else {path.parent.as_posix()}
        elif path.suffix == ".md":
            found |= {*_PAGES}
        elif path.parts[0] == "configs":
            found |= {*_CONFIGURED}
        elif name == _INTERFACE:
            found |= {*_OF_LIBRARY}
        elif path.suffix in (".py", ".pxd"):
            found |= {*_tests_of_module(path)}
            if path.parts[0] in LIBRARY:
                found |= {*_OF_LIBRARY}
    return sorted(each for each in found if not _is_within(each, found))


def _tests_of_module(path: Path) -> list[str]:
    """Return the tests of a module; none for a package without tests."""
    # Tests mirror the packages without the underscores of private folders.
    parts = [part.lstrip("_") for part in path.with_suffix("").parts if "kernels" not in part]
    folder = ROOT / "tests" / Path(*parts[:-1])
    while not folder.is_dir():
        folder = folder.parent
    if folder == ROOT / "tests":
        return []
    dotted = ".".join(path.with_suffix("").parts)
    package, _, stem = dotted.rpartition(".")
    named = re.compile(rf"\b{re.escape(dotted)}\b|\bfrom {re.escape(package)} import .*\b{stem}\b")
    files = [
        file
        for file in sorted(folder.rglob("test_*.py"))
        if file.stem == f"test_{stem.lstrip('_')}" or named.search(file.read_text("utf-8"))
    ]
    return [file.relative_to(ROOT).as_posix() for file in files or [folder]]


def _is_within(name: str, others: Iterable[str]) -> bool:
    """Return whether a file or folder is inside of one of the others."""
    return any(other in map(str, Path(name).parents) for other in others)


def main() -> int:
    """Print the arguments for pytest."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", nargs="?", default="main", help="the branch to compare with")
    print(*(tests_of(list_changed(parser.parse_args().base)) or CORE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
