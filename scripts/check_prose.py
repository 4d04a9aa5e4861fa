"""Check the English of pages, docstrings, comments, error messages and option help.

    python -m scripts.check_prose [PATH ...]     # by default every tracked or new file

The patterns are those that a native reader stumbles over most: statements that open with What, Who,
How or Whether, some foreign idioms, and sentences of more than 35 words. Errors, except for those
that tests imitate, also begin with a small letter and end without a period. Tables and code are
skipped. Each finding is printed as `file:line: hint: text`, and any finding is a failure.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

MOST_WORDS = 35
PHRASES = {
    r"(?<!there )\b(is|are|was|were) no (?!(longer|more|less|fewer)\b)(?=\w)": "negate the verb",
    # "one of which" is good English.
    r"(?<!(one|two|all) )(?<!(each|half|last) )(?<!first )(?<!second )(?<!th )(?<!\d )"
    r"\bof (which|whom)\b": 'use a relative clause instead of "of which"',
    r"(?<!none )(?<!thing )\bof (its|their|your|our|his|her|one's) own\b": 'put "its own" first',
    r"\b(lets?|letting) in\b": 'use "accepts" or "admits" instead of "lets in"',
    r"\bthat which\b": 'name the thing instead of "that which"',
    r"\bwaits of\b": 'use "host synchronizations" instead of "waits of"',
    r"\b(pays(?! off\b)|lodges|wishes|seats)\b": "don't personify: state the cost or requirement",
}
"""Regular expressions of idioms to avoid, with a hint for each."""
MESSAGES = {
    r"^[A-Z][a-z]+ ": "begin an error with a lower-case letter, a name or a value",
    r"^\s*$|  | $": "separate the words of an error by single spaces",
    r"\.$": "end an error without a period",
    r"^(.{8,})\1": "say it once",
}
"""The same for the texts of raised errors."""
_SECTIONS = {"Args:", "Attributes:", "Notes:", "Raises:", "Returns:", "Yields:", "Examples:"}
_FIELD = re.compile(r"^\*{0,2}\w+(?:, \*{0,2}\w+)*(?: \([^)]*\))?:\s+")
_DIRECTIVE = re.compile(r"#\s*(!|noqa\b|type:|fmt:|ruff:|mypy:|cython:|distutils:|pragma\b|-{3,})")
_NOT_AN_END = re.compile(r"(\b(e\.g|i\.e|al|[Ff]ig|[Ee]q|vs|cf|pp?|No|St|resp)|\b[A-WYZ])\.$")
_MARKDOWN = MarkdownIt("commonmark").enable("table")


def check(source: str, is_python: bool = False) -> list[tuple[int, str, str]]:
    """Return line, hint and text of each finding in a Markdown page or a Python module."""
    blocks = _python_blocks(source) if is_python else _texts_of_page(source)
    found = [each for line, text in blocks for each in check_block(line, text)]
    return sorted([*found, *(_check_messages(source) if is_python else ())])


def _check_messages(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the findings in the texts of raised errors; a formatted value is X."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            given = (a for a in node.exc.args if isinstance(a, ast.JoinedStr | ast.Constant))
            for text in (text for each in given for text in _texts(each)):
                wrong = (hint for pattern, hint in MESSAGES.items() if re.search(pattern, text))
                yield from ((node.lineno, hint, text[:70]) for hint in wrong)


def check_block(line: int, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the findings in one paragraph, heading, list item, comment or message."""
    start = 0
    for end in re.finditer(r"[.!?:]['\")]*\s+(?=[\"'(]*[A-Z0-9])|\Z", text):
        is_before_code = end[0].startswith(":") and text.startswith("X", end.end())
        if is_before_code or _NOT_AN_END.search(text[start : end.start() + 1]):
            continue
        sentence = text[start : end.end()].strip()
        at, start = line + text[:start].count("\n"), end.end()
        hints = []
        opening = re.match(r"\W*(What|Who|How(?! to\b)|Whether)\b", sentence)
        if opening and "?" not in sentence[-3:]:
            hints.append((0, f'open with a verb or a noun, not with "{opening[1]}"'))
        for pattern, hint in PHRASES.items():
            for match in re.finditer(pattern.replace(" ", r"\s"), sentence, re.IGNORECASE):
                hints.append((sentence[: match.start()].count("\n"), hint))
        words = sum(any(c.isalnum() for c in word) for word in sentence.split())
        if words > MOST_WORDS:
            hints.append((0, f"split this sentence of {words} words (at most {MOST_WORDS})"))
        shown = " ".join(sentence.split())[:70]
        yield from ((at + below, hint, shown) for below, hint in hints)


def _texts_of_page(source: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """Yield the line and plain text of each block, without tables, code and front matter."""
    source = re.sub(
        r"\A---\n.*?^---$", lambda m: "\n" * m[0].count("\n"), source, flags=re.S | re.M
    )
    source = re.sub(r"^\s*:::.*$", "", source, flags=re.M)
    for before, token in pairwise(_MARKDOWN.parse(source)):
        if token.type == "inline" and token.map and before.type not in ("th_open", "td_open"):
            yield first + token.map[0], _plain(token)


def _plain(inline: Token) -> str:
    """Return text without markup; code, mathematics and addresses count as one word, X."""
    texts = {"softbreak": "\n", "hardbreak": "\n", "code_inline": "X"}
    kept = [texts.get(t.type, t.content if t.type == "text" else "") for t in inline.children or ()]
    return re.sub(r"\$[^$\n]+\$|https?://\S+|\{\w+\}(?=X)", "X", "".join(kept))


def _python_blocks(source: str) -> Iterator[tuple[int, str]]:
    """Yield blocks of docstrings, comments, and texts of errors and of option help."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield from _texts_of_page(_as_page(text), node.lineno)
            case ast.Raise(exc=ast.expr() as value) | ast.keyword(arg="help", value=value):
                yield from ((value.lineno, text) for text in _texts(value))
    comments = [t for t in tokenize.generate_tokens(io.StringIO(source).readline)
                if t.type == tokenize.COMMENT and not _DIRECTIVE.match(t.string)]  # fmt: skip
    # Comments on consecutive lines of one column are one.
    numbered = enumerate(comments)
    for _, group in groupby(numbered, lambda n: (n[1].start[0] - n[0], n[1].start[1])):
        block = [token for _, token in group]
        (inline,) = _MARKDOWN.parseInline("\n".join(t.string.lstrip("#: ") for t in block))
        yield block[0].start[0], _plain(inline)


def _as_page(docstring: str) -> str:
    """Return a docstring as Markdown of as many lines: fields are list items, examples are gone."""
    lines, section = [], ""
    for line in inspect.cleandoc(docstring).splitlines():
        if line[:1] not in ("", " "):
            section = line if line in _SECTIONS else ""
        if section:
            line = "" if section in (line, "Examples:") else _FIELD.sub("- ", line[4:])
        lines.append(line)
    return "\n".join(lines)


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the string literals of an expression; a formatted value counts as one word."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
    elif isinstance(node, ast.Constant):
        yield from [node.value] if isinstance(node.value, str) else []
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def list_files(paths: list[str]) -> list[Path]:
    """Return the tracked and new pages and modules among files and folders."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = sorted(map(Path, listed.splitlines()))
    return [path for path in found if path.suffix in (".md", ".py") and path.is_file()]


def main(paths: list[str]) -> int:
    """Print the findings in these files and folders; return 1 if there are any."""
    found = 0
    for path in list_files(paths or ["."]):
        for line, hint, text in check(path.read_text(encoding="utf-8"), path.suffix == ".py"):
            if hint in MESSAGES.values() and path.parts[0] == "tests":
                continue
            print(f"{path}:{line}: {hint}: {text}")
            found = 1
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
