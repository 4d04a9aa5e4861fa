"""Task `+task=convergence`: samplers compared with the exact posterior.

For each problem the task computes the language model's distributions once at every prefix
(`cached`), the exact posterior (`truth`), and an HMM. For each method, algorithm and number of
particles it makes hundreds of runs (`measures`) and measures them. Invalid problems are refused
before the model is called.

Rows and the model's values within the budget are written to the run directory as they are made, and
the same command resumes with the same result. (The model is called again at prefixes that only LCD
reaches, where its rounding may differ.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from omegaconf import DictConfig

from experiments.arms import (
    ALGORITHMS,
    FITTED,
    METHODS,
    algorithms_of,
    existing_hmm,
    hmm_settings,
    is_discrete,
    method_of,
    methods_of,
    needs_hmm,
    refuse_little_memory,
)
from experiments.config import Config, HMMConfig, at_least, inside, refuse_unused
from experiments.distillation.clones import clone
from experiments.distillation.data import Sequences, digest
from experiments.distillation.lumping import Lumping
from experiments.distillation.prefixes import TopTokenPrefixes
from experiments.distillation.sampling import sample_batch
from experiments.exact.cached import CachedLM
from experiments.exact.measures import estimate, sample_runs
from experiments.exact.problems import BUILTIN, Prepared, Problem, prepare, read_problems
from experiments.exact.truth import levels_of, solve, total_variation
from experiments.models import digest_of, load_model, weights_of
from experiments.tasks import (
    ExperimentTask,
    Identity,
    Key,
    Row,
    Run,
    bar,
    derive_seed,
    results_config,
)
from gcd import Vocabulary
from hmm import HMM, load, save
from smc import LanguageModel, TransformersLM

MOST_PREFIXES = 200_000


@dataclass
class ConvergenceConfig:
    """Samplers compared with the exact posterior, by particles and by prefixes read."""

    name: str = "convergence"
    problems: str | None = None  # JSON file of problems; None: the built-in ones
    methods: list[str] = field(default_factory=lambda: ["lcd", "gcd", "pgcd"])
    algorithms: list[str] = field(
        default_factory=lambda: ["smc_paper", "smc", "smc_none", "discrete"]
    )
    particles: list[int] = field(default_factory=lambda: [1, 4, 16, 64])
    runs: int = 300  # minimum of independent runs per arm and number of particles
    draws: int = 3000  # minimum of particles over all runs
    max_prefixes: int = MOST_PREFIXES  # of a problem; at most the default

    # The HMM of P-GCD: a checkpoint, or None to distill one from free continuations.
    hmm: str | None = None
    hmm_states: int = 1024  # at most
    hmm_sequences: int = 10000
    hmm_length: int = 16  # maximum tokens of a sequence; at most the largest budget


def check(config: DictConfig) -> None:
    """Check the settings; raise a `ValueError` with the invalid value and the remedy."""
    task = config.task
    for key in ("runs", "draws", "hmm_length", "hmm_sequences"):
        at_least(f"task.{key}", task[key], 1)
    at_least("task.hmm_states", task.hmm_states, 2)
    most = task.max_prefixes
    inside("task.max_prefixes", most, f"1..{MOST_PREFIXES}", 1 <= most <= MOST_PREFIXES)
    _file_of(config)
    _check_methods(config)
    records = ["data.path", "data.hub", "data.offset"]
    refuse_unused(config, Config, records, "+task=convergence reads no records; see task.problems")
    unread = ["smc.execution", "model.prompt_mib"]
    refuse_unused(config, Config, unread, "+task=convergence runs on tables, which have one form")
    if task.hmm is not None:
        existing_hmm("task.hmm", task.hmm)
        if not any(map(needs_hmm, methods_of(config))):
            raise ValueError(
                f"expected a method that looks ahead with task.hmm={task.hmm}, got task.methods="
                f"{methods_of(config)}; add pgcd, or leave task.hmm out"
            )
    refuse_unused(config, Config, ["hmm.path"], "+task=convergence takes its HMM from task.hmm=DIR")
    own = "pgcd, pgcd_in_time, pgcd_joint, pgcd_tied, pgcd_exact"
    reason = f"+task=convergence has a method for each ({own})"
    refuse_unused(config, Config, ["hmm.exact_top_k", "hmm.lookahead"], reason)


def _file_of(config: DictConfig) -> Path:
    """Return the file of the problems.

    Raises:
        ValueError: there is no such file, or no built-in problems for the model.
    """
    if config.task.problems is not None:
        path = Path(config.task.problems).expanduser()
        if not path.is_file():
            raise ValueError(f"expected an existing file, got task.problems={path}")
        return path
    model = Path(config.model.path).name
    if model not in BUILTIN:
        raise ValueError(
            f"expected task.problems=FILE.json with model.path={config.model.path}, because the "
            f"built-in problems are written in the tokens of {' and '.join(BUILTIN)}"
        )
    return BUILTIN[model]


def _check_methods(config: DictConfig) -> None:
    """Check that every method can be sampled on restricted tokens."""
    methods = methods_of(config)
    names = [n for n in methods if ":" in n or not method_of(n).in_convergence]
    if names:
        known = [name for name, method in METHODS.items() if method.in_convergence]
        raise ValueError(
            f"expected methods that +task=convergence can run ({', '.join(known)}) in "
            f"task.methods, got {', '.join(names)}"
        )
    filters = [name for name in algorithms_of(config) if is_discrete(name)]
    if filters and "lm" in methods:
        raise ValueError(
            f"expected task.algorithms=[smc] with lm in task.methods, got {','.join(filters)}, "
            "where all forbidden tokens together would be a single candidate; give "
            "task.algorithms=[smc], or leave lm out"
        )


def _read(config: DictConfig) -> list[Problem]:
    """Read the problems."""
    return read_problems(_file_of(config))


def _identity(config: DictConfig, problems: list[Problem]) -> Identity:
    """Return what determines the results: settings, model files, problems, and the HMM."""
    identity = {**results_config(config), **weights_of(config.model)}
    identity["problems_sha256"] = digest([_file_of(config)])
    if config.task.hmm is not None:
        identity["hmm_files"] = digest_of(Path(config.task.hmm).expanduser(), left_out=FITTED)
    return identity


def _run(run: Run, problems: list[Problem]) -> None:
    """Prepare all problems, run them one by one, and report."""
    config = run.config
    lm, tokenizer = load_model(config.model)
    prepared = [prepare(p, lm, tokenizer, config.task.max_prefixes) for p in problems]
    given_hmm = _load_hmm(config, prepared)
    keys = [key for number in range(len(problems)) for key in _keys(number, config.task)]
    run.open(keys)
    hmm = _distill(config, prepared, given_hmm, run.directory)
    reports = []
    with run.sampling(keys) as progress:
        for number, one in enumerate(prepared):
            bench = _Bench(run, number, one, hmm.hmm if hmm else None)
            bench.make_rows(progress)
            reports.append(bench.report())
    from experiments.exact.report import report  # pandas is slow to import

    report(run, reports, [hmm.note] if hmm else [])


def _keys(number: int, task: DictConfig) -> list[Key]:
    """Return the keys of all rows of a problem, given by its number."""
    every = product(task.methods, task.algorithms, task.particles)
    return [Key(str(number), *each) for each in every]


def _settings(config: DictConfig) -> HMMConfig:
    """Return the settings `hmm.*` with the lookahead "conditional".

    The HMM is made of continuations of the same prompts, so every method without a fixed lookahead
    uses "conditional".
    """
    return replace(hmm_settings(config), lookahead="conditional")


# -- the HMM: distilled from free continuations, or loaded
#
# Each run has one HMM for all problems. The model continues the problems' prompts freely, without a
# constraint, for as many tokens as the budgets need (`experiments.distillation.sampling`), and the
# visited prefixes are clustered to states (`clones`). The HMM therefore models answers without
# having seen a constraint or the current prompt; distillation takes a minute. An interrupted
# distillation starts over.

_TOP = 64  # next tokens that are kept of each prefix
_NUMBERS = 1 << 26  # numbers in the distributions of a batch


class Distilled(NamedTuple):
    """An HMM with a description of its origin."""

    hmm: HMM  # float32
    note: str


class Recipe(NamedTuple):
    """Settings that determine a distilled HMM."""

    states: int  # at most
    sequences: int  # to sample
    length: int  # tokens of a sequence, at most
    seed: int


def load_given(directory: str, vocabulary: Vocabulary) -> Distilled:
    """Load the HMM of a checkpoint.

    Raises:
        ValueError: there is no HMM, or the HMM has another vocabulary; the message names both.
    """
    try:
        hmm = load(Path(directory).expanduser(), vocabulary=vocabulary).hmm
    except ValueError as error:
        raise ValueError(f"task.hmm={directory}: {error}") from error
    hmm = hmm.to(dtype=torch.float32)
    return Distilled(hmm, f"HMM of {hmm.num_states} states from {directory}")


def distill(
    lm: LanguageModel, prompts: Sequence[Sequence[int]], recipe: Recipe, directory: Path
) -> Distilled:
    """Make the HMM of these prompts, or load it if the directory exists."""
    distinct = sorted({tuple(prompt) for prompt in prompts}, key=lambda p: (len(p), p))
    if not directory.is_dir():
        sampled = _continue(lm, distinct, recipe)
        # No token is lumped: a constraint may need tokens that the model didn't write.
        every = Lumping.all_but(torch.ones(lm.vocabulary.size, dtype=torch.bool))
        prefixes = TopTokenPrefixes.of(sampled, every)
        hmm = clone(prefixes, recipe.states, eos_ids=lm.vocabulary.eos_ids, seed=recipe.seed)
        # Renamed once complete, so that a partial HMM of a killed run isn't used.
        partial = directory.with_name(directory.name + ".part")
        save(hmm, partial, vocabulary=lm.vocabulary)
        partial.replace(directory)
    found = load(directory, vocabulary=lm.vocabulary).hmm
    note = (
        f"HMM of {found.num_states} states, distilled from {recipe.sequences} free "
        f"continuations of {len(distinct)} prompts, at most {recipe.length} tokens each"
    )
    return Distilled(found, note)


def _continue(lm: LanguageModel, prompts: Sequence[tuple[int, ...]], recipe: Recipe) -> Sequences:
    """Sample continuations, with an equal share per prompt."""
    parts: list[Sequences] = []
    size = max(1, _NUMBERS // lm.vocabulary.size)
    with bar(recipe.sequences, "free continuations", "sequence") as shown:
        for number, prompt in enumerate(prompts):
            share = len(range(number, recipe.sequences, len(prompts)))
            length = recipe.length
            if lm.context is not None:
                length = min(length, lm.context - len(prompt))
            generator = torch.Generator(lm.device)
            generator.manual_seed(derive_seed("visited", recipe.seed, prompt))
            for first in range(0, share, size):
                some = min(size, share - first)
                parts.append(sample_batch(lm, [prompt] * some, length, generator, _TOP))
                shown.update(some)
    return Sequences.join(parts)


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
    sized = found.hmm if found else HMM.random(task.hmm_states, 1)
    settings = _settings(config)
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
    length = min(task.hmm_length, max(one.problem.budget for one in problems))
    recipe = Recipe(task.hmm_states, task.hmm_sequences, length, config.seed)
    lm = problems[0].lm
    with_own_ends = TransformersLM(lm.model, lm.tokenizer)
    return distill(with_own_ends, [one.prompt for one in problems], recipe, run_dir / "hmm")


class _Bench:
    """One problem: its cached model, its exact solution, and its rows."""

    def __init__(self, run: Run, number: int, prepared: Prepared, hmm: HMM | None) -> None:
        self.config = run.config
        self.store = run.store
        self.keys = _keys(number, run.config.task)
        self.prepared = prepared
        self.hmm = None if hmm is None else prepared.restriction.hmm(hmm)
        options = run.config.smc
        self.lm = CachedLM(
            prepared.lm, prepared.prompt, prepared.restriction, temperature=options.temperature,
            max_rows=options.max_rows,
        )  # fmt: skip
        problem = prepared.problem
        levels = levels_of(self.lm, prepared.restriction.automaton, problem.budget)
        self._fill(run.directory / "values" / f"{number}.npz")
        texts = None if problem.strings is None else [text.encode() for text in problem.strings]
        try:
            self.truth = solve(self.lm, levels, texts)
        except ValueError as error:
            raise ValueError(f"problem {problem.name!r}: {error}") from error

    def _fill(self, path: Path) -> None:
        """Read the distributions within the budget from a file, or compute and write them."""
        nodes = torch.arange(self.lm.num_nodes)
        if path.is_file():
            with np.load(path) as saved:
                if self.lm.load(nodes, saved["log_p"]):
                    return
        with bar(len(nodes), f"prefixes of {self.prepared.problem.name}", "prefix") as shown:
            self.lm.compute(nodes, shown.update)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part.npz")
        np.savez_compressed(partial, log_p=self.lm.values(nodes))
        partial.replace(path)

    def make_rows(self, progress: Callable[[int], object]) -> None:
        """Make the missing rows, and write each to disk at once."""
        for key in self.keys:
            if key not in self.store:
                self.store.append([self._row(key)])
                progress(1)

    def _row(self, key: Key) -> Row:
        """Make and measure the runs of one arm with one number of particles."""
        config, truth, particles = self.config, self.truth, key.particles
        method = METHODS[key.method]
        runs = max(config.task.runs, -(-config.task.draws // particles))
        found = sample_runs(
            self.lm,
            self.prepared.restriction.automaton,
            truth.texts,
            runs,
            max_tokens=self.prepared.problem.budget,
            particles=particles,
            proposal=method.proposal(_settings(config), self.hmm),
            seed=config.seed,
            algorithm=ALGORITHMS[key.algorithm].make(config),
        )
        measured = estimate(found, particles, truth.posterior, truth.log_evidence, config.seed)
        exact: float | None = None
        if measured["enumerated"]:
            exact = measured["tv"]
        elif particles == 1 and not is_discrete(key.algorithm) and key.method in truth.laws:
            # One particle of SMC is a single sample, which resampling doesn't change.
            exact = float(total_variation(truth.laws[key.method], truth.posterior))
        return {**key.named, **measured, "tv_exact": exact}

    def report(self) -> dict[str, Any]:
        """Return one line of `results.jsonl`."""
        problem, truth = self.prepared.problem, self.truth
        rows = self.store.rows(self.keys)
        return {
            "name": problem.name,
            "model": self.config.model.path,
            "note": problem.note,
            "prompt": problem.prompt if isinstance(problem.prompt, str) else list(problem.prompt),
            "prompt_ids": list(self.prepared.prompt),
            "budget": problem.budget,
            "eos_ids": list(self.prepared.constraint.vocabulary.eos_ids),
            "prefixes": self.prepared.prefixes,
            "strings": [text.decode(errors="replace") for text in truth.texts],
            "log_evidence": truth.log_evidence,
            "posterior": truth.posterior.tolist(),
            **{
                name: {
                    "share_valid": min(1.0, float(law.sum())),
                    "total_variation": float(total_variation(law, truth.posterior)),
                }
                for name, law in truth.laws.items()
            },
            "estimates": [{k: v for k, v in row.items() if k != "example"} for row in rows],
        }


TASK = ExperimentTask(
    "convergence",
    ConvergenceConfig,
    check,
    _read,
    _identity,
    _run,
    rows_in="rows",
    kept=("values/*.npz", "hmm"),
    adapter="xlam",
)
