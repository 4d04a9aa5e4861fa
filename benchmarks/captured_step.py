"""Time of a captured step of a language model, plain and compiled, and its kernels by kind.

    python -m benchmarks.captured_step --shape smollm2 --dtype float32
    python -m benchmarks.captured_step --shape llama8b --dtype bfloat16
    python -m benchmarks.captured_step --shape tiny --variants plain       # on a CPU, not captured

The model has random weights, and a step samples a token for 16 particles without a constraint. The
variants of the argument `compile` of `smc.TransformersLM` are timed in turn. The bound is the time
to read all weights once at the bandwidth of a sum over 4 GiB, measured in the same process. Kernels
and copies are counted by `torch.profiler`, as means of five steps. On a CPU, operators are counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from typing import Any, NamedTuple

import torch

import gcd
import smc
from benchmarks.common import head, line
from experiments.studies.latency.models import Scripted, make_vocabulary
from smc._forward.static import StaticReader
from smc._inference.algorithms import SMC
from smc._inference.execution import steps_of
from smc._inference.loop import WARM_UP, StaticRun
from smc._vocabulary.passes import pass_of

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "max_position_embeddings": 8192, "tie_word_embeddings": True,
    },
    "llama8b": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "tiny": {
        "vocab_size": 2048, "hidden_size": 48, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
    },
}  # fmt: skip
VARIANTS: dict[str, Any] = {
    "plain": False,
    "compiled": True,
    "autotuned": {"mode": "max-autotune-no-cudagraphs"},
}
KINDS = {  # the first that a kernel's name contains a word of
    "compiled by Inductor": ("triton_poi", "triton_red", "triton_per"),
    "attention": ("fmha", "sdpa", "flash", "attention"),
    "matrix product": (
        "gemm",
        "gemv",
        "cutlass",
        "cublas",
        "splitk",
        "nvjet",
        "triton_tem",
        "::mm",
    ),
    "copy or set": ("memcpy", "memset"),
    "element by element": ("elementwise", "vectorized"),
    "reduction": ("reduce",),
}
ROWS, PROMPT, BUDGET, PROFILED = 16, 64, 40, 5


class Work(NamedTuple):
    """Kernels of one kind in a step: their number, and their time in microseconds."""

    count: float
    microseconds: float


def random_model(shape: str, dtype: torch.dtype, device: torch.device) -> Any:
    """Make a Llama of a shape with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = SHAPES[shape]
    config = LlamaConfig(**sizes, bos_token_id=0, eos_token_id=sizes["vocab_size"] - 1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device, torch.random.fork_rng():
            torch.manual_seed(0)
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def weight_bytes(model: Any) -> int:
    """Return the bytes of weights that a step reads: without embeddings that are only looked up."""
    found = sum(each.numel() * each.element_size() for each in model.parameters())
    embeddings = model.get_input_embeddings().weight
    tied = model.config.tie_word_embeddings
    return int(found - (0 if tied else embeddings.numel() * embeddings.element_size()))


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bandwidth(device: torch.device) -> float:
    """Measure the bytes per second that a sum over a large tensor reads."""
    size = 1 << (30 if device.type == "cuda" else 26)
    values = torch.randn(size, dtype=torch.float32, device=device)
    values.sum()
    synchronize(device)
    started = time.perf_counter()
    for _ in range(10):
        values.sum()
    synchronize(device)
    return 10 * 4 * size / (time.perf_counter() - started)


def start(lm: smc.TransformersLM, constraint: gcd.TokenAutomaton) -> StaticRun:
    """Prepare a run without a constraint, whose tokens are fixed; capture its step if possible."""
    device = lm.device
    budgets = torch.tensor([BUDGET], device=device)
    batch = smc.Batch(gcd.AutomatonBatch([constraint], device=device), budgets)
    script = [5 + (11 * i) % 1000 for i in range(BUDGET)]  # never EOS, so nothing ends
    reader = StaticReader(
        Scripted(lm, script).static_forward(), smc.LM(), batch, pass_of("auto", device),
        num_particles=ROWS, temperature=1.0, spare=WARM_UP,
    )  # fmt: skip
    examples = torch.arange(1, device=device)
    steps = steps_of(SMC(), reader, examples, ROWS, smc.CounterDraw(3))
    prompt = [(7 * i) % (lm.vocabulary.size - 1) for i in range(PROMPT)]
    return StaticRun(steps, [prompt], BUDGET, graph=device.type == "cuda")


def milliseconds(run: StaticRun, steps: int, device: torch.device) -> float:
    """Measure the time of a step."""
    synchronize(device)
    started = time.perf_counter()
    for _ in range(steps):
        run.advance()
    synchronize(device)
    return 1e3 * (time.perf_counter() - started) / steps


def profile(run: StaticRun, device: torch.device) -> dict[str, Work]:
    """Sum the kernels of a step by kind, the most expensive kind first."""
    on_gpu = device.type == "cuda"
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if on_gpu else activity.CPU]) as found:
        milliseconds(run, PROFILED, device)
    count: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for event in found.key_averages():
        own = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if own > 0:
            count[kind_of(event.key)] += event.count
            spent[kind_of(event.key)] += own
    return {
        kind: Work(count[kind] / PROFILED, total / PROFILED) for kind, total in spent.most_common()
    }


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel by its name."""
    name = kernel.lower()
    return next((kind for kind, words in KINDS.items() if any(w in name for w in words)), "other")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm2")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS),
                        default=["plain", "compiled"])  # fmt: skip
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help=f"of each turn; at most {BUDGET - 2}")
    given = parser.parse_args()
    if not 1 <= given.steps <= BUDGET - 2:
        parser.error(f"expected 1 to {BUDGET - 2} steps, got {given.steps}")

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = random_model(given.shape, getattr(torch, given.dtype), device)
    vocabulary = make_vocabulary(model.config.vocab_size)
    free = gcd.lift(gcd.anything(), vocabulary)
    bound = 1e3 * weight_bytes(model) / bandwidth(device)
    lms = {
        name: smc.TransformersLM(model, None, vocabulary, compile=VARIANTS[name])
        for name in given.variants
    }
    title = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{given.shape}, {given.dtype}, {title}, torch {torch.__version__}, {ROWS} particles")
    print(f"reading {weight_bytes(model) / 1e9:.3f} GB of weights takes {bound:.3f} ms\n")
    times: dict[str, list[float]] = {name: [] for name in lms}
    for turn in range(given.turns + 1):
        for name, lm in lms.items():
            run = start(lm, free)
            milliseconds(run, 2, device)
            if turn:
                times[name].append(milliseconds(run, given.steps, device))
                continue
            print(head(f"{name}: kind", "kernels", "us a step"))
            for kind, work in profile(run, device).items():
                print(line(kind, f"{work.count:.0f}", f"{work.microseconds:.1f}"))
            print()
    print(head("step", "ms, median", "least to greatest", "x the bound"))
    for name, each in times.items():
        median, spread = statistics.median(each), f"{min(each):.3f} to {max(each):.3f}"
        print(line(name, f"{median:.3f}", spread, f"{median / bound:.2f}"))


if __name__ == "__main__":
    main()
