"""`+task=convergence` compares samplers with the exact posterior.

For each model its HMM; for each problem its tree, the language model asked once at every prefix of
it, and the truth (`exact`); for each method, algorithm and number of particles thousands of runs on
the tree (`sampler`), measured (`measures`). Problems that cannot be honoured are refused before any
model is asked anything.

Rows go to the run directory as they are made, and what the model said within the budget lies beside
them: the same command goes on from there, to the same final result (but for what the model's
arithmetic may round otherwise at prefixes that LCD alone walks, which it is asked again).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from experiments.convergence.builtin import builtin
from experiments.convergence.config import ConvergenceConfig, check
from experiments.convergence.evaluate import Evaluator, load_values, save_values
from experiments.convergence.exact import Exact, exact, floor_of_draws
from experiments.convergence.hmm import Distilled, Recipe, distil, given, with_own_ends
from experiments.convergence.measures import estimate
from experiments.convergence.methods import law_of_sample, on_tree, settings_of
from experiments.convergence.problems import Prepared, Problem, prepare, read_problems
from experiments.convergence.report import report
from experiments.convergence.sampler import TreeLM, TreeProposal, sample_runs
from experiments.convergence.tree import Tree
from experiments.distillation.training import at_random
from experiments.harness import smollm2
from experiments.harness.algorithms import ALGORITHMS, is_discrete
from experiments.harness.config import ModelConfig
from experiments.harness.identity import Identity, results_config
from experiments.harness.methods import METHODS, needs_hmm, refuse_little_memory
from experiments.harness.models import digest_of, load_model, weights_of
from experiments.harness.processes import bar
from experiments.harness.results import Key, Row
from experiments.harness.run import Run, Task

_BARE = {"adapter": "none"}


@dataclass(frozen=True)
class Subject:
    """A model and its problems.

    Attributes:
        path: of the model.
        label: a short name, unlike those of the others.
        model: its settings.
        problems: made ready.
        hmms: one for each problem; none where no method needs one.
    """

    path: str
    label: str
    model: ModelConfig
    problems: tuple[Prepared, ...]
    hmms: tuple[Distilled, ...] = ()

    def name(self, number: int) -> str:
        """Name the problem of this number as rows and files do."""
        return f"{self.label}-{number}"

    def keys(self, number: int, task: DictConfig) -> list[Key]:
        """Give the keys of all rows of the problem of this number."""
        every = product(task.methods, task.algorithms, task.particles)
        return [Key(self.name(number), *each) for each in every]

    @property
    def notes(self) -> list[str]:
        """What there is to say about the HMMs."""
        return [f"{self.path}: {note}" for note in dict.fromkeys(hmm.note for hmm in self.hmms)]


def _read(config: DictConfig) -> list[Problem] | None:
    """The problems of a file; None for the built-in ones, which need a model."""
    return None if config.task.problems is None else read_problems(config.task.problems)


def _run(run: Run, own: list[Problem] | None) -> None:
    """Prepare all problems, then take them one by one, and report."""
    config = run.config
    models = _models(config)
    subjects = [
        _subject(config, model, label, own)
        for model, label in zip(models, _labels([model.path for model in models]), strict=True)
    ]
    keys = [key for s in subjects for i in range(len(s.problems)) for key in s.keys(i, config.task)]
    run.open(keys)
    subjects = [_with_hmm(config, subject, run.directory) for subject in subjects]
    reports = []
    with run.sampling(keys) as progress:
        for subject in subjects:
            for number in range(len(subject.problems)):
                bench = _Bench(run, subject, number)
                bench.make_rows(progress)
                reports.append(bench.report(_title(subjects, subject, number)))
    report(run, reports, [note for subject in subjects for note in subject.notes])


def _models(config: DictConfig) -> list[ModelConfig]:
    """The settings of each model; an adapter is of the configuration's own alone."""
    own = config.model.path
    return [
        cast(
            ModelConfig,
            OmegaConf.merge(config.model, {"path": path} | ({} if path == own else _BARE)),
        )
        for path in config.task.models or [own]
    ]


def _labels(paths: Sequence[str]) -> list[str]:
    """A short name of each model: rows and files are kept under it, so no two may be alike."""
    # However a directory is spelled, its rows have one name.
    places = [Path(path).expanduser() for path in paths]
    names = [(place.resolve() if place.exists() else place).name for place in places]
    if len(set(names)) < len(names):
        names = [f"{number}-{name}" for number, name in enumerate(names)]
    return names


def _title(subjects: Sequence[Subject], subject: Subject, number: int) -> str:
    """The name of a problem, with its model where several are asked the same."""
    name = subject.problems[number].problem.name
    asked = [prepared.problem.name for one in subjects for prepared in one.problems]
    return name if asked.count(name) == 1 else f"{name} ({subject.label})"


def _identity(config: DictConfig, own: list[Problem] | None) -> Identity:
    """What determines the results: settings, the models' files, the file of problems, the HMM."""
    identity = results_config(config)
    identity["model_files"] = [weights_of(model) for model in _models(config)]
    if own is not None:
        content = Path(config.task.problems).expanduser().read_bytes()
        identity["problems_sha256"] = hashlib.sha256(content).hexdigest()[:16]
    if config.task.hmm is not None:
        identity["hmm_files"] = digest_of(Path(config.task.hmm).expanduser())
    return identity


def _subject(
    config: DictConfig, model: ModelConfig, label: str, own: Sequence[Problem] | None
) -> Subject:
    """A model and its problems; nothing is asked of it yet."""
    task, path = config.task, model.path
    lm, tokenizer = load_model(model)
    suite = "toolcalls" if path == smollm2.NAME else "stories"
    problems = builtin(suite, lm, tokenizer, model.prompt) if own is None else own
    prepared = tuple(prepare(p, lm, tokenizer, task.max_prefixes) for p in problems)
    if not any(map(needs_hmm, task.methods)):
        return Subject(path, label, model, prepared)
    # What an HMM cannot do is refused now, not after the first of the methods has run.
    hmms: tuple[Distilled, ...] = ()
    if task.hmm is not None:
        hmms = (given(task.hmm, lm.vocabulary),) * len(prepared)
    prompts = len({one.prompt for one in prepared}) if task.hmm_for == "model" else 1
    if not hmms and prompts > task.hmm_sequences:
        raise ValueError(
            f"task.hmm_sequences={task.hmm_sequences} is less than one for each of {prompts} "
            "prompts; give more, or task.hmm_for=problem"
        )
    sized = hmms[0].hmm if hmms else at_random(task.hmm_states, 1, seed=0)
    settings = settings_of(config)
    ahead = {m: METHODS[m].proposal(settings, sized) for m in filter(needs_hmm, task.methods)}
    for one in prepared:
        needs = {m: [p.memory(one.constraint, one.problem.budget)] for m, p in ahead.items()}
        refuse_little_memory(ahead, [one.problem.name], needs)
    return Subject(path, label, model, prepared, hmms)


def _with_hmm(config: DictConfig, subject: Subject, run_dir: Path) -> Subject:
    """The subject with an HMM for each problem, should a method need one."""
    task = config.task
    if subject.hmms or not any(map(needs_hmm, task.methods)):
        return subject
    lm = with_own_ends(subject.problems[0].lm)
    model = {**weights_of(subject.model), "dtype": config.model.dtype}

    def made_for(problems: Sequence[Prepared]) -> Distilled:
        longest = max(prepared.problem.budget for prepared in problems)
        recipe = Recipe(
            states=task.hmm_states,
            sequences=task.hmm_sequences,
            length=min(task.hmm_length, longest),
            temperature=config.smc.temperature,
            seed=config.seed,
        )
        prompts = [prepared.prompt for prepared in problems]
        return distil(lm, model, prompts, recipe, run_dir.parent)

    if task.hmm_for == "problem":
        hmms = tuple(made_for([prepared]) for prepared in subject.problems)
    else:
        hmms = (made_for(subject.problems),) * len(subject.problems)
    return replace(subject, hmms=hmms)


class _Bench:
    """One problem of one model: its tree, its truth, and its rows."""

    def __init__(self, run: Run, subject: Subject, number: int) -> None:
        self.config = run.config
        self.store = run.store
        self.values = run.directory / "values"
        self.model = subject.path
        self.hmm = subject.hmms[number].hmm if subject.hmms else None
        self.prepared = prepared = subject.problems[number]
        self.name = subject.name(number)
        self.keys = subject.keys(number, self.config.task)
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
            raise ValueError(
                f"problem {prepared.problem.name!r}, model {subject.path}: {error}"
            ) from error
        self.posterior = self.exact.posterior.numpy()

    def _tree(self) -> Tree:
        """The tree with the model's values, asked for as far as they are not on disk."""
        tree = self.prepared.tree()
        path = self.values / f"{self.name}.npz"
        if not load_values(tree, path):
            with bar(tree.num_prefixes, f"prefixes of {self.name}", "prefix", 0) as shown:
                self.evaluator(tree, torch.arange(tree.num_exact), shown.update)
            save_values(tree, path)
        return tree

    def make_rows(self, progress: Callable[[int], object]) -> None:
        """Make the rows that are not there yet, each of which goes to disk at once."""
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
            "tv_exact": self._known(key, proposal, measured),
            "exact_sampler_tv": floor_of_draws(self.exact.posterior, runs * particles),
            "exact_sampler_one_run_tv": floor_of_draws(self.exact.posterior, particles),
            "log_evidence": _log(1 + measured["evidence_bias"], self.exact.log_evidence),
            "posterior": [float(f"{p:.6g}") for p in law],
        }

    def _known(self, key: Key, proposal: TreeProposal, measured: dict[str, Any]) -> float | None:
        """The total variation of the law of one answer, where it need not be estimated."""
        if measured["enumerated"]:
            return float(measured["tv"])
        if key.particles > 1 or is_discrete(key.algorithm):
            return None
        # One particle of SMC is a single sample: resampling can do nothing to it.
        return law_of_sample(proposal, self.exact).total_variation

    def report(self, title: str) -> dict[str, Any]:
        """One line of `results.jsonl`, under this name."""
        problem = self.prepared.problem
        report: dict[str, Any] = {
            "name": title,
            "model": self.model,
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
    """log of the mean evidence; None where every run was dead."""
    return None if ratio <= 0 else float(np.log(ratio)) + log_evidence


TASK = Task(
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
