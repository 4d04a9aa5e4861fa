"""Every Triton kernel compiles, in each form that is used, for devices that are not present."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version

import pytest
from packaging.version import Version

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from benchmarks.triton_kernels import CAPABILITIES, Form, forms, resources

FORMS = list(forms())
SPILLED = 8
"""Bytes per thread that may spill: one float64 number, for Triton 3.7 and capability 8.0."""


def test_every_kernel_has_a_form() -> None:
    import triton

    from smc._models.kernels import triton_rows
    from smc._vocabulary.kernels import triton_blocks

    entries = {
        value
        for module in (triton_blocks, triton_rows)
        for name, value in vars(module).items()
        if isinstance(value, triton.JITFunction) and not name.startswith("_")
    }
    assert entries == {form.kernel for form in FORMS}


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize(
    ("form", "capability"),
    # Each form for the oldest device and one of the newer ones, and each of those for every second.
    [(form, each) for i, form in enumerate(FORMS) for each in (80, CAPABILITIES[1:][i % 2])],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_it_compiles_and_spills_at_most_one_number(
    form: Form, capability: int, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if capability >= 100 and Version(version("triton")) < Version("3.3"):
        pytest.skip("before version 3.3, Triton's assembler does not know this capability")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiled = form.compile(capability)
    assert len(compiled.asm["cubin"]) > 1000
    found = resources(compiled)
    assert 0 < found.registers <= 255
    assert found.spilled <= SPILLED
