"""Print the lines of Python by package, with code and prose (docstrings and comments) apart.

python -m scripts.lines           # of the working tree
python -m scripts.lines COMMIT    # of a commit
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def count(text: str) -> Counter[str]:
    """Count the lines of a file by kind: code, prose and blank."""
    lines = text.splitlines()
    prose = {number for number, line in enumerate(lines, 1) if line.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose |= {*range(node.lineno, (node.end_lineno or 0) + 1)}
    kinds = ("prose" if n in prose else "code" if line.strip() else "blank"
             for n, line in enumerate(lines, 1))  # fmt: skip
    return Counter(kinds)


def read(commit: str | None) -> dict[str, str]:
    """Return the text of each Python file of a commit or, if None, of the working tree."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout

    if commit is None:
        names = git("ls-files", "*.py").decode().splitlines()
        paths = [(name, ROOT / name) for name in names]
        return {name: path.read_text(encoding="utf-8") for name, path in paths if path.exists()}
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as files:
        members = [each for each in files if each.isfile() and each.name.endswith(".py")]
        return {each.name: files.extractfile(each).read().decode() for each in members}  # type: ignore[union-attr]


def main(commit: str | None = None) -> None:
    """Print a row for each top-level folder, and one for all of them."""
    rows: dict[str, Counter[str]] = {}
    for name, text in read(commit).items():
        room = name.split("/")[0] if "/" in name else "."
        for each in (room, "all"):
            rows.setdefault(each, Counter()).update(count(text))
    print(f"{'':12}{'code':>8}{'prose':>8}{'blank':>8}{'lines':>8}")
    for room, found in sorted(rows.items(), key=lambda row: (row[0] == "all", row[0])):
        kinds = [found["code"], found["prose"], found["blank"], found.total()]
        print(f"{room:12}" + "".join(f"{number:8,}" for number in kinds))


if __name__ == "__main__":
    main(*sys.argv[1:2])
