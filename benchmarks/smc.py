"""Comparison of this project's sampler with `genlm-control`: time, model time, evidence error.

`benchmarks/README.md` describes what both sides have in common, how the package is used
(`benchmarks/smc_genlm.py`), and how errors are compared. All sides run in turns in one process.
Model time is that of forward passes, measured by hooks. The reference evidence is exact if the
token sequences are few enough to enumerate; otherwise it is the mean of two long runs with many
particles. The output says which.

    OMP_NUM_THREADS=1 python -m benchmarks.smc
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from tqdm import tqdm

import gcd
import smc
from benchmarks import common
from benchmarks.common import CLOCKS
from experiments.commongen import prompts as sentences
from experiments.commongen.records import read_file
from experiments.harness.config import ModelConfig
from experiments.harness.models import ROOT, load_model
from experiments.harness.settings import budget_of
from experiments.tool_calling.prompts import compact_prompt
from experiments.tool_calling.records import ToolRecord
from hmm import HMM, load

SENTENCE = r"[A-Z][a-z]+(,? [a-z]+){15,}\."
TINY = " a (boy|dog)"


@dataclass(frozen=True)
class Case:
    """A prompt under a constraint.

    Attributes:
        lm: the language model.
        hmm: the HMM.
        prompt: token ids.
        constraints: by tokenization of literal text; this project uses the first.
        budget: maximum number of tokens, EOS included.
        pattern: regular expression of the constraint, if any.
    """

    lm: smc.TransformersLM
    hmm: HMM
    prompt: list[int]
    constraints: Mapping[str, gcd.TokenAutomaton]
    budget: int
    pattern: str | None = None


class Way(NamedTuple):
    """A way to sample: untimed preparation for a seed, and then a timed run.

    Ways with the same `law` have the same distribution of evidence estimates. Slow ways run fewer
    times.
    """

    name: str
    literals: str
    law: str
    prepare: Callable[[int], Callable[[], tuple[float, int]]]
    slow: bool = False


@dataclass
class Passes:
    """Forward passes of a model: time, number, and positions, padding included."""

    seconds: float = 0.0
    calls: int = 0
    positions: int = 0


class Run(NamedTuple):
    """Time and results of a run; the error is relative, and seconds are None for a warm-up."""

    way: Way
    turn: tuple[int, int]
    seconds: float | None
    passes: Passes
    tokens: int
    error: float


@contextmanager
def count_passes(model: Any, clock: Callable[[], float]) -> Iterator[Passes]:
    """Count the forward passes of a model.

    The hooks stay on the model, because `smc.TransformersLM` computes its cached prompts again if
    the hooks change.
    """
    if model not in _METERS:
        _METERS[model] = meter = _Meter()
        model.register_forward_pre_hook(meter.begin, with_kwargs=True)
        model.register_forward_hook(meter.end)
    meter = _METERS[model]
    meter.clock, meter.passes = clock, Passes()
    try:
        yield meter.passes
    finally:
        meter.passes = None


class _Meter:
    """Hooks that count while there is a counter."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] = time.perf_counter
        self.passes: Passes | None = None
        self._started: list[float] = []

    def begin(self, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self.passes is not None:
            ids = named["input_ids"] if "input_ids" in named else arguments[0]
            self.passes.calls += 1
            self.passes.positions += ids.numel()
            self._started.append(self.clock())

    def end(self, *_: Any) -> None:
        if self.passes is not None:
            self.passes.seconds += self.clock() - self._started.pop()


_METERS: WeakKeyDictionary[Any, _Meter] = WeakKeyDictionary()


def ours(case: Case, particles: int) -> list[Way]:
    """Return LCD, GCD and P-GCD with default options, and GCD with all tokenizations."""
    default = next(iter(case.constraints))

    def way(name: str, proposal: smc.Proposal, literals: str) -> Way:
        def prepare(seed: int) -> Callable[[], tuple[float, int]]:
            return lambda: run(seed)

        def run(seed: int) -> tuple[float, int]:
            (found,) = smc.sample(
                case.lm, [case.prompt], case.constraints[literals], budget=case.budget,
                particles=particles, proposal=proposal, algorithm="smc", seed=seed,
            )  # fmt: skip
            assert found.log_evidence is not None
            return found.log_evidence, sum(len(sample.ids) for sample in found.particles)

        return Way(f"ours, {name}", literals, f"{name}, {literals}", prepare)

    proposals = {"LCD": smc.LCD(), "GCD": smc.GCD(), "P-GCD": smc.PGCD(case.hmm)}
    ways = [way(name, proposal, default) for name, proposal in proposals.items()]
    return ways + [way("GCD", smc.GCD(), other) for other in case.constraints if other != default]


def theirs(case: Case, particles: int, direct: bool, uncached: bool) -> list[Way]:
    """Return the ways of `genlm-control`; empty if it isn't installed."""
    if importlib.util.find_spec("genlm") is None:
        return []
    from benchmarks import smc_genlm

    asked = case.lm, case.prompt, case.constraints["all"], case.budget, particles
    passes = smc_genlm.on_our_passes(*asked)
    own = smc_genlm.on_its_backend(*asked, case.pattern)
    ways = [
        Way("AWRS, its backend", "all", "AWRS", own["awrs"], slow=True),
        Way("AWRS, our passes", "all", "AWRS", passes["lcd"]),
        Way("AWRS, our passes, in the budget", "all", "AWRS, budget", passes["gcd"]),
        Way("direct, our passes and mask", "all", "direct", passes["direct"]),
    ]
    if uncached:
        ways.append(Way("AWRS, its backend, uncached", "all", "AWRS", own["uncached"], slow=True))
    if direct and "direct" in own:
        ways.append(Way("direct, its backend", "all", "direct", own["direct"], slow=True))
    return ways


class Reference(NamedTuple):
    """Reference value of the evidence, and the distance between its two estimates (0 if exact)."""

    log_evidence: float
    gap: float


def reference(case: Case, literals: str, particles: int) -> Reference:
    """Compute the evidence by enumeration of few token sequences, or by two long runs.

    The enumeration is the discrete filter without a limit. Each of the two runs is GCD with half of
    the particles.
    """
    automaton = case.constraints[literals]

    def estimate(number: int, seed: int, **options: Any) -> smc.Posterior:
        return smc.sample(
            case.lm, [case.prompt], automaton, budget=case.budget, particles=number,
            proposal=smc.GCD(), seed=seed, **{"algorithm": "smc", **options},
        )[0]  # fmt: skip

    if sequences(automaton, case.budget) <= particles:
        found = estimate(particles, 0, algorithm="discrete", count_finished=False, floor=0.0)
        assert found.enumerated
        return Reference(found.log_evidence or 0.0, 0.0)
    half = max(1, particles // 2)
    both = [math.exp(estimate(half, seed).log_evidence or 0.0) for seed in (10**6, 10**6 + 1)]
    mean = statistics.mean(both)
    return Reference(math.log(mean), abs(both[0] - both[1]) / mean)


def sequences(automaton: gcd.TokenAutomaton, budget: int) -> float:
    """Count the token sequences that the constraint accepts within a budget."""
    found = np.zeros(automaton.num_states + 1)  # by state; the last entry is for the dead state
    found[automaton.final] = 1
    with np.errstate(over="ignore"):
        for _ in range(budget):
            found[:-1] = found[automaton.delta] @ automaton.tokens_per_class
            found[automaton.final] = 1
    return float(found[automaton.initial])


def measure(
    cases: Sequence[Case], options: argparse.Namespace, shown: Callable[[str], object] = print
) -> list[Run]:
    """Run all ways on all cases in turns, after a warm-up round."""
    runs = []
    clock = CLOCKS[options.clock]
    for number, case in enumerate(cases):
        case.lm.prefill([case.prompt])  # cached from here on
        known = {name: reference(case, name, options.reference) for name in case.constraints}
        for name, (log_evidence, gap) in known.items():
            how = f"two estimates {100 * gap:.1f}% apart" if gap else "exact"
            shown(f"log evidence {number}, {name} spellings: {log_evidence:.3f} ({how})")
        ways = ours(case, options.particles)
        ways += theirs(case, options.particles, options.direct, options.uncached)
        rounds = [
            (turn, way)
            for turn in range(options.repeats + 1)
            for way in ways
            if not way.slow or 0 < turn <= options.own
        ]
        for turn, way in tqdm(rounds, leave=False, disable=None):
            run = way.prepare(1000 * number + turn)
            with count_passes(case.lm.model, clock) as passes:
                started = clock()
                log_evidence, tokens = run()
                seconds = clock() - started
            error = math.exp(log_evidence - known[way.literals].log_evidence) - 1
            timed = seconds if turn else None
            runs.append(Run(way, (number, turn), timed, passes, tokens, error))
    return runs


HEADS = ("side", "spellings", "runs", "s", "× GCD", "outside the model, %", "passes",
         "positions", "tokens/s", "error", "error after 1 s")  # fmt: skip


def table(runs: Sequence[Run]) -> list[list[str]]:
    """Return the rows of the table: medians over timed runs, errors over all runs of a law."""
    timed = [run for run in runs if run.seconds is not None]
    base: dict[tuple[int, int], float] = {}  # of GCD with default options in each turn
    for run in timed:
        if run.way.name == "ours, GCD":
            base.setdefault(run.turn, run.seconds or 0.0)
    rows = []
    for name, literals in dict.fromkeys((run.way.name, run.way.literals) for run in timed):
        mine = [run for run in timed if (run.way.name, run.way.literals) == (name, literals)]

        def median(of: Callable[[Run], float], mine: list[Run] = mine) -> float:
            return statistics.median(map(of, mine))

        seconds = median(lambda run: run.seconds or 0.0)
        pooled = [run.error**2 for run in runs if run.way.law == mine[0].way.law]
        error = math.sqrt(statistics.mean(pooled))
        outside = median(lambda run: 1 - run.passes.seconds / (run.seconds or 1.0))
        rows.append(
            [name, literals, f"{len(mine)}", f"{seconds:.3g}",
             f"{median(lambda run: (run.seconds or 0.0) / base[run.turn]):.2f}",
             f"{100 * outside:.0f}", f"{median(lambda run: run.passes.calls):.0f}",
             f"{median(lambda run: run.passes.positions):.0f}",
             f"{median(lambda run: run.tokens / (run.seconds or 1.0)):.0f}",
             f"{error:.3f} ({len(pooled)})", f"{error * math.sqrt(seconds):.3f}"]
        )  # fmt: skip
    return rows


def free_text(options: argparse.Namespace) -> list[Case]:
    """Return a case with a sentence of CommonGen's first concept set."""
    if not options.tokens:
        return []
    lm, hmm = _models("commongen")
    record = read_file(ROOT / "data" / "commongen" / "dev_100.jsonl").records[0]
    prompt = lm.encode(sentences.build_prompt(record, kind="compact"))
    constraint = {"all": gcd.lift(gcd.regex(SENTENCE), lm.vocabulary)}
    return [Case(lm, hmm, prompt, constraint, options.tokens, SENTENCE)]


def tool_calls(options: argparse.Namespace) -> list[Case]:
    """Return cases of the first xLAM records whose tools aren't refused."""
    if not options.records:
        return []
    lm, hmm = _models("xlam")
    return [
        tool_call(lm, hmm, record, language)
        for record, language in islice(common.tool_calls("json"), options.records)
    ]


def tool_call(
    lm: smc.TransformersLM, hmm: HMM, record: ToolRecord, language: gcd.Automaton
) -> Case:
    """Return the case of a record in JSON style with the default budget."""
    constraints = {
        literals: gcd.lift(language, lm.vocabulary, literals=literals)
        for literals in ("canonical", "all")
    }
    budget = budget_of("default", constraints["canonical"])
    return Case(lm, hmm, lm.encode(compact_prompt(record, "json")), constraints, budget)


def _models(task: str) -> tuple[smc.TransformersLM, HMM]:
    """Return SmolLM2 with a task's adapter, and the HMM distilled from it."""
    models = ROOT / "models"
    lm, _ = load_model(ModelConfig(device="cpu", adapter=str(models / f"smollm2-{task}")))
    hmm = load(models / f"smollm2-{task}-hmm", vocabulary=lm.vocabulary, device=lm.device).hmm
    return lm, hmm


def tiny(options: argparse.Namespace) -> dict[str, Callable[[], list[Case]]]:
    """Return both workloads with a model of 260,000 weights, a random HMM, and one tool."""
    path = str(ROOT / "tests" / "models" / "stories260K")
    lm, _ = load_model(ModelConfig(path=path, device="cpu"))
    hmm = HMM.random(8, lm.vocabulary.size, generator=torch.Generator().manual_seed(0))
    tool = {"name": "go", "parameters": {"type": "object", "properties": {}}}
    record = ToolRecord(id="tiny", query="Go.", tools=(tool,), calls=())
    calls = gcd.tool_calls(record.tools, style="json")
    constraint = {"all": gcd.lift(gcd.regex(TINY), lm.vocabulary)}
    sentence = Case(lm, hmm, lm.encode("There was"), constraint, options.tokens, TINY)
    return {
        "free text": lambda: [sentence] * min(1, options.tokens),
        "tool calls": lambda: [tool_call(lm, hmm, record, calls)] * min(1, options.records),
    }


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=2, help="number of tool calls; 0 for none")
    parser.add_argument("--particles", type=int, default=16)
    parser.add_argument(
        "--tokens", type=int, default=40, help="maximum tokens of free text; 0 for none"
    )
    parser.add_argument("--repeats", type=int, default=2, help="timed runs, after one warm-up run")
    parser.add_argument("--own", type=int, default=1, help="timed runs with genlm's backend")
    parser.add_argument(
        "--direct", action="store_true", help="also run genlm's backend (minutes per run)"
    )
    parser.add_argument(
        "--uncached", action="store_true", help="also run genlm's backend without prompt caching"
    )
    parser.add_argument(
        "--reference", type=int, default=128, help="particles for the reference evidence"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="use a tiny model instead of SmolLM2")
    common.add_clock(parser)
    options = parser.parse_args(arguments)
    if min(options.particles, options.repeats, options.threads, options.reference) < 1:
        parser.error("particles, repeats, threads and particles of the reference are at least one")
    if min(options.records, options.tokens, options.own) < 0:
        parser.error("records, tokens and runs on genlm's own backend are not negative")
    torch.set_num_threads(options.threads)
    if importlib.util.find_spec("genlm") is None:
        print("genlm-control is not installed, ours alone is measured: pip install '.[awrs]'\n")
    workloads: dict[str, Callable[[], list[Case]]] = {
        "free text": lambda: free_text(options),
        "tool calls": lambda: tool_calls(options),
    }
    for title, cases in (tiny(options) if options.tiny else workloads).items():
        chosen = cases()
        if not chosen:
            continue
        print(f"## {title}\n")
        budgets = ", ".join(str(case.budget) for case in chosen)
        print(f"{options.particles} particles, at most {budgets} tokens, {options.threads} threads")
        runs = measure(chosen, options)
        print(f"\n{common.head(*HEADS)}")
        for row in table(runs):
            print(common.line(*row), flush=True)
        print()


if __name__ == "__main__":
    main()
