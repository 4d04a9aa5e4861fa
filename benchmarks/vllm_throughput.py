"""Requests per second in vLLM: plain, under GCD, with weights, with resampling; and `smc.sample`.

    P=.venv-vllm/bin/python
    $P -m benchmarks.vllm_throughput vllm --model DIR --runner v2          # or v1
    $P -m benchmarks.vllm_throughput vllm --model DIR --shape llama8b
    $P -m benchmarks.vllm_throughput transformers --model DIR              # a second process

`--model` is a directory with the tokenizer and `config.json` of a Llama. Weights are random, and
its weights aren't read, so evidence and texts mean nothing. `--shape` replaces the sizes. All sides
of an engine run in turns; `gcd_vllm.sample` and `smc.sample` draw posteriors of 64 answers, of
several prompts at once, and other sides send as many requests. Without a constraint an answer ends
at the budget. A step is a call of the engine's `step`, or a forward pass of the model.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.vllm import head, line
from benchmarks.vllm_weights import BUDGET, CITIES, CONSTRAINT, SCHEMA, prompt_of, send

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
}  # fmt: skip
EACH = 64  # answers of a posterior
CHUNK = 16  # tokens between two resampling steps, the size of a block of vLLM's cache on a GPU
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)  # batches whose steps vLLM captures


class Turn(NamedTuple):
    """A side's answers to one batch of requests."""

    seconds: float
    tokens: int
    steps: int


Side = Callable[[int], int]
"""Draws answers with a seed; returns the number of their tokens."""


def _synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_shape(model: Path, shape: str | None, folder: Path) -> Path:
    """Write the tokenizer and the configuration of a model without weights; return the folder."""
    for file in model.iterdir():
        if file.is_file() and file.suffix in (".json", ".txt", ".jinja", ".model"):
            shutil.copy(file, folder)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if shape is not None:
        config |= {"tie_word_embeddings": False} | SHAPES[shape]
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def prompts_of(count: int) -> list[str]:
    """Return one prompt for each posterior of a batch of answers."""
    return [prompt_of(city, 3) for city in CITIES[: count // EACH]]


def vllm_sides(model: Path, given: argparse.Namespace) -> tuple[dict[str, Any], list[int]]:
    """Start an engine; return what is timed on it, and a counter of its steps.

    Each side is a function of the number of answers and of a seed.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process to measure
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if given.runner == "v2" else "0"
    import vllm

    import gcd_vllm

    captured: dict[str, Any] = {"mode": 0, "cudagraph_mode": "NONE"}
    if torch.cuda.is_available():
        captured = {
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": list(SIZES),
        }
    llm = vllm.LLM(
        str(model), dtype=given.dtype, load_format="dummy", max_model_len=512, seed=0,
        max_num_batched_tokens=16384,
        max_num_seqs=max(given.answers), compilation_config=captured, generation_config="vllm",
        enforce_eager=not torch.cuda.is_available(), gpu_memory_utilization=0.6,
        worker_extension_cls="gcd_vllm.WorkerExtension",
        logits_processors=["gcd_vllm:Processor"],
    )  # fmt: skip
    print(f"vLLM {vllm.__version__}, {given.runner}, torch {torch.__version__}, {given.dtype}")
    text = json.dumps(CONSTRAINT | {"budget": BUDGET})
    tokens = llm.get_tokenizer().encode(prompt_of("Rome", 3))
    steps = count_calls(llm.llm_engine, "step")

    def ask(count: int, seed: int, **more: Any) -> int:
        return send(llm, tokens, count, seed, **more)

    def weighted(count: int, seed: int, **more: Any) -> int:
        found = gcd_vllm.sample(
            llm, prompts_of(count), CONSTRAINT, max_tokens=BUDGET, particles=EACH, seed=seed, **more
        )
        return sum(each.diagnostics.generated for each in found)

    sides = {
        "no constraint": partial(ask, ignore_eos=True),
        "no constraint, log-probabilities": partial(ask, ignore_eos=True, logprobs=0),
        "GCD": partial(ask, extra_args={"gcd": text}),
        "GCD with weights": weighted,
        f"SMC in parts of {CHUNK}": partial(weighted, chunk=CHUNK),
    }
    return sides, steps


def transformers_sides(model: Path, given: argparse.Namespace) -> tuple[dict[str, Any], list[int]]:
    """Make `smc.sample` with its default settings, and with captured steps on a GPU."""
    import transformers

    import gcd
    import smc

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = transformers.AutoConfig.from_pretrained(model)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, given.dtype))
    try:
        with device, torch.random.fork_rng():
            torch.manual_seed(0)
            network: Any = transformers.AutoModelForCausalLM.from_config(config).eval()
    finally:
        torch.set_default_dtype(before)
    lm = smc.TransformersLM(network, transformers.AutoTokenizer.from_pretrained(model))
    automaton = gcd.lift(gcd.json_schema(SCHEMA), lm.vocabulary)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {given.dtype}")
    steps = [0]

    def ours(count: int, seed: int, **more: Any) -> int:
        found = smc.sample(
            lm, prompts_of(count), automaton, max_tokens=BUDGET, particles=EACH, seed=seed,
            proposal=smc.GCD(), max_rows=count, **more,
        )  # fmt: skip
        # Prompts are sampled together, and each has the passes of the whole batch.
        steps[0] += max(each.diagnostics.lm_calls for each in found)
        return sum(each.diagnostics.generated for each in found)

    sides: dict[str, Any] = {"smc.sample": ours}
    if device.type == "cuda":
        static = partial(ours, forced_runs=False, execution="static")
        sides["smc.sample, captured steps"] = partial(static, algorithm="smc")
    return sides, steps


def count_calls(owner: Any, name: str) -> list[int]:
    """Count the calls of a method; return a list whose only entry is their number."""
    calls, original = [0], getattr(owner, name)

    def counting(*arguments: Any, **more: Any) -> Any:
        calls[0] += 1
        return original(*arguments, **more)

    setattr(owner, name, counting)
    return calls


def time_sides(sides: Mapping[str, Side], steps: list[int], turns: int) -> dict[str, list[Turn]]:
    """Let all sides draw in turns; the first turn warms up."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found: dict[str, list[Turn]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name, side in sides.items():
            _synchronize(device)
            before, started = steps[0], time.perf_counter()
            tokens = side(turn)
            _synchronize(device)
            seconds = time.perf_counter() - started
            if turn:
                found[name].append(Turn(seconds, tokens, steps[0] - before))
    return found


def main() -> None:
    """Print a table for each number of answers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["vllm", "transformers"])
    parser.add_argument("--model", type=Path, required=True, help="tokenizer and config.json")
    parser.add_argument(
        "--shape", choices=["smollm2", "llama8b"], help="sizes; default: the model's"
    )
    parser.add_argument("--runner", choices=["v1", "v2"], default="v2")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--answers", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    most = EACH * len(CITIES)
    if any(count % EACH or not EACH <= count <= most for count in given.answers):
        parser.error(f"expected --answers to be multiples of {EACH} up to {most}")
    with tempfile.TemporaryDirectory() as folder:
        model = random_shape(given.model, given.shape, Path(folder))
        sides, steps = {"vllm": vllm_sides, "transformers": transformers_sides}[given.what](
            model, given
        )
        for count in given.answers:
            bound = {name: partial(side, count) for name, side in sides.items()}
            print(f"\n{count} answers, medians of {given.turns} turns\n")
            columns = "s", "least to greatest", "requests/s", "steps", "ms per step", "x the first"
            print(head("", *columns))
            first = None
            for name, turns in time_sides(bound, steps, given.turns).items():
                spent = statistics.median(turn.seconds for turn in turns)
                step = statistics.median(1e3 * turn.seconds / turn.steps for turn in turns)
                first = first or step
                least, greatest = (pick(t.seconds for t in turns) for pick in (min, max))
                print(line(
                    name, f"{spent:.3f}", f"{least:.3f} to {greatest:.3f}", f"{count / spent:.1f}",
                    turns[0].steps, f"{step:.2f}", f"{step / first:.2f}",
                ))  # fmt: skip


if __name__ == "__main__":
    main()
