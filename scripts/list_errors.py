"""List of the error messages in the source, for review, with checks of their style.

    python -m scripts.list_errors               the packages of the library
    python -m scripts.list_errors smc           other folders

A message is a text among the arguments of a raised call; `{}` marks values. A call with several
texts, such as a problem and a remedy, has a line for each. If the raised call is a function that
ends with `return ...Error(...)`, the message of this error is listed, with the function's arguments
inserted. So are texts that the module assigns to names. Other messages that come from functions or
variables are not listed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from scripts.packages import LIBRARY

ROOT = Path(__file__).resolve().parent.parent

_RULES = {  # pattern of a bad message -> the rule
    r"^\s*$": "is not empty",
    r"^[A-Z][a-z]+ ": "begins with a lower-case letter, a name or a value",
    r"\.$": "ends without a period",
    r"(?<!there )\bis no \b": 'negates the verb ("is not a") instead of the noun',
    r"\bof which\b": 'doesn\'t use "of which"',
    r"  | $": "has single spaces between words",
    r"^(.{8,})\1": "doesn't repeat itself",
}


class Message(NamedTuple):
    """Message, or part of the message, of one `raise` statement.

    Attributes:
        place: path and line of the statement.
        error: name of the raised class, or of a function that returns the error.
        text: the message, with `{}` for values.
    """

    place: str
    error: str
    text: str


def messages(package: str) -> Iterator[Message]:
    """Yield the messages of all `raise` statements in a folder, by path and line."""
    for path in sorted((ROOT / package).rglob("*.py")):
        statements = [
            node
            for node in ast.walk(_tree(path))
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        ]
        for node in sorted(statements, key=lambda each: each.lineno):
            assert isinstance(node.exc, ast.Call)
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            call, values = _find_raised(path, node.exc)
            for each in call.args:
                if (text := _text(each, values)) is not None:
                    yield Message(place, ast.unparse(call.func), text)


def faults(message: Message) -> list[str]:
    """Return the rules that a message violates."""
    return [rule for pattern, rule in _RULES.items() if re.search(pattern, message.text)]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _error_functions() -> dict[tuple[Path, str], tuple[list[str], ast.Call]]:
    """Return the parameters and the error of each function that ends with `return ...Error(...)`.

    Keys are the module and the name of the function.
    """
    found = {}
    for path in (path for package in LIBRARY for path in sorted((ROOT / package).rglob("*.py"))):
        for node in _tree(path).body:
            if isinstance(node, ast.FunctionDef) and isinstance(last := node.body[-1], ast.Return):
                call = last.value
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Error"):
                    found[path, node.name] = [each.arg for each in node.args.args], call
    return found


def _find_raised(path: Path, call: ast.Call) -> tuple[ast.Call, dict[str, str | None]]:
    """Return the call that makes a raised error, and the texts of the variables in its message."""
    name = ast.unparse(call.func)
    for (module, function), (parameters, error) in _error_functions().items():
        if function == name and (module == path or not name.startswith("_")):
            texts = (_text(each) for each in call.args)
            return error, dict(zip(parameters, texts, strict=False))
    return call, _constants(path)


@cache
def _constants(path: Path) -> dict[str, str | None]:
    """Return the texts that a module assigns to names at its top level."""
    return {
        target.id: _text(node.value)
        for node in _tree(path).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _text(node: ast.expr, values: Mapping[str, str | None] = MappingProxyType({})) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        return values.get(node.value.id)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each, values) or "{}" for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left, values), _text(node.right, values)
        return None if left is None and right is None else f"{left or '{}'}{right or '{}'}"
    return None


def main(packages: list[str]) -> int:
    """Print all messages; return 1 if some violate a rule."""
    is_clean = True
    for package in packages or LIBRARY:
        for message in messages(package):
            print(f"{message.place}: {message.error}: {message.text}")
            for rule in faults(message):
                is_clean = False
                print(f"    expected a message that {rule}")
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
