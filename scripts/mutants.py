"""Measure how many faults the tests find: change the code in one place, and run the tests.

    python -m scripts.mutants --count 60 --seed 0 --report mutants.json
    python -m scripts.mutants --again mutants.json --report after.json

Each mutant differs from the code in one operator, constant or statement. The tests that name the
changed function run first, then those that name its module, then the other tests of its folder. A
mutant is caught if one of them fails, and survives if the limit on processor time is reached. A
test that also fails without the change doesn't count. `--again` repeats the mutants of an earlier
report, and begins with the test that caught each.

Python functions are changed in forks of one process that has imported everything; the checkout
isn't touched. A kernel is changed and compiled in a copy of the checkout.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib.machinery
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
GROUPS = (
    "smc",
    "hmm",
    "gcd/_automata",
    "gcd/_languages",
    "gcd/_tokens",
    "gcd/_serving",
    "gcd_vllm",
    "kernels",
)
_TESTS = ("tests/smc", "tests/hmm", "tests/gcd", "tests/gcd_vllm")
_COMMON = 25  # names that occur in more files are ignored
_HANGS = 120  # processor seconds beyond the limit after which a mutant is killed

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin"}


@dataclass(frozen=True)
class Mutant:
    """A change in one place of the code."""

    path: str
    function: str
    """Qualified name of the outermost function around the change."""
    line: int
    position: int
    """Index among the possible changes of the function."""
    change: str


@dataclass(frozen=True)
class Outcome:
    """The test result of one mutant."""

    mutant: Mutant
    caught_by: str | None
    tests: int
    seconds: float
    note: str = ""


def is_kernel(path: str) -> bool:
    """Return whether a module is compiled."""
    return "kernels/" in path  # also `hmm/_kernels`


def sources(group: str) -> list[str]:
    """Return the modules of a group: those of a package or folder, or the compiled kernels."""
    folders = ("gcd", "hmm", "smc") if group == "kernels" else (group,)
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    names = [path.relative_to(ROOT).as_posix() for path in found]
    return [
        name
        for name in names
        if is_kernel(name) == (group == "kernels")
        and not Path(name).name.startswith(("__init__", "triton"))
    ]


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Return the outermost functions and methods by their qualified names, if these are unique.

    The code of `a.b` can be replaced while the module is in memory.
    """
    found: dict[str, list[ast.FunctionDef]] = {}

    def enter(body: Sequence[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                found.setdefault(prefix + node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                enter(node.body, f"{prefix}{node.name}.")

    enter(tree.body, "")
    return {name: nodes[0] for name, nodes in found.items() if len(nodes) == 1}


Change = tuple[int, str, Callable[[], object]]


def changes(function: ast.FunctionDef) -> Iterator[Change]:
    """Yield every possible change of a function: its line, its description, and its action."""
    for statement in function.body:
        yield from _changes_below(statement, function.body)


def _changes_below(node: ast.AST, body: list[ast.stmt] | None = None) -> Iterator[Change]:
    """Yield the changes of a syntax node and its children; `body` is the list with a statement."""
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    yield from _own_changes(node, body)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(
            node, ast.Call
        ):
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("cython."):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.stmt):
                yield from _changes_below(child, value)
            elif isinstance(child, ast.AST):
                yield from _changes_below(child)


def _own_changes(node: ast.AST, body: list[ast.stmt] | None) -> Iterator[Change]:
    """Yield the changes of a syntax node, without those of its children."""
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        yield _swap(line, node, node.ops[0], lambda new: node.ops.__setitem__(0, new))
    elif isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)) and type(node.op) in _SWAPS:
        yield _swap(line, node, node.op, lambda new: setattr(node, "op", new))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        text = f"{ast.unparse(node)} -> {ast.unparse(node.operand)}"
        yield line, text, lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        text = f"{ast.unparse(node)} -> {ast.unparse(node.operand)}"
        yield line, text, lambda: setattr(node, "op", ast.UAdd())
    elif isinstance(node, (ast.If, ast.IfExp)) and not isinstance(node.test, ast.Compare):
        text = ast.unparse(node.test)
        yield (
            line,
            f"if {text} -> if not ({text})",
            lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test)),
        )
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        old: Any = node.value
        new = (not old) if isinstance(old, bool) else old + 1
        yield line, f"{old} -> {new}", lambda: setattr(node, "value", new)
    elif isinstance(node, ast.Name) and node.id in _NAMES and isinstance(node.ctx, ast.Load):
        other = _NAMES[node.id]
        yield line, f"{node.id} -> {other}", lambda: setattr(node, "id", other)
    if (
        body is not None
        and isinstance(node, (ast.Expr, ast.AugAssign))
        and not isinstance(getattr(node, "value", None), (ast.Yield, ast.YieldFrom))
    ):
        index = body.index(node)
        yield (
            line,
            f"without {ast.unparse(node)[:60]}",
            lambda: body.__setitem__(index, ast.copy_location(ast.Pass(), node)),
        )


def _swap(line: int, node: ast.AST, op: ast.AST, put: Callable[[Any], object]) -> Change:
    """Replace an operator."""
    other = _SWAPS[type(op)]
    text = f"{ast.unparse(node)[:60]}: {type(op).__name__} -> {other.__name__}"
    return line, text, lambda: put(other())


def draw(count: int, seed: int, groups: Sequence[str] = GROUPS) -> list[Mutant]:
    """Draw the same number of mutants from each group, uniformly within a group."""
    chosen = random.Random(seed)
    drawn = []
    for group in groups:
        positions = []
        for path in sources(group):
            tree = ast.parse((ROOT / path).read_text("utf-8"))
            for name, function in functions(tree).items():
                for position, (line, change, _) in enumerate(changes(function)):
                    positions.append(Mutant(path, name, line, position, change))
        drawn += chosen.sample(positions, count // len(groups))
    return drawn


def mutate(mutant: Mutant) -> ast.Module:
    """Return the changed module."""
    tree = ast.parse((ROOT / mutant.path).read_text("utf-8"))
    function = functions(tree)[mutant.function]
    line, change, act = list(changes(function))[mutant.position]
    if (line, change) != (mutant.line, mutant.change):
        raise ValueError(f"expected {mutant.change!r} at {mutant.path}:{mutant.line}; got {change}")
    act()
    return ast.fix_missing_locations(tree)


def patch(mutant: Mutant) -> None:
    """Replace the code of the function in memory."""
    path = ROOT / mutant.path
    module = compile(mutate(mutant), str(path), "exec", dont_inherit=True)
    found: list[types.CodeType] = [module]
    codes = {}
    while found:
        code = found.pop()
        codes[code.co_qualname] = code
        found += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    gc.unfreeze()
    patched = 0
    for value in gc.get_objects():
        if (
            isinstance(value, types.FunctionType)
            and value.__code__.co_qualname == mutant.function
            and value.__code__.co_filename == str(path)
        ):
            value.__code__ = codes[mutant.function]
            patched += 1
    gc.freeze()
    if patched:
        return
    # The module is only imported within a test.
    load = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: Any, name: str) -> types.CodeType | None:
        return module if loader.path == str(path) else load(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def order(items: Sequence[pytest.Item], mutant: Mutant, first: str | None) -> list[pytest.Item]:
    """Return the tests of a mutant, most likely to catch it first.

    These are the tests in the file named like the module, those that name the function or class
    (the rarer the name, the earlier), those that name the module, and those of its folder.
    """
    module = Path(mutant.path).with_suffix("").parts
    folder = ROOT / "tests" / Path(*(part.lstrip("_") for part in module[:-1]))
    while not folder.is_dir():  # `smc/_search` is tested in `tests/smc`
        folder = folder.parent
    stem = module[-1].lstrip("_")
    texts = {file: file.read_text("utf-8") for file in {item.path for item in items}}
    words = [f"{module[-2]} import {module[-1]}", ".".join(module), module[-1]]
    names = [part for part in mutant.function.split(".") if not part.startswith("_")] + words
    score: dict[Path, float] = {}
    for name in names:
        pattern = re.compile(rf"\b{re.escape(name)}\b")
        found = [file for file, text in texts.items() if pattern.search(text)]
        if len(found) <= _COMMON:
            score |= {file: score.get(file, 0.0) + 1 / len(found) for file in found}
    for file in texts:
        if file.parent == folder:
            score[file] = score.get(file, 0.0) + (100 if file.stem == f"test_{stem}" else 0.1)
    chosen = [item for item in items if item.path in score]
    return sorted(chosen, key=lambda item: (item.nodeid != first, -score[item.path]))


def _processor_seconds() -> float:
    """Return the processor time of this process and of its children."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


class Session:
    """A pytest plugin that runs tests on mutants instead of running all tests once."""

    def __init__(self, mutants: Sequence[tuple[Mutant, str | None]], limit: float) -> None:
        self.mutants = mutants
        self.limit = limit
        self.outcomes: list[Outcome] = []
        self._failed: str | None = None
        self._useless: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure."""
        if report.failed:
            self._failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests of each mutant."""
        by_id = {item.nodeid: item for item in session.items}
        for number, (mutant, first) in enumerate(self.mutants, 1):
            items = order(session.items, mutant, first)
            while True:
                outcome = self._try(mutant, [i for i in items if i.nodeid not in self._useless])
                culprit = outcome.caught_by
                if culprit not in by_id or not self._fork(None, [by_id[culprit]]).caught_by:
                    break
                self._useless.add(culprit)
            self.outcomes.append(outcome)
            told = f"caught by {outcome.caught_by}" if outcome.caught_by else "SURVIVED"
            print(
                f"{number:3} {mutant.path}:{mutant.line} {mutant.function}: {mutant.change}\n"
                f"    {told} ({outcome.tests} tests, {outcome.seconds:.1f} s) {outcome.note}",
                file=sys.__stderr__,
                flush=True,
            )
        return True

    def _try(self, mutant: Mutant, items: Sequence[pytest.Item]) -> Outcome:
        """Run tests on a mutant."""
        return (
            run_kernel(mutant, items, self.limit)
            if is_kernel(mutant.path)
            else self._fork(mutant, items)
        )

    def _fork(self, mutant: Mutant | None, items: Sequence[pytest.Item]) -> Outcome:
        """Run tests in a fork, on a mutant or on unmodified code."""
        before = _processor_seconds()
        with tempfile.NamedTemporaryFile("r", suffix=".json") as told:
            child = os.fork()
            if not child:
                try:
                    limit = int(self.limit + _HANGS)
                    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
                    signal.alarm(10 * limit)
                    if mutant is not None:
                        patch(mutant)
                    Path(told.name).write_text(json.dumps(self._run(items)), encoding="utf-8")
                except BaseException as error:
                    Path(told.name).write_text(json.dumps([None, 0, repr(error)]), "utf-8")
                finally:
                    os._exit(0)
            _, status = os.waitpid(child, 0)
            seconds = _processor_seconds() - before
            text = told.read()
        no_mutant = Mutant("", "", 0, 0, "")
        if not text:
            return Outcome(mutant or no_mutant, f"signal {status}", 0, seconds, "ended or endless")
        caught_by, tests, note = json.loads(text)
        return Outcome(mutant or no_mutant, caught_by, tests, seconds, note)

    def _run(self, items: Sequence[pytest.Item]) -> tuple[str | None, int, str]:
        """Run tests until one fails; return its name, the number of tests, and a note."""
        start = _processor_seconds()
        for index, item in enumerate(items):
            following = items[index + 1] if index + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return self._failed, index + 1, ""
            if _processor_seconds() - start > self.limit:
                return None, index + 1, f"of {len(items)}: the limit"
        return None, len(items), ""


_BUILD = """
import runpy, sys, setuptools
name, real = sys.argv[1], setuptools.setup
def setup(ext_modules, **rest):
    real(ext_modules=[each for each in ext_modules if each.name in name.split(",")], **rest)
setuptools.setup = setup
sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
"""
_RUN = """
import json, sys, pytest
from scripts.mutants import Session
ids, limit = json.load(open(sys.argv[1]))
class Once(Session):
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        items = {item.nodeid: item for item in session.items}
        told = self._run([items[each] for each in ids if each in items])
        json.dump(told, open(sys.argv[1], "w"))
        return True
files = list(dict.fromkeys(each.partition("::")[0] for each in ids))
pytest.main(["-p", "no:cacheprovider", "-q", *files], plugins=[Once([], limit)])
"""


def run_kernel(mutant: Mutant, items: Sequence[pytest.Item], limit: float) -> Outcome:
    """Change and compile a kernel in a copy of the checkout, and run tests there."""
    before = _processor_seconds()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        hidden = shutil.ignore_patterns(".*", "build", "__pycache__", "runs")
        shutil.copytree(ROOT, tree, ignore=hidden, symlinks=True)
        source = (ROOT / mutant.path).read_text("utf-8")
        directives = re.findall(r"^# ?cython:.*\n", source, re.MULTILINE)
        (tree / mutant.path).write_text("".join(directives) + ast.unparse(mutate(mutant)), "utf-8")
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        name = ".".join(Path(mutant.path).with_suffix("").parts)

        def python(*arguments: str) -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(
                [sys.executable, *arguments],
                cwd=tree,
                env=environment,
                capture_output=True,
                preexec_fn=lambda: resource.setrlimit(
                    resource.RLIMIT_CPU, (int(limit + _HANGS), int(limit + _HANGS))
                ),
            )

        if python("-c", _BUILD, name).returncode:
            return Outcome(mutant, "the compiler", 0, _processor_seconds() - before)
        told = Path(folder) / "told.json"
        told.write_text(json.dumps([[item.nodeid for item in items], limit]), "utf-8")
        ended = python("-c", _RUN, str(told))
        seconds = _processor_seconds() - before
        answer = json.loads(told.read_text("utf-8"))
        if len(answer) == 2:  # still the input
            return Outcome(mutant, f"exit status {ended.returncode}", 0, seconds, "ended")
        caught_by, tests, note = answer
        return Outcome(mutant, caught_by, tests, seconds, note)


def read_report(path: Path) -> list[tuple[Mutant, str | None]]:
    """Return the mutants of an earlier report, and the test that caught each."""
    rows = json.loads(path.read_text("utf-8"))
    return [(Mutant(**row["mutant"]), row["caught_by"]) for row in rows]


def main() -> int:
    """Run the command line: create mutants, run tests on them, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--groups", nargs="+", default=GROUPS, choices=GROUPS)
    parser.add_argument("--limit", type=float, default=30, help="processor seconds per mutant")
    parser.add_argument("--again", type=Path, help="repeat the mutants of this report")
    parser.add_argument("--report", type=Path, default=Path("mutants.json"))
    arguments = parser.parse_args()
    if arguments.again:
        mutants = read_report(arguments.again)
    else:
        mutants = [(each, None) for each in draw(arguments.count, arguments.seed, arguments.groups)]
    session = Session(mutants, arguments.limit)
    warnings.simplefilter("ignore", FutureWarning)  # raised by inspecting objects
    pytest.main(["-p", "no:cacheprovider", "-q", *_TESTS], plugins=[session])
    arguments.report.write_text(
        json.dumps([asdict(outcome) for outcome in session.outcomes], indent=1) + "\n", "utf-8"
    )
    caught = sum(outcome.caught_by is not None for outcome in session.outcomes)
    seconds = sum(outcome.seconds for outcome in session.outcomes)
    print(f"{caught} of {len(session.outcomes)} mutants caught, {seconds:.0f} processor seconds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
