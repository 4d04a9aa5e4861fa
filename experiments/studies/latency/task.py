"""Task `+task=latency`: milliseconds per token, as in the paper's Table 2.

The task times the steps of `smc.captured.sample` with the paper's proposals for
`task.batch` particles of one prompt, and the discrete filter with as many prefixes. On a CUDA
device a step, including the model's forward pass, is one captured graph. The baselines are the same
loop without a constraint, also captured, and `transformers.generate`. Tokens are fixed in advance,
so that all methods except the filter write the same text whatever the weights. Warm-up runs are
excluded, and one-time preparation is reported separately.

    python -m experiments.run +task=latency                       # SmolLM2, on the CPU
    python -m experiments.run +experiment=table2_latency          # on a GPU
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter, truediv
from typing import Any

import torch
from omegaconf import DictConfig

from experiments.config import Config, at_least, distinct, one_of, refuse_unused
from experiments.models import SHAPE, resolve_device, title_of, weights_of
from experiments.rows import Identity, Key, Row, derive_seed, key_of, read_rows, results_config
from experiments.studies.latency.models import load_or_make
from experiments.studies.latency.timing import Bench, methods_of
from experiments.tables import as_markdown, group_rows, number
from experiments.tasks import ExperimentTask, Run

KINDS = ("generate", "lm", "lcd", "gcd", "discrete", "pgcd")
"""Kinds to time: `transformers.generate`; `smc.captured.sample` with each proposal; and the
discrete filter under GCD in static shapes, with `task.batch` prefixes."""
LOOKAHEADS = ("conditional", "in_time")


@dataclass
class LatencyConfig:
    """Milliseconds per token of `smc.captured.sample`, with fixed tokens."""

    name: str = "latency"
    kinds: list[str] = field(default_factory=lambda: list(KINDS))
    hidden: list[int] = field(default_factory=lambda: [64, 256])  # numbers of HMM states, for pgcd
    batch: int = 16  # particles of one prompt
    tokens: int = 40  # maximum tokens of a text, EOS included
    prompt_tokens: int = 64
    warm_up: int = 1  # warm-up runs of each kind
    compile: bool = False  # the steps with torch.compile; lm is also timed without it
    repeats: int = 3  # timed runs of each kind, in turns, with different seeds
    lookahead: str = "conditional"  # of pgcd, as in the paper; or "in_time"
    exact_top_k: int = 64
    max_table_mib: int = 2048  # memory of the lookahead tables; doesn't affect results


def check(config: DictConfig) -> None:
    """Check the settings; raise a `ValueError` with the invalid value and the remedy."""
    task = config.task
    distinct("task.kinds", task.kinds)
    for kind in task.kinds:
        one_of("task.kinds", kind, KINDS)
    if "lm" not in task.kinds:
        raise ValueError(
            f"expected lm in task.kinds, because other methods are compared with it; got "
            f"{list(task.kinds)}"
        )
    if "pgcd" in task.kinds:
        distinct("task.hidden", task.hidden)
        for hidden in task.hidden:
            at_least("task.hidden", hidden, 1)
    else:
        reason = "of task.kinds pgcd alone looks ahead, and it is not run; leave it out"
        keys = ("task.hidden", "task.lookahead", "task.exact_top_k")
        refuse_unused(config, {"task": LatencyConfig}, keys, reason)
    for key, least in (("batch", 1), ("tokens", 8), ("prompt_tokens", 1), ("warm_up", 0),
                       ("repeats", 1), ("exact_top_k", 0), ("max_table_mib", 1)):  # fmt: skip
        at_least(f"task.{key}", getattr(task, key), least)
    one_of("task.lookahead", task.lookahead, LOOKAHEADS)
    unread = ("data.path", "data.hub", "data.offset", "model.prompt", "model.prompt_mib",
              "model.device_map", "smc.max_rows", "smc.execution",
              "smc.read_ahead")  # fmt: skip
    refuse_unused(config, Config, unread, "+task=latency times tokens that are fixed in advance")
    device = resolve_device(config.model.device)
    if config.model.path == SHAPE and device.type != "cuda":
        raise ValueError(
            f"expected a CUDA device for model.path={SHAPE}, which has 8 billion weights (16 GB in "
            f"bfloat16), got {device}; give model=smollm2, or a small checkpoint"
        )


PAPER = {"lm": 1.69, "lcd": 1.83, "gcd": 1.86, "pgcd:H1024": 5.26, "pgcd:H4096": 8.23,
         "pgcd:H16384": 17.30}  # fmt: skip
"""Table 2 of the paper: milliseconds per token, Llama-3.1-8B, batch 16, one H100."""
ALGORITHM = {"discrete": "discrete"}  # unit of a method; the others have particles


def _machine(device: torch.device) -> str:
    """Describe the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()}, {threads} thread{'s'[: threads != 1]}"


def _read(config: DictConfig) -> str:
    return _machine(resolve_device(config.model.device))


def _identity(config: DictConfig, machine: str) -> Identity:
    weights = {"model_files": SHAPE} if config.model.path == SHAPE else weights_of(config.model)
    return {**results_config(config), **weights, "machine": machine}


def _run(run: Run, machine: str) -> None:
    """Time every method, in turns, and report."""
    task = run.config.task
    methods = methods_of(task.kinds, task.hidden, compile=task.compile)
    keys = [
        Key("latency", method, ALGORITHM.get(method, "smc"), task.batch, repeat)
        for repeat in range(task.repeats)
        for method in methods
    ]
    path = run.directory / "results.jsonl"
    made = {key_of(row) for row in read_rows(path)} if run.config.resume and path.exists() else ()
    due = [key for key in keys if key not in made]
    # Before the run is open, as this refuses a text that is too short.
    bench = Bench(load_or_make(run.config), run.config) if due else None
    run.open(keys)
    if bench is not None:
        warm: set[str] = set()
        with run.sampling(keys) as progress:
            for key in due:
                if key.method not in warm:
                    for _ in range(task.warm_up):
                        bench.seconds_per_token(key.method, 0)
                    warm.add(key.method)
                run.store.append([_row(key, bench, run.config.seed, machine)])
                progress(1)
    rows = run.merge()
    _report(run, rows, methods)


def _row(key: Key, bench: Bench, seed: int, machine: str) -> Row:
    seconds = bench.seconds_per_token(key.method, derive_seed(seed, key.repeat) % 2**31)
    return {
        **key._asdict(),
        "ms_per_token": 1e3 * seconds,
        "tokens": len(bench.tokens),
        "automaton_seconds": bench.automaton_seconds,
        "table_seconds": bench.table_seconds.get(key.method),
        "states": bench.constraint.num_states,
        "classes": bench.constraint.num_classes,
        "machine": machine,
    }


def _report(run: Run, rows: list[Row], methods: list[str]) -> None:
    """Make the table: medians, ratios within each turn, and the paper's figures."""
    times = {
        method: [row["ms_per_token"] for row in sorted(own, key=itemgetter("repeat"))]
        for method, own in group_rows(rows, itemgetter("method")).items()
    }
    records = [_record(method, rows, times) for method in methods]
    table = [
        {
            "method": record["method"],
            "ms per token": f"{record['ms_per_token']:.2f}",
            "least to greatest": f"{record['least']:.2f} to {record['greatest']:.2f}",
            "x lm": number(record["slowdown"]),
            "x generate": number(record["slowdown_generate"]),
            "table, s": number(record["table_seconds"]),
            "paper, ms": number(PAPER.get(method)),
            "paper, x lm": number(PAPER[method] / PAPER["lm"] if method in PAPER else None),
        }
        for method, record in zip(methods, records, strict=True)
    ]
    first = rows[0]
    own = " (the discrete filter chooses its own)" if "discrete" in methods else ""
    text = (
        f"## Milliseconds a token\n\n{as_markdown(table)}\n\n"
        f"The model is {title_of(run.config.model)}, on {first['machine']}, with "
        f"{first['particles']} particles and {first['tokens']} tokens that are fixed in "
        f"advance{own}. Times are medians of {run.config.task.repeats} runs, in turns. Ratios are "
        "medians of the ratios within a turn. The times don't include the prompt, the "
        f"constraint ({first['states']} states, {first['classes']} classes, "
        f"{first['automaton_seconds']:.2f} s), and the table of P-GCD. HMMs have random "
        "parameters. The paper's times (arXiv 2606.01926, Table 2) are for Llama-3.1-8B with batch "
        "16 on one H100.\n"
    )
    summary = {"machine": first["machine"], "tokens": first["tokens"], "rows": records}
    run.report(text, summary, tables={"times": table})


def _record(method: str, rows: Sequence[Row], times: Mapping[str, list[float]]) -> dict[str, Any]:
    mine = times[method]
    tables = [row["table_seconds"] for row in rows if row["method"] == method]
    ratios = {
        floor: statistics.median(map(truediv, mine, times[floor])) if floor in times else None
        for floor in ("lm", "generate")
    }
    return {
        "method": method,
        "ms_per_token": statistics.median(mine),
        "least": min(mine),
        "greatest": max(mine),
        "slowdown": ratios["lm"],
        "slowdown_generate": ratios["generate"],
        "table_seconds": next((each for each in tables if each is not None), None),
    }


TASK = ExperimentTask("latency", LatencyConfig, check, _read, _identity, _run)
