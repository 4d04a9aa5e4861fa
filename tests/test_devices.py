"""All that computes with tensors gives the CPU's numbers on a device that is not the CPU."""

from __future__ import annotations

import pytest
from torch.utils import backend_registration

from tests import processes


@pytest.mark.slow("operations of a device in Python, in a process of its own")
@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this version of PyTorch has no devices that are written in Python",
)
def test_on_a_device_that_pretends() -> None:
    """Run in a separate process, because the device belongs to the process from then on."""
    done = processes.run(
        "-m", "pytest", "tests/devices", "-p", "no:xdist", "-p", "no:cacheprovider",
        GCD_TEST_DEVICE="mock",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    assert " passed" in done.stdout
