"""A toy task, method and metric: the code and the entries that a user would add.

`python -m tests.experiments.toy +task=toy ...` is the project's command with the task and method.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import torch
from omegaconf import DictConfig

import gcd
import smc
from experiments import run as experiment
from experiments.arms import ALGORITHMS, METHODS, Method, hmm_settings
from experiments.config import at_least
from experiments.results import write_results
from experiments.run import TASKS, register
from experiments.tables import Metric
from experiments.tasks import ExperimentTask, Identity, Key, Run, results_config
from smc.testing import ToyLM

WORDS = ("ab", "ba", "abba", "b", "aab")
VOCABULARY = gcd.Vocabulary.from_bytes([b"", b"a", b"b", b"ab", b"ba"], eos_ids=[0])


class Sharp(smc.GCD):
    """GCD that draws from p_lm^1.5, and corrects it by its weights."""

    def guide(self, state: smc.AutomatonPosition, log_p: torch.Tensor) -> smc.Factors:
        allowed = super().guide(state, log_p).log_g
        log_g = allowed + 0.5 * log_p.double().clamp(min=-20)
        return smc.Factors.dense(log_g)


SHARP = Method("Sharp GCD", "#CC79A7", "*", make=lambda settings, hmm: Sharp())

LENGTH = Metric(
    "answer_bytes",
    "answer bytes",
    "the length of the most probable answer, or 0 without an answer",
    value=lambda row: len(row["answers"][0]["text"].encode()) if row["answers"] else 0,
    digits=2,
    scale=1,
    compared=True,
)


@dataclass
class ToyConfig:
    """A task: the joint probability of some words under a toy language model."""

    name: str = "toy"
    words: int = 4  # examples: the first word, the first two, ...
    methods: list[str] = field(default_factory=lambda: ["gcd", "sharp"])
    algorithms: list[str] = field(default_factory=lambda: ["smc"])
    particles: list[int] = field(default_factory=lambda: [1, 8])


def _check(config: DictConfig) -> None:
    at_least("task.words", config.task.words, 1)


def _read(config: DictConfig) -> tuple[str, ...]:
    return WORDS[: config.task.words]


def _identity(config: DictConfig, words: tuple[str, ...]) -> Identity:
    return {**results_config(config), "model": "toy"}


def _run(run: Run, words: tuple[str, ...]) -> None:
    task = run.config.task
    lm = ToyLM(VOCABULARY)
    arms = product(task.methods, task.algorithms, task.particles)
    keys = [Key(word, *arm) for arm in arms for word in words]
    run.open(keys)
    with run.sampling(keys) as progress:
        for key in keys:
            if key in run.store:
                continue
            number = words.index(key.example)
            [posterior] = smc.sample(
                lm,
                [[1]],
                gcd.lift(gcd.choice(words[: number + 1]), VOCABULARY),
                max_tokens=5,
                particles=key.particles,
                proposal=METHODS[key.method].proposal(hmm_settings(run.config)),
                algorithm=ALGORITHMS[key.algorithm].make(run.config),
                seed=run.config.seed,
                example_ids=[number],
            )
            run.store.append([key._asdict() | {"log_evidence": posterior.log_evidence}])
            (run.directory / "scratch.txt").write_text("to go on from")
            progress(1)
    rows = run.store.merge(keys)
    lines = [f"{METHODS[r['method']].title} {r['log_evidence']:.3f}" for r in rows]
    write_results(run, "\n".join(lines) + "\n", {"rows": rows})


TASK = ExperimentTask("toy", ToyConfig, _check, _read, _identity, _run, kept=("scratch.txt",))


def install() -> None:
    """Make both entries."""
    TASKS[TASK.name] = TASK
    METHODS["sharp"] = SHARP
    register()


if __name__ == "__main__":
    install()
    experiment.main()
