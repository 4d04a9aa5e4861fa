"""Compare this checkout with another one of the project, workload by workload, in one run.

    git worktree add ../older COMMIT
    OMP_NUM_THREADS=1 python -m benchmarks.versions ../older --clock cpu

Each checkout has its own process. Both run the workloads of this file, which call public
interfaces only, in turns: one schema, or one other piece of work, at a time. A first round compiles
or loads kernels and fills caches, and isn't counted. A time is the least of a round's repetitions.

A row of the table has several pieces. Its figure is the sum, or another statistic, over the pieces;
the time of a piece is the least of all rounds. Its ratio compares the figures of both checkouts in
one round; the table has the median over rounds, and the range.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch

import gcd
import hmm
import smc
from gcd._serving.kernels.masks import Masks
from gcd._serving.matcher import CACHE_BYTES, masks_of
from smc.testing import ToyLM, ToyRows

HERE = Path(__file__).resolve()
DATA = Path("../shared/data")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
REPEATED = 0.03  # short work is repeated for this many seconds
PARTICLES, BUDGET, TABLE_BUDGET, HIDDEN = 16, 40, 128, 256
OTHERS = [  # title, method and variants of workloads without schemas
    ("make the vocabulary's prefix tree", "tree", [""]),
    ("a step of", "match", ["a matcher, fresh", "a matcher, warm", "a matcher, fresh, budget"]),
    ("a step of", "match", ["16 matchers, fresh", "16 matchers, warm"]),
    (f"a step of {PARTICLES} particles,", "sample", ["GCD", "GCD discrete", "P-GCD"]),
    (f"recursion, H = {HIDDEN},", "recursion", ["within the budget", "eventual"]),
    (f"an iteration of EM, H = {HIDDEN}", "em", [""]),
]
STATISTICS = {"median": np.median, "95%": partial(np.percentile, q=95), "worst": np.max,
              "sum": np.sum}  # fmt: skip


def read(file: str) -> Any:
    """Read a JSON file."""
    return json.loads(Path(file).read_text("utf-8-sig"))


class Workloads:
    """The workloads; each method prepares one, given a schema's file or the name of a variant.

    A method returns a function that does the work and returns a value to compare. It may set
    `steps`, which the time is divided by, and `apart`, seconds to subtract.
    """

    def __init__(self, ranks: str, tools: list[str], clock: str) -> None:
        end = gcd.Vocabulary.from_ranks(ranks, eos_ids=[]).size
        self.vocabulary = gcd.Vocabulary.from_ranks(ranks, eos_ids=[end])
        self.ids = {token: i for i, token in enumerate(self.vocabulary.token_bytes)}
        languages = {Path(file).stem: gcd.json_schema(read(file)["schema"]) for file in tools}
        self.lifted = {name: gcd.lift(each, self.vocabulary) for name, each in languages.items()}
        spelled = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
        self.answers = [self.spell(spelled(read(file)["instances"][0]).encode()) for file in tools]
        generator = torch.Generator().manual_seed(0)
        self.hmm = hmm.HMM.random(HIDDEN, self.vocabulary.size, generator=generator)
        self.now, self.steps, self.apart = CLOCKS[clock], 1, 0.0
        extend = ToyRows.extend

        def timed(*arguments: Any) -> torch.Tensor:
            self.apart -= self.now()
            log_p = extend(*arguments)
            self.apart += self.now()
            return log_p

        ToyRows.extend = timed

    def compile(self, file: str) -> Callable[[], object]:
        schema = read(file)["schema"]
        return lambda: gcd.json_schema(schema).num_states

    def tree(self, _: str) -> Callable[[], object]:
        given, letter = (self.vocabulary.token_bytes, self.vocabulary.eos_ids), gcd.literal("a")
        return lambda: gcd.lift(letter, gcd.Vocabulary.from_bytes(*given)).num_states

    def lift(self, file: str) -> Callable[[], object]:
        language = gcd.json_schema(read(file)["schema"])
        return lambda: gcd.lift(language, self.vocabulary).num_states

    def serve(self, file: str) -> Callable[[], object]:
        lifted = self.lifted[Path(file).stem]
        return lambda: Masks(lifted, CACHE_BYTES).nbytes

    def spell(self, text: bytes) -> list[int]:
        """Spell a text by the longest token at each position."""
        sizes = (size for size in range(len(text), 0, -1) if text[:size] in self.ids)
        return [self.ids[text[: (size := next(sizes))]], *self.spell(text[size:])] if text else []

    def match(self, how: str) -> Callable[[], object]:
        together, warm, budget = how.startswith("16"), "warm" in how, "budget" in how
        pairs = list(zip(self.lifted.values(), self.answers, strict=True))
        pairs = sorted(pairs, key=lambda pair: -len(pair[1]))[: 16 if together else None]
        matchers = [gcd.Matcher(s, budget=len(a) + 1 if budget else None) for s, a in pairs]
        batch = gcd.MatcherBatch(matchers)
        rows = np.zeros((len(pairs), pairs[0][0].num_words), np.int32)
        columns = list(zip(*(answer for _, answer in pairs), strict=False))  # to a shortest end

        def work() -> object:
            for matcher, (served, _) in zip(matchers, pairs, strict=True):
                matcher.reset()
                if not warm:
                    masks_of(served).forget()
            for tokens in columns if together else ():
                batch.fill_masks(rows)
                batch.advance(tokens)
            for row, matcher, (_, answer) in zip(rows, matchers, pairs, strict=True):
                for token in answer if not together else ():
                    matcher.fill_mask(row)
                    matcher.advance(token)
            self.steps = len(columns) if together else sum(map(len, self.answers))
            return crc32(rows.tobytes())

        return work

    def sample(self, how: str) -> Callable[[], object]:
        shape, generator = (16, self.vocabulary.size), torch.Generator().manual_seed(0)
        table = (3 * torch.randn(shape, generator=generator)).log_softmax(dim=1)
        lm = ToyLM(self.vocabulary, dtype=torch.float32)
        lm.log_p = lambda tokens: table[hash(tokens) % 16]
        proposal: smc.Proposal[Any] = smc.PGCD(self.hmm) if how == "P-GCD" else smc.GCD()

        def work() -> object:
            (found,) = smc.sample(
                lm, [[0]], self.lifted["weather"], budget=BUDGET, particles=PARTICLES,
                proposal=proposal, forced_runs=False, execution="eager",
                algorithm="discrete" if how.endswith("discrete") else "smc",
            )  # fmt: skip
            self.steps = len(found.diagnostics.ess)
            return sorted(particle.ids for particle in found.particles)

        return work

    def recursion(self, how: str) -> Callable[[], object]:
        table = partial(hmm.lookahead_table, self.hmm, self.lifted["weather"], TABLE_BUDGET - 1)
        return lambda: table(budgets=[[TABLE_BUDGET]], eventual=how == "eventual").num_rows

    def em(self, _: str) -> Callable[[], object]:
        start = hmm.Step(hmm.HMM.random(HIDDEN, 8192, generator=torch.Generator().manual_seed(0)))
        data = torch.arange(4096).reshape(256, 16), torch.full((256,), 16)
        return lambda: round(hmm.em_step(start, [data]).log_likelihood, 3)


def serve_requests(given: dict[str, Any]) -> None:
    """Do the work that the parent process requests, one JSON line per request."""
    replies, sys.stdout = sys.stdout, sys.stderr
    warnings.simplefilter("ignore")
    workloads = Workloads(**given)
    prepare = cache(lambda kind, item: getattr(workloads, kind)(item))
    print(json.dumps(gcd.__file__), file=replies, flush=True)
    for request in sys.stdin:
        try:
            work, least, spent = prepare(*json.loads(request)), float("inf"), 0.0
            gc.collect()
            gc.freeze()
            while spent < REPEATED:
                workloads.steps, workloads.apart, started = 1, 0.0, workloads.now()
                found = work()
                seconds = workloads.now() - started
                spent += seconds
                least = min(least, 1e3 * (seconds - workloads.apart) / workloads.steps)
            reply = [least, found]
        except (gcd.ConstraintError, RecursionError) as error:
            reply = [None, type(error).__name__]
        print(json.dumps(reply), file=replies, flush=True)


def start(python: str, checkout: Path, given: dict[str, Any]) -> Callable[..., Any]:
    """Start a process; return a function that lets it do a piece of work.

    The function returns the milliseconds and the result.
    """
    # -P: this file's folder isn't searched for modules; it has its own `smc.py`.
    command = [python, "-P", str(HERE), "--worker", json.dumps(given)]
    # The earlier of two versions may cache constraints on disk, unless this variable is empty.
    environment = os.environ | {"PYTHONPATH": str(checkout), "GCD_CACHE_DIR": ""}
    pipe = subprocess.PIPE
    worker = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def ask(*request: str) -> Any:
        if request:
            print(json.dumps(request), file=worker.stdin, flush=True)
        reply = worker.stdout.readline()
        return json.loads(reply) if reply else sys.exit(f"a worker failed: {worker.wait()}")

    if not Path(file := ask()).is_relative_to(checkout):
        sys.exit(f"expected the package of {checkout}, got {file}")
    return ask


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--python", default=sys.executable, help="Python of the other checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--schemas", type=Path, default=DATA / "public_schemas")
    parser.add_argument(
        "--public",
        type=int,
        default=100,
        help="number of schemas to compile; a tenth of them is lifted",
    )
    parser.add_argument("--vocabulary", type=Path, default=DATA / "vocabularies/qwen/qwen.tiktoken")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    given = parser.parse_args()
    from benchmarks.common import SCHEMAS, head, line  # a worker would import the other checkout's

    tools = sorted(map(str, SCHEMAS.glob("*.json")))
    public = sorted(map(str, given.schemas.resolve().glob("*.json")))
    public = public[:: -(-len(public) // given.public)]
    rows = [(f"compile {Path(file).stem}", "compile", [file]) for file in tools]
    rows += [(f"{kind} the tool schemas", kind, tools) for kind in ("compile", "lift", "serve")]
    rows += [("compile public schemas", "compile", public), ("lift a tenth", "lift", public[::10])]
    rows += [(f"{what} {how}", kind, [how]) for what, kind, variants in OTHERS for how in variants]
    options = {"ranks": str(given.vocabulary.resolve()), "tools": tools, "clock": given.clock}
    this = start(sys.executable, HERE.parent.parent, options)
    other = start(given.python, given.other.resolve(), options)
    times = {(kind, item): list[list[float]]() for _, kind, items in rows for item in items}
    for turn in range(given.rounds + 1):
        for piece in list(times):
            replies = {ask: ask(*piece) for ask in ((this, other) if turn % 2 else (other, this))}
            (mine, found), (theirs, expected) = replies[this], replies[other]
            if None in (mine, theirs):
                del times[piece]
            elif turn:
                times[piece].append([mine, theirs])
            if turn == 0 and (found != expected or mine is None):
                print(f"{' '.join(piece)}: found {found}, the other {expected}\n")
    print(head("workload", "this version, ms", "the other, ms", "ratio (range)"))
    for title, kind, items in rows:
        table = np.array([times[kind, item] for item in items if (kind, item) in times])
        for name, statistic in (STATISTICS if len(items) > 1 else {"": np.sum}).items():
            best = statistic(table.min(axis=1), axis=0)
            ratios = np.divide(*statistic(table, axis=0).T)
            spread = f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
            times_of_both = (f"{ms:.3g}" for ms in best)
            print(line(f"{title} {name}".strip(), *times_of_both, spread))


if __name__ == "__main__":
    serve_requests(json.loads(sys.argv[2])) if sys.argv[1:2] == ["--worker"] else main()
