"""`+task=convergence_scale` compares samplers with the exact answer on long answers.

The language model is a hidden Markov model, so evidence and marginals are known (`truth`). For each
problem the truth, which is kept in the run directory; for each method, algorithm and HMM to look
ahead with (`_arms`) and each number of particles, `task.seeds` independent runs of `smc.sample`, in
one row, which goes to disk as it is made: the same command goes on from there, to the same result
(wall times aside).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from omegaconf import DictConfig

import smc
from experiments.convergence.methods import settings_of
from experiments.convergence.scale.config import PROBLEMS, ScaleConfig, check
from experiments.convergence.scale.measures import measured
from experiments.convergence.scale.mismatch import LOOKAHEADS
from experiments.convergence.scale.problem import LiftedProblem
from experiments.convergence.scale.report import report
from experiments.convergence.scale.source import Source, read_source
from experiments.convergence.scale.truth import Truth, truth
from experiments.harness.algorithms import ALGORITHMS
from experiments.harness.arms import Arm
from experiments.harness.identity import Identity, results_config
from experiments.harness.methods import method_of, needs_hmm, refuse_little_memory
from experiments.harness.results import Key
from experiments.harness.run import Run, Task
from experiments.harness.timing import table_seconds
from gcd.support.files import read_json, write_json
from hmm.model import HMM
from smc.models.hmm_lm import PROMPT, HMMLanguageModel


@dataclass(frozen=True)
class Subject:
    """What a run works on: problems over tokens, and where their language models come from."""

    problems: tuple[LiftedProblem, ...]
    sources: dict[str, Source]


def _read(config: DictConfig) -> Subject:
    """Load vocabularies and lift the problems to them."""
    task = config.task
    problems = [PROBLEMS[name](name) for name in task.problems]
    sources = {
        name: read_source(name, task)
        for name in dict.fromkeys(problem.source for problem in problems)
    }
    lifted = [problem.lifted(sources[problem.source].lm.vocabulary) for problem in problems]
    return Subject(tuple(lifted), sources)


def _identity(config: DictConfig, subject: Subject) -> Identity:
    return {
        **results_config(config),
        "built_in": {each.problem.name: each.identity() for each in subject.problems},
        "sources": {name: source.identity for name, source in subject.sources.items()},
    }


def _run(run: Run, subject: Subject) -> None:
    """Sample what is missing, and report."""
    arms = _arms(run.config.task)
    keys = [
        key
        for each in subject.problems
        for arm in arms
        for key in _keys(each, arm, run.config.task.particles)
    ]
    run.open(keys)
    models = {name: _model(run, source, arms) for name, source in subject.sources.items()}
    benches = [_Bench(run, each, models[each.problem.source]) for each in subject.problems]
    with run.sampling(keys) as progress:
        for bench in benches:
            for arm in arms:
                bench.make_rows(arm, progress)
    rows = run.merged()
    assert rows is not None, "one process"
    report(run, subject.problems, [bench.exact for bench in benches], rows)


def _arms(task: DictConfig) -> list[Arm]:
    """All arms in the order of the results; a method that looks ahead is run with each HMM."""
    return [
        Arm(f"{method}/{lookahead}" if lookahead else method, algorithm)
        for algorithm in task.algorithms
        for method in task.methods
        for lookahead in (task.lookaheads if needs_hmm(method) else ("",))
    ]


def _keys(each: LiftedProblem, arm: Arm, particles: Sequence[int]) -> list[Key]:
    """The keys of the rows of one problem and arm."""
    return [Key(each.problem.name, *arm, count) for count in particles]


class _Model(NamedTuple):
    """A language model, and by name what methods look ahead for it with."""

    lm: HMMLanguageModel
    ahead: dict[str, HMM]


def _model(run: Run, source: Source, arms: Sequence[Arm]) -> _Model:
    """The HMM of a source, and worse ones."""
    hmm = source.hmm(run.directory.parent)
    names = dict.fromkeys(name for arm in arms if (name := _lookahead(arm)))
    # Weights use the g that was really used, so single precision costs no correctness.
    ahead = {name: LOOKAHEADS[name](hmm).to(dtype=torch.float32) for name in names}
    return _Model(HMMLanguageModel(hmm, source.lm.vocabulary), ahead)


def _lookahead(arm: Arm) -> str:
    """What an arm looks ahead with, a name of `LOOKAHEADS`; empty where it does not."""
    return arm.method.partition("/")[2]


class _Bench:
    """One problem: the model that is asked, the exact answer, and the rows."""

    def __init__(self, run: Run, each: LiftedProblem, model: _Model) -> None:
        self.run = run
        self.each = each
        self.model = model
        self.exact = self._truth()

    def _truth(self) -> Truth:
        """The exact answer, computed unless it lies in the run directory.

        Raises:
            ValueError: what lies there is of another HMM, so the rows are, too.
        """
        problem, lm = self.each.problem, self.model.lm
        path = self.run.directory / "truths" / f"{problem.name}.json"
        digest = lm.digest()
        if path.is_file():
            found = read_json(path, remedy="remove it, and it is computed again")
            if found["hmm"] != digest:
                raise ValueError(
                    f"{path} is the truth of another HMM than the one there is now "
                    f"({found['hmm']} and {digest}), which was made again since: give another "
                    "run_dir, or resume=false to start this one over"
                )
            return Truth(found["log_evidence"], np.array(found["marginal"]))
        events, budget = problem.events, self.each.budget
        exact = truth(
            lm.hmm, problem.language, events, lm.vocabulary, budget, ending=problem.ending
        )
        path.parent.mkdir(exist_ok=True)
        kept = {
            "hmm": digest,
            "log_evidence": exact.log_evidence,
            "events": [event.name for event in events],
            "marginal": exact.marginal.tolist(),
        }
        write_json(kept, path)
        return exact

    def make_rows(self, arm: Arm, progress: Callable[[int], object]) -> None:
        """Make the rows of an arm that are not there yet, each of which goes to disk at once."""
        run, each, config = self.run, self.each, self.run.config
        due = [key for key in _keys(each, arm, config.task.particles) if key not in run.store]
        if not due:
            return
        hmm = self.model.ahead.get(_lookahead(arm))
        proposal = method_of(arm.method).proposal(settings_of(config), hmm)
        needs = {arm.method: [proposal.memory(each.constraint, each.budget)]}
        refuse_little_memory({arm.method: proposal}, [each.problem.name], needs)
        table = table_seconds(proposal, each.constraint, each.budget)
        # The first call of an arm is not timed: it does what is done once.
        self._sample(arm, proposal, particles=1, runs=1)
        for key in due:
            posteriors = self._sample(arm, proposal, key.particles, config.task.seeds)
            found = measured(posteriors, each.problem.events, self.exact)
            run.store.append([{**key.named, **found, "table_seconds": table}])
            progress(1)

    def _sample(
        self, arm: Arm, proposal: smc.Proposal, particles: int, runs: int
    ) -> list[smc.Posterior]:
        """Sample the problem so many times, independently."""
        config = self.run.config
        return smc.sample(
            self.model.lm,
            [PROMPT] * runs,
            self.each.constraint,
            budget=self.each.budget,
            particles=particles,
            proposal=proposal,
            **ALGORITHMS[arm.algorithm].arguments(config),
            seed=config.seed,
            example_ids=range(runs),
            max_rows=config.smc.max_rows,
        )


TASK = Task(
    "convergence_scale", ScaleConfig, check, _read, _identity, _run, kept=("truths/*.json",)
)
