"""Draw random prose of the project, to read as a newcomer would.

    python -m scripts.draw_prose --seed 2027

It prints ten docstrings, ten error messages (of `scripts.list_errors`) and ten paragraphs of pages,
each with its file and line. None of them should need a second reading.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from scripts.check_prose import list_files, page_blocks
from scripts.list_errors import ROOT, messages
from scripts.packages import LIBRARY

FEWEST_WORDS = 8  # shorter paragraphs are headings and links

_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(package: str) -> Iterator[str]:
    """Yield the docstrings of a package's modules, classes and functions."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, _DOCUMENTED) or not (text := ast.get_docstring(node)):
                continue
            line = 1 if isinstance(node, ast.Module) else node.lineno
            yield f"{path.relative_to(ROOT)}:{line}\n{text}"


def paragraphs(page: Path) -> Iterator[str]:
    """Yield the paragraphs and list items of a Markdown page."""
    for line, block in page_blocks(page.read_text(encoding="utf-8")):
        text = " ".join(block.content.split())
        if len(text.split()) >= FEWEST_WORDS:
            yield f"{page.absolute().relative_to(ROOT)}:{line}\n{text}"


def errors(package: str) -> Iterator[str]:
    """Yield the error messages of a package; parts of one message are joined by " … "."""
    statements = groupby(messages(package), key=lambda each: (each.place, each.error))
    for (place, error), parts in statements:
        yield f"{place}\n{error}: {' … '.join(each.text for each in parts)}"


def collect() -> dict[str, list[str]]:
    """Return all docstrings, errors and paragraphs of the project, by kind."""
    pages = (path for path in list_files(["README.md", "docs"]) if path.suffix == ".md")
    return {
        "docstrings": [text for package in LIBRARY for text in docstrings(package)],
        "errors": [text for package in LIBRARY for text in errors(package)],
        "paragraphs": [text for page in pages for text in paragraphs(page)],
    }


def draw(texts: dict[str, list[str]], seed: int, count: int = 10) -> dict[str, list[str]]:
    """Draw `count` texts of each kind; the same texts and seed give the same draw."""
    generator = random.Random(seed)
    return {kind: generator.sample(each, count) for kind, each in texts.items()}


def main() -> None:
    """Print the seed and the texts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True, help="seed of the draw")
    seed = parser.parse_args().seed
    print(f"seed {seed}")
    for kind, drawn in draw(collect(), seed).items():
        print(f"\n## {kind}")
        print(*drawn, sep="\n\n")


if __name__ == "__main__":
    main()
