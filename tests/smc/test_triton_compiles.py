"""Every Triton kernel compiles, in each form that is used, for devices that are not present."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.version import Version

pytest.importorskip("triton", reason="triton is not installed")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler
from triton.compiler import ASTSource

from smc._models.kernels import triton_rows
from smc._vocabulary import triton as passes
from smc._vocabulary.kernels import triton_blocks

CAPABILITIES = (80, 90, 100)
VOCABULARY = 151_936
"""Vocabulary size, for the number of blocks of a draw."""
TYPES = {
    "log_p": "*{wide}", "class_of": "*i32", "which": "*i64", "by_class": "*fp64", "own": "*i16",
    "by_token": "*fp64", "top": "*fp64", "total": "*fp64", "rows": "*i64", "u": "*fp64",
    "out": "*i64", "V": "i32", "C": "i32", "K": "i32", "blocks": "i32",
}  # fmt: skip
MOVED = {
    "piece": "*fp16", "source": "*i64", "rows": "i32", "start": "i32", "size": "i32",
    "stride": "i32", "width": "i32",
}  # fmt: skip


class Form(NamedTuple):
    """A kernel with the types and constants that it is compiled for."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]

    def compile(self, capability: int) -> Any:
        """Compile the kernel for devices of this compute capability."""
        names = self.kernel.arg_names
        types = {
            name: "constexpr" if name in self.constants else self.types[name] for name in names
        }
        source = ASTSource(self.kernel, types, self.constants)
        return triton.compile(source, target=GPUTarget("cuda", capability, 32))


def forms() -> Iterator[Form]:
    """Return all kernels in the forms in which they are called.

    In float64 only the larger form, with factors of tokens.
    """
    blocks = triton.next_power_of_2(triton.cdiv(VOCABULARY, passes.BLOCK))
    for wide in ("fp32", "fp64"):
        types = {name: kind.format(wide=wide) for name, kind in TYPES.items()}
        for own in (False, True) if wide == "fp32" else (True,):
            wider = tl.float32 if wide == "fp32" else tl.float64
            constants = {"OWN": own, "BLOCK": passes.BLOCK, "WIDE": wider}
            title = f"{wide}, {'classes and tokens' if own else 'classes'}"
            yield Form(f"weigh ({title})", triton_blocks.weigh, types, constants)
            drawing = {**constants, "BLOCKS": blocks}
            yield Form(f"draw ({title})", triton_blocks.draw, types, drawing)
    yield Form("move rows (fp16)", triton_rows.move, MOVED, {"BLOCK": triton_rows.BLOCK})


def resources(compiled: Any) -> tuple[int, int]:
    """Return registers and spilled bytes of a compiled kernel, from Triton's assembler."""
    ptx = compiled.asm["ptx"]
    target = re.search(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    programs = Path(compiler.__file__).parent / "bin"
    program = programs / "ptxas-blackwell"  # used by newer versions from compute capability 9
    if compiled.metadata.target.arch < 90 or not program.exists():
        program = programs / "ptxas"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [program, "-v", "--gpu-name", target[1], file.name, "-o", "/dev/null"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    used = re.search(r"Used (\d+) registers", said)
    spills = re.findall(r"(\d+) bytes spill", said)
    return int(used[1]), sum(map(int, spills))


FORMS = list(forms())
SPILLED = 8
"""Bytes per thread that may spill: one float64 number, for Triton 3.7 and capability 8.0."""


def test_every_kernel_has_a_form() -> None:
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
    # Each form for one device, and the last ones, which need most registers, for the oldest too.
    [
        (form, each)
        for i, form in enumerate(FORMS)
        for each in sorted(
            {CAPABILITIES[i % 3], *([80] if "classes and tokens" in form.name else [])}
        )
    ],
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
    registers, spilled = resources(compiled)
    assert 0 < registers <= 255
    assert spilled <= SPILLED
