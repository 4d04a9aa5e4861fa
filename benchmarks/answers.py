"""Time of a constrained answer, relative to unconstrained text of as many tokens.

    OMP_NUM_THREADS=2 python -m benchmarks.answers --schemas ../shared/data/public_schemas

GCD (`smc.sample`) runs with one forward pass per token, with forced runs, and with forced runs and
reading ahead (`smc.Hooks(read_ahead="auto")`). The baseline is a bare loop that draws as many
tokens from the same model after the same prompt. On a GPU, captured steps are measured too, with a
new capture for each answer. For each answer, all of these *sides* are timed in turn. The table has
medians over answers of the ratios of their times. `benchmarks/claims.md` describes answers and
models.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

import gcd
import smc.captured
from benchmarks.common import head, line, public_schemas, tool_calls
from experiments.config import budget_of
from experiments.latency import seconds_of
from experiments.models import ROOT, ModelConfig, load_model, resolve_device
from experiments.tool_calling.task import compact_prompt

Side = Callable[..., list[smc.Posterior]]
SIDES: dict[str, Side] = {
    "one by one": partial(smc.sample, hooks=smc.Hooks(forced_runs=False, read_ahead=0)),
    "forced runs": partial(smc.sample, hooks=smc.Hooks(read_ahead=0)),
    "read ahead": partial(smc.sample, hooks=smc.Hooks(read_ahead="auto")),
}
CAPTURED: dict[str, Side] = {"captured": smc.captured.sample}
"""Additional side on a CUDA device."""


class Case(NamedTuple):
    """A prompt, and the language of its answers, lifted with both tokenizations."""

    prompt: list[int]
    canonical: gcd.TokenAutomaton
    plain: gcd.TokenAutomaton


def with_prompt(lm: smc.TransformersLM, prompt: str, language: gcd.Automaton) -> Case:
    """Lift a language with both tokenizations."""
    canonical = gcd.lift(language, lm.vocabulary, literals="canonical")
    return Case(lm.encode(prompt), canonical, gcd.lift(language, lm.vocabulary))


def calls(lm: smc.TransformersLM, style: str, count: int, skipped: int = 0) -> Iterator[Case]:
    """Yield the tool calls of `count` records whose tools aren't refused.

    The first `skipped` such records are left out.
    """
    for record, language in islice(tool_calls(style), skipped, skipped + count):
        yield with_prompt(lm, compact_prompt(record, style), language)


def schemas(lm: smc.TransformersLM, folder: Path, count: int, longest: int) -> Iterator[Case]:
    """Yield cases in which the answer is JSON, for `count` schemas of a folder."""
    for _, schema in public_schemas(folder, shuffled=True):
        prompt = f"A JSON schema:\n{json.dumps(schema)}\nA JSON document that obeys it:\n"
        if not count or len(lm.encode(prompt)) > longest:
            continue
        try:
            language = gcd.json_schema(schema)
            if language.is_empty:
                continue
            case = with_prompt(lm, prompt, language)
        except gcd.ConstraintError:
            continue
        if case.canonical.fewest_tokens > longest:
            continue
        count -= 1
        yield case


def draw_unconstrained(lm: smc.TransformersLM, prompt: list[int], rows: int, tokens: int) -> None:
    """Draw a given number of tokens in each row, with the model alone."""
    memory, log_p = lm.prefill([prompt])
    memory.reorder(torch.zeros(rows, dtype=torch.int64, device=lm.device))
    log_p = log_p.expand(rows, -1)
    for _ in range(tokens):
        drawn = torch.multinomial(log_p.exp(), 1)
        log_p = memory.extend(drawn, torch.ones_like(drawn[:, 0]))[:, 0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=16, help="records of xLAM")
    parser.add_argument("--skip", type=int, default=0, help="number of xLAM records to skip")
    parser.add_argument("--schemas", type=Path, help="folder of schemas")
    parser.add_argument("--sample", type=int, default=20, help="number of schemas")
    parser.add_argument("--most-tokens", type=int, default=600, help="text of a schema's prompt")
    parser.add_argument("--particles", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = resolve_device(options.device)
    print(f"{torch.get_num_threads()} threads, {device}\n")
    sides = sides_on(device)
    ratios = (f"{side} / unconstrained" for side in (*sides, "forced runs, all spellings"))
    counts = "tokens", "passes", "passes, read ahead", "unconstrained, ms per token"
    print(head("answers", "number", "particles", *counts, *ratios))
    if options.records:
        lm = load(str(ROOT / "models" / "smollm2-xlam"), options.device)
        for style in ("json", "python"):
            cases = list(calls(lm, style, options.records, options.skip))
            show(f"tool calls, {style}", lm, cases, options)
    if options.schemas is not None:
        lm = load("none", options.device)
        texts = list(schemas(lm, options.schemas, options.sample, options.most_tokens))
        show("schemas", lm, texts, options)


def load(adapter: str, device: str) -> smc.TransformersLM:
    """Return the language model, with an adapter or "none"."""
    return load_model(ModelConfig(device=device, adapter=adapter))[0]


def sides_on(device: torch.device) -> dict[str, Side]:
    """Return the sides that use canonical tokenization."""
    return SIDES | CAPTURED if device.type == "cuda" else SIDES


def show(name: str, lm: smc.TransformersLM, cases: list[Case], options: argparse.Namespace) -> None:
    """Measure all answers of a kind, and print a row for each number of particles."""
    for particles in options.particles:
        # The first case is measured twice, as it loads or compiles kernels.
        turns = tqdm([*cases[:1], *cases], leave=False)
        found = [measure(lm, case, particles) for case in turns][1:]
        columns = [statistics.median(column) for column in zip(*found, strict=True)]
        counts = (f"{count:.0f}" for count in columns[:3])
        others = (f"{number:.2f}" for number in columns[3:])
        print(line(name, len(cases), particles, *counts, *others), flush=True)


def measure(lm: smc.TransformersLM, case: Case, particles: int) -> tuple[float, ...]:
    """Return tokens of an answer, forward passes without and with reading ahead, and times.

    Times are ms per token for the unconstrained loop, and multiples of it for the sides.
    """
    prompt = lm.open(case.prompt)

    def run(constraint: gcd.TokenAutomaton, sample: Side) -> smc.Posterior:
        return sample(
            lm, [prompt], constraint, max_tokens=budget_of("default", constraint),
            particles=particles, proposal=smc.GCD(), algorithm="smc",
        )[0]  # fmt: skip

    def measure(work: Callable[[], object]) -> float:
        return seconds_of(work, lm.device)

    passes = [run(case.canonical, SIDES[side]) for side in ("forced runs", "read ahead")]
    tokens = max(len(sample.ids) for sample in passes[0].particles)
    free = measure(lambda: draw_unconstrained(lm, prompt, particles, tokens))
    sides = [measure(partial(run, case.canonical, side)) for side in sides_on(lm.device).values()]
    # All tokenizations give another answer, so its time is per token.
    other: list[smc.Posterior] = []
    last = measure(lambda: other.append(run(case.plain, SIDES["forced runs"])))
    longest = max(len(sample.ids) for sample in other[0].particles)
    ratios = [side / free for side in sides] + [last / longest / (free / tokens)]
    calls = [float(each.diagnostics.lm_calls - 1) for each in passes]
    return float(tokens), *calls, 1e3 * free / tokens, *ratios


if __name__ == "__main__":
    main()
