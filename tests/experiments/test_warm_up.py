"""The warm-up compiles every kernel that Python calls, and each for one choice of types."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from gcd.support.compiled import _Files
from scripts import warm_up
for part in warm_up.PARTS:
    warm_up.warm_up(part)
for name, module in sorted(sys.modules.items()):
    for function in vars(module).values() if ".kernels." in name else ():
        if isinstance(getattr(function, "_cache", None), _Files):  # a kernel, not a helper
            if function.py_func.__module__ == name:
                print(f"{name}.{function.__name__}", len(function.signatures))
"""
# Called by other kernels too, and from Python only in tests or where the warm-up does not go.
NOT_CALLED = {
    "gcd.automata.kernels.canonical._merge",  # rare: fingerprints did not settle it
    "gcd.automata.kernels.canonical.equal_columns",
    "gcd.automata.kernels.canonical.joint_classes",
    "gcd.automata.kernels.graph.distinct_edges",
    "gcd.automata.kernels.graph.levels",
    "gcd.automata.kernels.graph.reversed_edges",
    "gcd.automata.kernels.minimize.minimize_blocks",
    "gcd.automata.kernels.residuals.by_fingerprints",
    "gcd.automata.kernels.residuals.numbered",
    "gcd.serving.kernels.masks.advance",
    "gcd.serving.kernels.masks.fill_row",
    "gcd.tokens.kernels.classes.first_equal",  # rare: an automaton with dead ends
    "gcd.tokens.kernels.classes.number_by_first",
    "gcd.tokens.kernels.classes.one_class",
    "gcd.tokens.kernels.classes.refine",
    "gcd.tokens.kernels.token_graph.edges",
}


def test_every_kernel_is_compiled_for_one_choice_of_types() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    signatures = dict(line.split() for line in done.stdout.splitlines())
    assert len(signatures) > 40
    several = {name for name, count in signatures.items() if int(count) > 1}
    none = {name for name, count in signatures.items() if int(count) == 0}
    assert not several
    assert none <= NOT_CALLED
