"""Overrun of deadlines, and the share of the time that answers use.

    OMP_NUM_THREADS=1 python -m benchmarks.deadline --clock cpu

Each schema of `benchmarks/schemas` is sampled by GCD without a deadline first, and then with
deadlines that are fractions of the time it took. Prompts are cached beforehand. An overrun is given
in seconds, and in steps at the mean seconds of a step without a deadline. `--clock cpu` uses
processor time, for a machine with other work.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from typing import NamedTuple

import smc
import smc._inference.deadlines
from benchmarks.common import CLOCKS, SCHEMAS, add_clock, compile_and_lift, head, line
from experiments.harness.config import ModelConfig
from experiments.harness.models import load_model

MORE = 80
"""Tokens of the budget in addition to the fewest of a schema."""


class Run(NamedTuple):
    """One call with a deadline.

    Attributes:
        seconds: time of the call.
        deadline: the deadline in seconds.
        step: seconds of a step without a deadline.
        posterior: the result.
    """

    seconds: float
    deadline: float
    step: float
    posterior: smc.Posterior

    @property
    def overrun(self) -> float:
        """Seconds after the deadline."""
        return max(0.0, self.seconds - self.deadline)


def runs(
    lm: smc.TransformersLM, name: str, clock: str, particles: int, parts: list[float]
) -> Iterator[Run]:
    """Sample answers to one schema, first without a deadline and then with each deadline."""
    text = (SCHEMAS / f"{name}.json").read_text("utf-8-sig")
    schema = json.dumps(json.loads(text)["schema"])
    prompt = f"A JSON schema:\n{schema}\nA JSON document that obeys it, in full detail:\n"
    constraint, now = compile_and_lift(name, lm.vocabulary), CLOCKS[clock]

    def run(deadline: float | None) -> tuple[float, smc.Posterior]:
        begin = now()
        (posterior,) = smc.sample(
            lm, [prompt], constraint, budget=constraint.fewest_tokens + MORE, particles=particles,
            proposal=smc.GCD(), algorithm="smc", deadline=deadline,
        )  # fmt: skip
        return now() - begin, posterior

    run(0)  # caches the prompt
    whole, plain = run(None)
    for part in parts:
        seconds, posterior = run(part * whole)
        yield Run(seconds, part * whole, whole / plain.diagnostics.lm_calls, posterior)


def row(part: float, particles: int, found: list[Run]) -> str:
    """Return the table row of one deadline."""
    stopped = [run for run in found if run.posterior.stopped is not None]
    late = sorted(run.overrun for run in found)
    steps = sorted(run.overrun / run.step for run in found)
    used = [run.seconds / run.deadline for run in stopped if run.deadline]
    return line(
        particles,
        f"{part:.2f}",
        f"{sum(run.posterior.valid and run.posterior.complete for run in found)} of {len(found)}",
        f"{len(stopped)} of {len(found)}",
        f"{sum(run.overrun == 0 for run in found)} of {len(found)}",
        " / ".join(f"{at:.2f}" for at in (statistics.median(late), late[-1])),
        " / ".join(f"{at:.1f}" for at in (statistics.median(steps), steps[-1])),
        f"{statistics.median(used):.2f}" if used else "",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--schemas", type=int, default=100, help="number of schemas, in the order of their names"
    )
    parser.add_argument("--particles", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--parts", type=float, nargs="+", default=[0.0, 0.3, 0.6, 0.9])
    parser.add_argument("--device", default="cpu")
    add_clock(parser)
    options = parser.parse_args()
    smc._inference.deadlines._clock = CLOCKS[options.clock]
    lm = load_model(ModelConfig(device=options.device, adapter="none"))[0]
    names = sorted(path.stem for path in SCHEMAS.glob("*.json"))[: options.schemas]
    print(
        head(
            "particles", "deadline, part of the time without", "valid and complete",
            "closed early", "in time", "overrun, s: median / most", "in steps: median / most",
            "time used, where closed early: median",
        )
    )  # fmt: skip
    for particles in options.particles:
        found = [list(runs(lm, name, options.clock, particles, options.parts)) for name in names]
        for part, column in zip(options.parts, zip(*found, strict=True), strict=True):
            print(row(part, particles, list(column)), flush=True)


if __name__ == "__main__":
    main()
