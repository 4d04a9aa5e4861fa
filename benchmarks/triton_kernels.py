"""Resources of Triton kernels (registers, spills, bytes moved) and their time on a CUDA device.

    python -m benchmarks.triton_kernels

Each kernel is compiled for compute capability 8.0, 9.0 and 10.0, which doesn't require a device.
Registers, spills and shared memory are reported by Triton's `ptxas -v`. The bound is calculated,
not measured: the bytes that a kernel must read and write, at the bandwidth of an H100 (3.35 TB/s).

On a CUDA device, each kernel is timed in turns with equivalent tensor operations, both as captured
graphs.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler
from triton.compiler import ASTSource

import gcd
import smc
from experiments.studies.latency.models import SCHEMA, make_vocabulary
from hmm import HMM
from smc._inference.selection import Group, Selection, select
from smc._models.kernels import triton_rows
from smc._models.static_cache import move_rows
from smc._vocabulary import triton as passes
from smc._vocabulary.factors import Factors
from smc._vocabulary.kernels import triton_blocks
from smc._vocabulary.passes import VocabularyPass, pass_of

CAPABILITIES = (80, 90, 100)
BANDWIDTH = 3.35e12
"""Bandwidth of an H100 (SXM) in bytes per second."""
VOCABULARY = 151_936
"""Vocabulary size, for the bounds and the number of blocks of a draw."""
PARTICLES = 16
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
    """Return all kernels in all forms in which they are called."""
    blocks = triton.next_power_of_2(triton.cdiv(VOCABULARY, passes.BLOCK))
    for wide in ("fp32", "fp64"):
        types = {name: kind.format(wide=wide) for name, kind in TYPES.items()}
        for own in (False, True):
            wider = tl.float32 if wide == "fp32" else tl.float64
            constants = {"OWN": own, "BLOCK": passes.BLOCK, "WIDE": wider}
            title = f"{wide}, {'classes and tokens' if own else 'classes'}"
            yield Form(f"weigh ({title})", triton_blocks.weigh, types, constants)
            drawing = {**constants, "BLOCKS": blocks}
            yield Form(f"draw ({title})", triton_blocks.draw, types, drawing)
    yield Form("move rows (fp16)", triton_rows.move, MOVED, {"BLOCK": triton_rows.BLOCK})


class Resources(NamedTuple):
    """Resources of a program, as reported by `ptxas`."""

    registers: int
    spilled: int
    shared: int


def resources(compiled: Any) -> Resources:
    """Run Triton's assembler on a compiled kernel."""
    ptx = compiled.asm["ptx"]
    target = re.search(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    assert target is not None
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
    assert used is not None
    return Resources(int(used[1]), sum(map(int, spills)), compiled.metadata.shared)


def count_moved_bytes(form: Form) -> int | None:
    """Return the bytes a call must read and write for `PARTICLES` rows; None if data-dependent.

    The token classes belong to one automaton and are read once for all rows.
    """
    number = 8 if form.types.get("log_p") == "*fp64" else 4
    each = number + (2 if form.constants.get("OWN") else 0)
    sums = 16 * PARTICLES * triton.cdiv(VOCABULARY, passes.BLOCK)
    if form.name.startswith("weigh"):
        return PARTICLES * VOCABULARY * each + 4 * VOCABULARY + sums
    if form.name.startswith("draw"):
        return PARTICLES * passes.BLOCK * (each + 4) + sums
    return None


class Timed(NamedTuple):
    """An operation as a kernel and as tensor operations, with equal results."""

    name: str
    kernel: Callable[[], object]
    tensors: Callable[[], object]


def list_timed(device: torch.device) -> Iterator[Timed]:
    """Return the timed operations, for `PARTICLES` prefixes of one constraint."""
    vocabulary = make_vocabulary(VOCABULARY)
    automata = gcd.AutomatonBatch([gcd.lift(gcd.json_schema(SCHEMA), vocabulary)], device=device)
    batch = smc.Batch(automata, torch.tensor([40], device=device))
    generator = torch.Generator(device).manual_seed(0)
    random: dict[str, Any] = {"generator": generator, "device": device}
    log_p = (4 * torch.randn(PARTICLES, VOCABULARY, **random)).log_softmax(dim=1)
    u = torch.rand(PARTICLES, dtype=torch.float64, **random)
    rows = torch.arange(PARTICLES, device=device)
    hmm = HMM.random(64, VOCABULARY, **random)
    proposals: dict[str, smc.Proposal] = {
        "classes": smc.GCD(),
        "classes and tokens": smc.PGCD(hmm, lookahead="in_time").without_host_sync(),
    }
    for name, proposal in proposals.items():
        state = proposal.take(proposal.start(batch), torch.zeros_like(rows))
        factors = proposal.guide(state, log_p)
        ways = [pass_of(way, device) for way in ("triton", "tensors")]
        drawn = [partial(_draw, way, factors, log_p, u) for way in ways]
        yield Timed(f"weigh and draw ({name})", *drawn)
        chosen = [partial(_select, way, log_p, factors, u[:1]) for way in ways]
        yield Timed(f"keep {PARTICLES} of all continuations ({name})", *chosen)
    piece = torch.randn(32, PARTICLES, 8, 104, 128, device=device).to(torch.bfloat16)
    source = rows // 2 * 2  # every other row becomes a copy of its neighbor

    def moved() -> None:
        piece[:, :, :, 64:].copy_(piece[:, :, :, 64:].index_select(1, source))

    yield Timed("move half of the rows", lambda: move_rows(piece, source, 64), moved)
    yield Timed("move no row", lambda: move_rows(piece, rows, 64), moved)


def _draw(
    way: VocabularyPass, factors: Factors, log_p: torch.Tensor, u: torch.Tensor
) -> torch.Tensor:
    return way.prepare_draws(factors, log_p).at(torch.arange(len(u), device=u.device), u)


def _select(
    way: VocabularyPass, log_p: torch.Tensor, factors: Factors, u: torch.Tensor
) -> Selection:
    group = Group(torch.zeros(PARTICLES, dtype=torch.int64, device=u.device), 1, PARTICLES)
    return select(
        log_p, factors, group, PARTICLES, lambda _: u, vocabulary_pass=way,
        indices=lambda mask: torch.arange(len(mask), device=mask.device),
    )  # fmt: skip


def measure(device: torch.device) -> None:
    """Print microseconds of each operation, the median of five turns."""
    print(f"\n{PARTICLES} rows of {VOCABULARY} tokens, {torch.cuda.get_device_name(device)}\n")
    print("| | kernel, us | tensor operations, us | times as fast |")
    print("|---|---|---|---|")
    for each in list_timed(device):
        turns = [
            [1e3 * triton.testing.do_bench_cudagraph(one) for one in (each.kernel, each.tensors)]
            for _ in range(5)
        ]
        ours, theirs = (statistics.median(column) for column in zip(*turns, strict=True))
        ratio = statistics.median(other / one for one, other in turns)
        print(f"| {each.name} | {ours:.1f} | {theirs:.1f} | {ratio:.1f} |", flush=True)


def main() -> None:
    """Print both tables."""
    print(f"{PARTICLES} rows of {VOCABULARY} tokens; registers a thread / bytes spilled / shared\n")
    titles = " | ".join(f"sm_{capability}" for capability in CAPABILITIES)
    print(f"| kernel | {titles} | bytes | bound on an H100, us |")
    print("|---" * (len(CAPABILITIES) + 3) + "|")
    for form in forms():
        found = [resources(form.compile(capability)) for capability in CAPABILITIES]
        cells = " | ".join(" / ".join(map(str, each)) for each in found)
        size = count_moved_bytes(form)
        bound = "– | –" if size is None else f"{size:,} | {1e6 * size / BANDWIDTH:.2f}"
        print(f"| {form.name} | {cells} | {bound} |")
    if torch.cuda.is_available():
        with torch.inference_mode():
            measure(torch.device("cuda"))


if __name__ == "__main__":
    main()
