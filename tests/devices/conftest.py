"""The simulated device belongs to its process, so these tests have a separate process.

`tests/test_devices.py` starts it; on a machine with a GPU the same tests run there by
`GCD_TEST_DEVICE=cuda pytest tests/devices`.
"""

import os

import jaxtyping
import pytest

collect_ignore_glob = [] if "GCD_TEST_DEVICE" in os.environ else ["test_*.py"]


@pytest.fixture(autouse=True, scope="package")
def _unchecked() -> None:
    """Shapes are checked on the CPU, by the same calls."""
    jaxtyping.config.update("jaxtyping_disable", True)
