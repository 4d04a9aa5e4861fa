"""`make check` runs the tests that a change can break."""

from __future__ import annotations

import subprocess
from pathlib import Path

from scripts import changed_tests
from scripts.packages import LIBRARY

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.splitlines()


def test_tests_of_a_file_exist():
    for name in FILES[::10]:
        for found in changed_tests.tests_of([name]):
            assert (ROOT / found).exists(), (name, found)


def test_changes_of_the_library_are_compared_with_its_interface():
    initial = [each for each in FILES if each.endswith("__init__.py") and each.startswith(LIBRARY)]
    for name in (*initial, "docs/reference/interface.txt"):
        assert "tests/test_interface.py" in changed_tests.tests_of([name]), name


def test_a_test_file_inside_a_chosen_folder_is_not_named_twice():
    assert changed_tests.tests_of(["tests/smc/toys.py", "tests/smc/test_walk.py"]) == ["tests/smc"]
