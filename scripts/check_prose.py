"""Check the English of pages, docstrings, comments, error messages and option help.

    python -m scripts.check_prose                       # every tracked or new file
    python -m scripts.check_prose gcd/ docs/tutorial.md # these files and folders

The patterns are the ones that a native reader stumbles over most: statements that open with What,
Who, How or Whether, a few foreign idioms, and sentences of more than 35 words. Tables and code are
skipped. Each finding is printed as `file:line: hint: text`, and any finding is a failure.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

MOST_WORDS = 35
SUFFIXES = (".md", ".py")

OPENING = re.compile(r"(What|Who|How(?! to\b)|Whether)\b")
PHRASES = {
    r"(?<!\bthere )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|fewer\b)(?=\w)": (
        'negate the verb: "is not an error", not "is no error"'
    ),
    (  # "one of which" is good English
        r"(?<!\b(?:one|two|all) )(?<!\b(?:each|half|last) )(?<!\bfirst )(?<!\bsecond )"
        r"(?<!th )(?<!\d )\bof (?:which|whom)\b"
    ): 'use a relative clause or a participle instead of "of which"',
    r"(?<!\bnone )(?<!thing )\bof (?:its|their|your|our|his|her|one's) own\b": (
        'put "its own" before the noun: "its own cache", not "a cache of its own"'
    ),
    r"\b(?:lets?|letting) in\b": 'use "accepts" or "admits" instead of "lets in"',
    r"\bthat which\b": 'name the thing instead of "that which"',
    r"\bwaits of\b": 'use "host synchronizations" instead of "waits of"',
    r"\b(?:pays(?! off\b)|lodges|wishes|seats)\b": (
        "don't personify: state the cost or the requirement"
    ),
}
"""Regular expressions of idioms to avoid, with a hint for each."""
_COMPILED = [(re.compile(each, re.IGNORECASE), hint) for each, hint in PHRASES.items()]

_SECTIONS = {"Args:", "Attributes:", "Note:", "Notes:", "Raises:", "Returns:", "Yields:"}
_BULLET = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_FIELD = re.compile(r"\s*\*{0,2}\w+(?:, \*{0,2}\w+)*(?: \([^)]*\))?:\s+")
_DIRECTIVE = re.compile(
    r"#\s*(?:!|noqa\b|type:|fmt:|ruff:|mypy:|cython:|distutils:|pragma\b|coding[:=]|isort:|-{3,})"
)
_NOT_AN_END = re.compile(
    r"(?:\b(?:e\.g|i\.e|al|Fig|Eq|eq|vs|cf|pp?|No|St|approx|resp)|\b(?!X)[A-Z])\.$"
)
_MASKED = [  # what counts as one word, and what isn't read at all
    (re.compile(r"(`+).+?\1|\$[^$\n]+\$|<?https?://[^\s>)]+>?"), "X"),
    (re.compile(r"(?<=\])\([^()]*(?:\([^()]*\)[^()]*)*\)|<!--.*?-->|\{\w+\}(?=X)"), " "),
    (re.compile(r"[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}(?=[\s.,;:!?)]|$)|[\[\]]"), " "),
]


class Line(NamedTuple):
    """One line of prose and its number in the file."""

    number: int
    text: str


class Finding(NamedTuple):
    """A place in a file that has to be rewritten."""

    path: str
    line: int
    hint: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.hint}: {self.text}"


def check(path: Path) -> list[Finding]:
    """Return the findings in a Markdown or Python file, in the order of their lines."""
    source = path.read_text(encoding="utf-8")
    blocks = python_blocks(source) if path.suffix == ".py" else markdown_blocks(source.splitlines())
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
    return sorted(Finding(name, *found) for block in blocks for found in check_block(block))


def check_block(block: list[Line]) -> Iterator[tuple[int, str, str]]:
    """Yield line, hint and text of what one paragraph, heading, list item or comment violates."""
    text, numbers = "", list[int]()
    for line in block:
        stripped = line.text.strip() + " "
        text += stripped
        numbers += [line.number] * len(stripped)
    original = text
    for pattern, filler in _MASKED:
        for masked in pattern.finditer(text):
            text = text[: masked.start()] + filler * len(masked[0]) + text[masked.end() :]
    for start, end in _sentences(text):
        sentence = text[start:end]
        if (match := OPENING.match(sentence)) and "?" not in sentence[-3:]:
            hint = f'open with a verb or a noun, not with "{match[1]}"'
            yield numbers[start], hint, _excerpt(original[start:end])
        for pattern, hint in _COMPILED:
            for match in pattern.finditer(sentence):
                at = start + match.start()
                yield numbers[at], hint, _excerpt(original[max(start, at - 20) : end])
        words = sum(any(c.isalnum() for c in word) for word in sentence.split())
        if words > MOST_WORDS:
            hint = f"split this sentence of {words} words (at most {MOST_WORDS})"
            yield numbers[start], hint, _excerpt(original[start:end])


def _excerpt(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 70 else text[:67] + "..."


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each sentence starts and ends."""
    start = 0
    for match in re.finditer(r"[.!?:]['\")]*\s+(?=[\"'(]*[A-Z0-9])", text):
        colon = match[0][0] == ":"
        until = match.start() + 1
        if _NOT_AN_END.search(text[start:until]) or (colon and text[match.end()] == "X"):
            continue
        yield _trim(text, start, match.end())
        start = match.end()
    if text[start:].strip():
        yield _trim(text, start, len(text))


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while end > start and text[end - 1].isspace():
        end -= 1
    while start < end and not text[start].isalnum():
        start += 1
    return start, end


def markdown_blocks(lines: list[str], first: int = 1) -> Iterator[list[Line]]:
    """Yield paragraphs, headings and list items of a page; skip tables, code and front matter."""
    fence = ""
    block: list[Line] = []
    in_list = False
    skip_to = lines.index("---", 1) + 1 if lines[:1] == ["---"] and "---" in lines[1:] else 0
    for number, line in enumerate(lines[skip_to:], first + skip_to):
        stripped = line.strip()
        opened = re.match(r"(`{3,}|~{3,}|:{3,})", stripped)
        if fence or opened:
            if not fence and opened:
                fence = opened[1]
                yield from _take(block)
            elif stripped.startswith(fence):
                fence = ""
            continue
        if not stripped or stripped[0] in "|<" or re.fullmatch(r"[-=*_ :|]+", stripped):
            yield from _take(block)
            in_list = in_list and not stripped
        elif line.startswith("    ") and not block and not (in_list and _BULLET.match(line)):
            continue  # indented code
        elif stripped.startswith("#"):
            yield from _take(block)
            yield [Line(number, stripped.lstrip("# "))]
            in_list = False
        elif bullet := _BULLET.match(line):
            yield from _take(block)
            block.append(Line(number, line[bullet.end() :]))
            in_list = True
        else:
            in_list = in_list and line[0] == " "
            block.append(Line(number, stripped.lstrip("> ")))
    yield from _take(block)


def _take(block: list[Line]) -> Iterator[list[Line]]:
    """Yield a copy of the collected lines, if there are any, and clear the list."""
    if block:
        yield [*block]
        block.clear()


def python_blocks(source: str) -> Iterator[list[Line]]:
    """Yield paragraphs of docstrings, comments, and texts of errors and of option help."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield from docstring_blocks(text.splitlines(), node.lineno)
            case ast.Raise(exc=ast.expr() as raised):
                yield from _texts(raised)
            case ast.keyword(arg="help", value=value):
                yield from _texts(value)
    yield from _comments(source)


def _texts(node: ast.expr) -> Iterator[list[Line]]:
    """Yield the string literals of an expression; a formatted value counts as one word."""
    if isinstance(node, ast.JoinedStr):
        parts = [p.value if isinstance(p, ast.Constant) else "X" for p in node.values]
        yield [Line(node.lineno, "".join(map(str, parts)).replace("\n", " "))]
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield [Line(node.lineno, node.value.replace("\n", " "))]
    else:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _texts(child)


def docstring_blocks(lines: list[str], first: int) -> Iterator[list[Line]]:
    """Yield paragraphs and field descriptions of a docstring, without indented code."""
    margins = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    margin = min(margins, default=0)
    block: list[Line] = []
    section, code = False, "    "
    for number, line in enumerate(lines, first):
        text = line if number == first else line[margin:]
        stripped = text.strip()
        if not stripped or stripped[0] == "|" or not re.search(r"\w", stripped):
            yield from _take(block)
        elif stripped in _SECTIONS or stripped == "Examples:":
            yield from _take(block)
            section = stripped in _SECTIONS
            code = "    " if section else " "
        elif text.startswith(code) and not section and not block:
            continue
        elif begin := (_FIELD if section and text[4:5] != " " else _BULLET).match(text):
            yield from _take(block)
            block.append(Line(number, text[begin.end() :]))
        else:
            section = section and text[0] == " "
            block.append(Line(number, stripped))
    yield from _take(block)


def _comments(source: str) -> Iterator[list[Line]]:
    """Yield each comment; comments on consecutive lines of one column are one."""
    block: list[Line] = []
    column = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        row, start = token.start
        directive = bool(_DIRECTIVE.match(token.string))
        if block and (directive or start != column or row != block[-1].number + 1):
            yield from _take(block)
        text = token.string.lstrip("#: ")
        if not directive and text:
            block.append(Line(row, text))
            column = start
    yield from _take(block)


def files(named: Iterable[str]) -> list[Path]:
    """Return the pages and modules among tracked and new files; all of them if none is named."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *named]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    paths = (Path(name).resolve() for name in listed.splitlines())
    return sorted({path for path in paths if path.suffix in SUFFIXES and path.is_file()})


def main(arguments: list[str] | None = None) -> int:
    """Print the findings; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", help="files and folders; everything if none is given")
    given = parser.parse_args(arguments)
    found = [each for path in files(given.paths or [str(ROOT)]) for each in check(path)]
    for each in found:
        print(each)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
