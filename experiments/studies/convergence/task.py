"""Task `+task=convergence`: samplers compared with the exact posterior.

For each problem the task builds the tree, computes the language model's distributions once at every
prefix, the exact posterior (`exact`), and an HMM. For each method, algorithm and number of
particles it makes thousands of runs on the tree (`sampler`) and measures them (`measures`). Invalid
problems are refused before the model is called.

Rows and the model's values within the budget are written to the run directory as they are made, and
the same command resumes with the same result. (The model is called again at prefixes that only LCD
reaches, where its rounding may differ.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from experiments import smollm2
from experiments.arms import (
    ALGORITHMS,
    FITTED,
    METHODS,
    is_discrete,
    needs_hmm,
    refuse_little_memory,
)
from experiments.distillation.data import digest
from experiments.distillation.training import at_random
from experiments.models import digest_of, load_model, weights_of
from experiments.rows import ExperimentTask, Identity, Key, Row, Run, bar, results_config
from experiments.studies.convergence.builtin import builtin
from experiments.studies.convergence.config import ConvergenceConfig, check
from experiments.studies.convergence.evaluate import Evaluator, load_values, save_values
from experiments.studies.convergence.exact import Exact, exact, floor_of_draws
from experiments.studies.convergence.hmm import Distilled, Recipe, distil, load_given, with_own_ends
from experiments.studies.convergence.measures import estimate
from experiments.studies.convergence.methods import law_of_sample, on_tree, settings_of
from experiments.studies.convergence.problems import Prepared, Problem, prepare, read_problems
from experiments.studies.convergence.report import report
from experiments.studies.convergence.sampler import TreeLM, TreeProposal, sample_runs
from experiments.studies.convergence.tree import Tree
from hmm import HMM


def _read(config: DictConfig) -> list[Problem] | None:
    """Return the problems of a file; None for the built-in ones, which need a model."""
    return None if config.task.problems is None else read_problems(config.task.problems)


def _run(run: Run, own: list[Problem] | None) -> None:
    """Prepare all problems, run them one by one, and report."""
    config = run.config
    problems = _prepare(config, own)
    given_hmm = _load_hmm(config, problems)
    keys = [key for number in range(len(problems)) for key in _keys(number, config.task)]
    run.open(keys)
    hmm = _distill(config, problems, given_hmm, run.directory)
    reports = []
    with run.sampling(keys) as progress:
        for number, prepared in enumerate(problems):
            bench = _Bench(run, number, prepared, hmm.hmm if hmm else None)
            bench.make_rows(progress)
            reports.append(bench.report())
    report(run, reports, [hmm.note] if hmm else [])


def _keys(number: int, task: DictConfig) -> list[Key]:
    """Return the keys of all rows of a problem, given by its number."""
    every = product(task.methods, task.algorithms, task.particles)
    return [Key(str(number), *each) for each in every]


def _identity(config: DictConfig, own: list[Problem] | None) -> Identity:
    """Return what determines the results: settings, model files, problems, and the HMM."""
    identity = {**results_config(config), **weights_of(config.model)}
    if own is not None:
        identity["problems_sha256"] = digest([Path(config.task.problems).expanduser()])
    if config.task.hmm is not None:
        identity["hmm_files"] = digest_of(Path(config.task.hmm).expanduser(), left_out=FITTED)
    return identity


def _prepare(config: DictConfig, own: Sequence[Problem] | None) -> list[Prepared]:
    """Return the problems prepared for the model, without calling it."""
    lm, tokenizer = load_model(config.model)
    suite = "toolcalls" if config.model.path == smollm2.NAME else "stories"
    problems = builtin(suite, lm, tokenizer, config.model.prompt) if own is None else own
    return [prepare(p, lm, tokenizer, config.task.max_prefixes) for p in problems]


def _load_hmm(config: DictConfig, problems: Sequence[Prepared]) -> Distilled | None:
    """Return the HMM of the settings, if there is one and a method needs it.

    Limits of the HMM are checked here, before the first method runs.
    """
    task = config.task
    if not any(map(needs_hmm, task.methods)):
        return None
    found = None if task.hmm is None else load_given(task.hmm, problems[0].lm.vocabulary)
    prompts = len({one.prompt for one in problems})
    if found is None and prompts > task.hmm_sequences:
        raise ValueError(
            f"expected task.hmm_sequences to be at least {prompts}, the number of prompts, got "
            f"{task.hmm_sequences}; raise it"
        )
    sized = found.hmm if found else at_random(task.hmm_states, 1, seed=0)
    settings = settings_of(config)
    ahead = {m: METHODS[m].proposal(settings, sized) for m in filter(needs_hmm, task.methods)}
    for one in problems:
        needs = {m: [p.memory(one.constraint, one.problem.budget)] for m, p in ahead.items()}
        refuse_little_memory(ahead, [one.problem.name], needs)
    return found


def _distill(
    config: DictConfig, problems: Sequence[Prepared], hmm: Distilled | None, run_dir: Path
) -> Distilled | None:
    """Return the given HMM, or distill one for all problems; None if no method needs one."""
    task = config.task
    if hmm is not None or not any(map(needs_hmm, task.methods)):
        return hmm
    recipe = Recipe(
        states=task.hmm_states,
        sequences=task.hmm_sequences,
        length=min(task.hmm_length, max(prepared.problem.budget for prepared in problems)),
        temperature=config.smc.temperature,
        seed=config.seed,
    )
    lm = with_own_ends(problems[0].lm)
    model = {**weights_of(config.model), "dtype": config.model.dtype}
    return distil(lm, model, [prepared.prompt for prepared in problems], recipe, run_dir.parent)


class _Bench:
    """One problem: its tree, its exact solution, and its rows."""

    def __init__(self, run: Run, number: int, prepared: Prepared, hmm: HMM | None) -> None:
        self.config = run.config
        self.store = run.store
        self.values = run.directory / "values" / f"{number}.npz"
        self.hmm = hmm
        self.prepared = prepared
        self.keys = _keys(number, self.config.task)
        self.settings = settings_of(self.config)
        self.evaluator = Evaluator(
            prepared.lm,
            prepared.prompt,
            prepared.restriction.ids,
            temperature=self.config.smc.temperature,
            max_rows=self.config.smc.max_rows,
        )
        self.tree = self._tree()
        try:
            self.exact: Exact = exact(self.tree)
        except ValueError as error:
            raise ValueError(f"problem {prepared.problem.name!r}: {error}") from error
        self.posterior = self.exact.posterior.numpy()

    def _tree(self) -> Tree:
        """Return the tree with the model's values; missing ones are computed."""
        tree = self.prepared.tree()
        if not load_values(tree, self.values):
            name = self.prepared.problem.name
            with bar(tree.num_prefixes, f"prefixes of {name}", "prefix", 0) as shown:
                self.evaluator(tree, torch.arange(tree.num_exact), shown.update)
            save_values(tree, self.values)
        return tree

    def make_rows(self, progress: Callable[[int], object]) -> None:
        """Make the missing rows, and write each to disk at once."""
        for method in self.config.task.methods:
            due = [key for key in self.keys if key.method == method and key not in self.store]
            if not due:
                continue
            proposal = on_tree(method, self.prepared, self.tree, self.hmm, self.settings)
            for key in due:
                self.store.append([self._row(key, proposal)])
                progress(1)

    def _row(self, key: Key, proposal: TreeProposal) -> Row:
        config, task, particles = self.config, self.config.task, key.particles
        runs = max(task.runs, -(-task.draws // particles))
        found = sample_runs(
            TreeLM(self.tree, self.evaluator),
            proposal,
            algorithm=ALGORITHMS[key.algorithm].make(config),
            particles=particles,
            runs=runs,
            seed=config.seed,
        )
        known = self.posterior, self.exact.log_evidence
        measured = estimate(found, particles, *known, config.seed)
        law: np.ndarray = measured.pop("law")
        return {
            **key.named,
            **measured,
            "tv_exact": self._look_up_variation(key, proposal, measured),
            "exact_sampler_tv": floor_of_draws(self.exact.posterior, runs * particles),
            "exact_sampler_one_run_tv": floor_of_draws(self.exact.posterior, particles),
            "log_evidence": _log(1 + measured["evidence_bias"], self.exact.log_evidence),
            "posterior": [float(f"{p:.6g}") for p in law],
        }

    def _look_up_variation(
        self, key: Key, proposal: TreeProposal, measured: dict[str, Any]
    ) -> float | None:
        """Return the exact total variation of the law of one answer, if it is known."""
        if measured["enumerated"]:
            return float(measured["tv"])
        if key.particles > 1 or is_discrete(key.algorithm):
            return None
        # One particle of SMC is a single sample, which resampling doesn't change.
        return law_of_sample(proposal, self.exact).total_variation

    def report(self) -> dict[str, Any]:
        """Return one line of `results.jsonl`."""
        problem = self.prepared.problem
        report: dict[str, Any] = {
            "name": problem.name,
            "model": self.config.model.path,
            "note": problem.note,
            "prompt": problem.prompt if isinstance(problem.prompt, str) else list(problem.prompt),
            "prompt_ids": list(self.prepared.prompt),
            "budget": problem.budget,
            "eos_ids": list(self.prepared.constraint.vocabulary.eos_ids),
            "prefixes": self.prepared.prefixes,
            "strings": [text.decode(errors="replace") for text in self.tree.texts],
            "log_evidence": self.exact.log_evidence,
            "posterior": self.posterior.tolist(),
        }
        for indicator in ("lcd", "gcd"):
            law = law_of_sample(TreeProposal(self.tree, indicator), self.exact)
            report[indicator] = {
                "share_valid": law.share_valid,
                "total_variation": law.total_variation,
            }
        rows = self.store.rows(self.keys)
        report["estimates"] = [{k: v for k, v in row.items() if k != "example"} for row in rows]
        return report


def _log(ratio: float, log_evidence: float) -> float | None:
    """Return the log of the mean evidence; None if every run is dead."""
    return None if ratio <= 0 else float(np.log(ratio)) + log_evidence


TASK = ExperimentTask(
    "convergence",
    ConvergenceConfig,
    check,
    _read,
    _identity,
    _run,
    rows_in="rows",
    kept=("values/*.npz",),
    adapter="xlam",
)
