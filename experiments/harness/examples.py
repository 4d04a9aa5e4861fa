"""Preparation and sampling of records, and the rows of results that they become.

A `RecordHandler` defines what a task does with its records. For each record its language is lifted
to the model's tokens, its budget is computed, and its prompt is checked against the context length.
Invalid records are refused by name before the model runs. The other records are sampled, and each
row is written as soon as it is complete.

Rows report seconds so that methods can be compared. Work shared by all methods is therefore done
beforehand (`Sampling.ready`): prompts are prefilled and cached, and every arm samples one example
whose result is discarded. Only a method's own tables remain in the time of its first rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from omegaconf import DictConfig

import gcd
import smc
from experiments.harness.algorithms import ALGORITHMS
from experiments.harness.methods import method_of, refuse_little_memory
from experiments.harness.models import PromptError, encode
from experiments.harness.results import Key, ResultStore, Row, derive_seed
from experiments.harness.settings import budget_of, budgets_in, part_of
from experiments.harness.vllm_model import VllmModel
from experiments.report.traces import Tracing

Model: TypeAlias = smc.TransformersLM | VllmModel
"""A language model in one of the engines that sample examples."""
_WARM_PARTICLES = 4  # enough to trigger resampling
_SHOWN_ANSWERS = 16  # most probable answers in a row; the row also has the number of answers


class Record(Protocol):
    """A record of a task, with an id that is unique in its source."""

    @property
    def id(self) -> str:
        """Identifier of the record."""
        ...


@dataclass(frozen=True)
class RecordHandler:
    """Functions that define a task on records of one type.

    Attributes:
        language: returns the language of allowed answers, or raises `ConstraintError` to refuse the
            record. Records with the same language should get the same object, which is lifted once.
        prompt: returns the prompt as text of the kind `model.prompt`.
        is_correct: tells whether an answer, in bytes, is correct.
        columns: returns additional columns of the row of an example and its posterior.
        gold: returns the correct answer as text, for budgets that depend on it.
    """

    language: Callable[[Any], gcd.Automaton]
    prompt: Callable[[Any], str]
    is_correct: Callable[[Any, bytes], bool]
    columns: Callable[[Example, smc.Posterior], Row]
    gold: Callable[[Any], str] | None = None


@dataclass(frozen=True)
class Example:
    """A record ready to be sampled.

    Attributes:
        number: index among the records of the run; it keys the random numbers.
        record: the record.
        language: allowed answers, as an automaton over bytes.
        constraint: the same language over the model's tokens.
        prompt: token ids.
        budget: maximum number of tokens of an answer, EOS included.
        table_bytes: memory of each method's tables for this constraint, by method.
        rule: the budget setting, in a run with several budgets; otherwise empty.
    """

    number: int
    record: Record
    language: gcd.Automaton
    constraint: gcd.TokenAutomaton
    prompt: tuple[int, ...]
    budget: int
    table_bytes: Mapping[str, int]
    rule: str = ""


@dataclass(frozen=True)
class Preparation:
    """The examples made of the records, and the records that were refused.

    Attributes:
        examples: the examples to sample.
        refused: id and reason of each refused record.
        seconds: time to compile all constraints.
        prompt_seconds: time to prefill the prompts that are cached for all methods.
        unkept: number of prompts that didn't fit into the cache; each method computes them again.
    """

    examples: tuple[Example, ...]
    refused: tuple[tuple[str, str], ...]
    seconds: float = 0.0
    prompt_seconds: float = 0.0
    unkept: int = 0

    @property
    def num_records(self) -> int:
        """Number of distinct records; a record has one example per budget."""
        return len({id(example.record) for example in self.examples})


def prepare(
    records: Sequence[Record],
    task: RecordHandler,
    lm: Model,
    tokenizer: Any,
    config: DictConfig,
    proposals: Mapping[str, smc.Proposal],
    progress: Callable[[int], object] = lambda _: None,
) -> Preparation:
    """Compile and check every record.

    Args:
        records: the records of the run.
        task: the task's functions.
        lm: the language model.
        tokenizer: its tokenizer.
        config: the configuration of the run.
        proposals: proposals by method, for the memory of their tables.
        progress: called with the number of records done.

    Raises:
        ValueError: all records were refused, or a lookahead table exceeds `hmm.max_table_mib`.
    """
    examples: list[Example] = []
    refused: list[tuple[str, str]] = []
    # Records share lifted languages and the sizes of their tables.
    lifted: dict[int, tuple[gcd.Automaton, gcd.TokenAutomaton]] = {}  # by identity of the language
    table_bytes: dict[tuple[int, int], dict[str, int]] = {}  # and by budget
    specs = budgets_in(config.task.budget)
    rules = [str(spec) if len(specs) > 1 else "" for spec in specs]
    started = time.perf_counter()

    def add(number: int, record: Record, language: gcd.Automaton, spec: Any, rule: str) -> None:
        """Add the example of a record under one budget."""
        if id(language) not in lifted:
            constraint = gcd.lift(language, lm.vocabulary, literals=config.task.literals)
            lifted[id(language)] = language, constraint
        constraint = lifted[id(language)][1]
        gold = None
        if task.gold is not None and str(spec).startswith("gold:"):
            gold = tokenizer(task.gold(record), add_special_tokens=False)["input_ids"]
        budget = budget_of(spec, constraint, gold)
        gcd.check_budget(constraint, budget)
        prompt = encode(task.prompt(record), config.model.prompt, tokenizer)
        smc.check_prompts(cast(smc.LanguageModel, lm), [prompt], [budget])
        cached = id(language), budget
        if cached not in table_bytes:
            table_bytes[cached] = {m: p.memory(constraint, budget) for m, p in proposals.items()}
        tables = table_bytes[cached]
        examples.append(Example(number, record, language, constraint, prompt, budget, tables, rule))

    for number, record in enumerate(records):
        language: gcd.Automaton | None = None
        for i, (spec, rule) in enumerate(zip(specs, rules, strict=True)):
            try:
                language = task.language(record) if language is None else language
                add(i * len(records) + number, record, language, spec, rule)
            except (gcd.ConstraintError, smc.PromptTooLongError, PromptError) as error:
                refused.append((part_of(record.id, rule) if rule else record.id, str(error)))
        progress(1)
    examples.sort(key=lambda example: example.number)
    if not examples:
        raise ValueError(
            f"expected records that can be run, but all {len(records)} were refused; the reason "
            f"of the first is: {refused[0][1]}"
        )
    names = [name_of_example(example) for example in examples]
    needs = {method: [e.table_bytes[method] for e in examples] for method in proposals}
    refuse_little_memory(proposals, names, needs)
    return Preparation(tuple(examples), tuple(refused), time.perf_counter() - started)


@dataclass(frozen=True)
class Sampling:
    """Sampling of the rows of a run.

    Attributes:
        task: the task's functions.
        lm: the language model.
        config: the configuration of the run.
        proposals: proposals by method.
        store: the rows of the run.
    """

    task: RecordHandler
    lm: Model
    config: DictConfig
    proposals: Mapping[str, smc.Proposal]
    store: ResultStore

    def ready(
        self, examples: Sequence[Example], progress: Callable[[int], object] = lambda _: None
    ) -> tuple[float, int]:
        """Do the work that would otherwise be timed with the first method.

        Args:
            examples: the examples of this process.
            progress: called with the number of prompts prefilled.

        Returns:
            Seconds to prefill the prompts, and the number of prompts that aren't cached.
        """
        trials = trials_of(self.config.task)
        due = [e for e in examples if any(trial.key(e) not in self.store for trial in trials)]
        if not due:
            return 0.0, 0
        prompts = sorted({e.prompt for e in due}, key=lambda prompt: (len(prompt), prompt))
        started, kept = time.perf_counter(), 0
        while kept < len(prompts) and self.lm.keep(
            prompts[kept]
        ):  # prompts are sorted by length, so all later ones are too long as well
            kept += 1
            progress(1)
        seconds = time.perf_counter() - started
        self._warm_up(due)
        return seconds, len(prompts) - kept

    def _warm_up(self, due: Sequence[Example]) -> None:
        """Sample the cheapest example once with each method and algorithm."""
        task = self.config.task
        quick = min(due, key=lambda example: (example.budget, len(example.prompt)))
        particles = min(max(task.particles), _WARM_PARTICLES)
        for method, algorithm in product(task.methods, task.algorithms):
            self._sample(Trial(method, algorithm, particles), [quick])
            self.proposals[method].free()  # tables are part of the method's own cost

    def run(
        self,
        examples: Sequence[Example],
        progress: Callable[[int], object] = lambda _: None,
        traced: Collection[int] = (),
    ) -> None:
        """Sample the rows that are missing from the store, and append them.

        Args:
            examples: the examples of this process.
            progress: called with the number of rows done.
            traced: numbers of the examples whose traces are stored.
        """
        if isinstance(self.lm, VllmModel):
            traced = ()
        named = {e.number: (name_of_example(e), _about(e)) for e in examples if e.number in traced}
        tracing = Tracing(self.store, named, self.lm.vocabulary, self.config.trace.particles)
        trials = trials_of(self.config.task)
        for trial, after in zip(trials, [*trials[1:], None], strict=True):
            due = [example for example in examples if trial.key(example) not in self.store]
            write = partial(self._write, due, trial, tracing, progress)
            self._sample(trial, due, observe=tracing.of(*trial), finished=write)
            if after is None or after.method != trial.method:
                # The tables of several methods wouldn't fit into memory together.
                self.proposals[trial.method].free()

    def _sample(self, trial: Trial, examples: Sequence[Example], **others: Any) -> None:
        """Sample the given examples; `others` are further arguments of the sampler."""
        config, proposal = self.config, self.proposals[trial.method]
        if isinstance(self.lm, VllmModel):
            others.pop("observe", None)  # an engine doesn't show its steps
            self.lm.sample(trial, examples, config, proposal, **others)
            return
        method_of(trial.method).sample(
            self.lm,
            [e.prompt for e in examples],
            [e.constraint for e in examples],
            budget=[e.budget for e in examples],
            particles=trial.particles,
            proposal=proposal,
            **ALGORITHMS[trial.algorithm].arguments(config),
            temperature=config.smc.temperature,
            seed=trial.seed(config.seed),
            example_ids=[e.number for e in examples],
            max_rows=config.smc.max_rows,
            **others,
        )

    def _write(
        self,
        due: Sequence[Example],
        trial: Trial,
        tracing: Tracing,
        progress: Callable[[int], object],
        found: Mapping[int, smc.Posterior],
    ) -> None:
        """Write the rows of finished posteriors; the keys of `found` are indices in `due`."""
        # Traces first, so that every stored row has its trace.
        tracing.write({due[cached].number for cached in found})
        self.store.append(
            row_of(due[i], trial, self.task, posterior) for i, posterior in found.items()
        )
        progress(len(found))


def _about(example: Example) -> Row:
    """Return the budget and the prompt of an example for its trace."""
    prompt = example.constraint.vocabulary.decode(example.prompt).decode(errors="replace")
    return {"budget": example.budget, "prompt": prompt}


def name_of_example(example: Example) -> str:
    """Return the name of an example in rows; the number makes it unique within the run."""
    return f"{example.number}:{example.record.id}"


class Trial(NamedTuple):
    """A way to sample an example; an example has one row per trial.

    Attributes:
        method: name of the method.
        algorithm: name of the algorithm.
        particles: N.
        repeat: number of the repetition, from zero.
    """

    method: str
    algorithm: str
    particles: int
    repeat: int = 0

    def seed(self, seed: int) -> int:
        """Return the seed of this repetition in a run with the given seed."""
        return seed if self.repeat == 0 else derive_seed("repeat", seed, self.repeat)

    def key(self, example: Example) -> Key:
        """Return the key of the row of an example."""
        return Key(name_of_example(example), *self)


def trials_of(task: DictConfig) -> list[Trial]:
    """Return all trials of a run, in the order of the results."""
    every = product(task.methods, task.algorithms, task.particles, range(task.repeats))
    return [Trial(*each) for each in every]


def keys_of(examples: Sequence[Example], task: DictConfig) -> list[Key]:
    """Return the keys of all rows of the given examples, in the order of the results."""
    return [trial.key(example) for trial in trials_of(task) for example in examples]


def row_of(example: Example, trial: Trial, task: RecordHandler, posterior: smc.Posterior) -> Row:
    """Make the row of one posterior, one line of `results.jsonl`."""
    correct = [task.is_correct(example.record, answer) for answer in posterior.answers]
    chosen = posterior.answers[0] if posterior.answers else b""
    row = {
        **trial.key(example)._asdict(),
        "budget": example.budget,
        "needed": example.constraint.fewest_tokens,
        # Checked again on the bytes, with the automaton over bytes.
        "valid": not posterior.dead and example.language.accepts(chosen),
        "complete": not posterior.dead and posterior.complete,
        "share_finished": posterior.diagnostics.share_finished,
        "dead": posterior.dead,
        "enumerated": posterior.enumerated,
        "weighted_accuracy": sum(
            p for p, right in zip(posterior.probabilities, correct, strict=True) if right
        ),
        "majority_correct": bool(correct and correct[0]),
        "best": posterior.best,
        "best_correct": bool(correct) and correct[posterior.texts.index(posterior.best)],
        "log_evidence": None if posterior.dead else posterior.log_evidence,
        "log_evidence_error": None if posterior.dead else posterior.reliability.log_evidence_error,
        "certified": posterior.certified,
        "reliability": posterior.reliability.label,
        "ess": posterior.ess,
        "independent": posterior.reliability.ess,
        "budget_removed": None if posterior.budget is None else posterior.budget.removed,
        "stopped": posterior.stopped,
        "lm_calls": posterior.diagnostics.lm_calls,
        "tokens": posterior.diagnostics.tokens,
        # A method that doesn't use the language model doesn't read the prompt either.
        "read": max(0, posterior.diagnostics.tokens - len(example.prompt)),
        "forced": posterior.diagnostics.forced,
        "drafted": posterior.diagnostics.drafted,
        "used": posterior.diagnostics.used,
        "landed": posterior.diagnostics.landed,
        "seconds": round(posterior.diagnostics.seconds, 4),
        "num_answers": len(posterior.answers),
        "answers": [
            {"text": text, "probability": p, "correct": right}
            for text, p, right in zip(
                posterior.texts[:_SHOWN_ANSWERS], posterior.probabilities, correct, strict=False
            )
        ],
        "unfinished": _fragment(posterior),
        **task.columns(example, posterior),
    }
    return row | {"style": part_of(row.get("style", ""), example.rule)} if example.rule else row


def _fragment(posterior: smc.Posterior) -> str | None:
    """Return the unfinished text of the first particle, for a row whose particles all died.

    The result is None for the discrete filter.
    """
    if not posterior.dead or not posterior.particles:
        return None
    return posterior.particles[0].answer.decode(errors="replace")
