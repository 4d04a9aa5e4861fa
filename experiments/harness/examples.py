"""Records are made ready, sampled, and turned into rows, whatever the task.

What a task does with its records is a `RecordTask`. For each record its language is lifted to the
model's tokens, the budget follows from the shortest answer, and the prompt is checked against the
context. A record that cannot be honoured is refused here, by name, before the model runs; the
others are sampled, and their rows written as soon as they are there.

The seconds of rows are to compare methods, so what is done once for all of them is done before
(`ready`): prompts are read and kept, and every arm samples once, for nothing. Of what happens once
a method's own tables alone are left in the time of its first rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple, Protocol

from omegaconf import DictConfig

import gcd
import smc
from experiments.harness.algorithms import ALGORITHMS
from experiments.harness.budgets import budget_of, budgets_in, part_of
from experiments.harness.methods import method_of, refuse_little_memory
from experiments.harness.prompts import PromptError, encode
from experiments.harness.results import Key, ResultStore, Row
from experiments.harness.seeds import derived_seed
from experiments.report.traces import Tracing

_WARM_PARTICLES = 4  # enough to be resampled
_SHOWN_ANSWERS = 16  # the most probable ones are written out; their number is in the row


class Record(Protocol):
    """What a task reads; it has an id, unique in its source."""

    @property
    def id(self) -> str: ...


@dataclass(frozen=True)
class RecordTask:
    """What a task does with its records, all of one type.

    Attributes:
        language: the answers that are allowed; `ConstraintError` refuses the record. Records that
            have one in common are given the same object, which is lifted once.
        prompt: what the model reads, as text of the kind `model.prompt`.
        is_correct: whether an answer, in bytes, is right; decides the accuracies.
        columns: what else the row of an example and its posterior says.
        gold: the right answer as text, in tasks that have one, for budgets that go by it.
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
        number: its index among the records of the run, which names its random numbers.
        record: the record itself.
        language: the answers that are allowed, as an automaton over bytes.
        constraint: the same over the model's tokens.
        prompt: token ids.
        budget: the most tokens of an answer, EOS included.
        table_bytes: by method, memory of what it tabulates of the constraint.
        rule: where the budget comes from, in a run with several budgets; else empty.
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
    """The examples that records became, and the records that were refused.

    Attributes:
        examples: those that will be sampled.
        refused: id and reason of those that will not.
        seconds: compilation of all constraints.
        prompt_seconds: reading of the prompts that are kept for all methods.
        unkept: how many prompts there was no memory for: each method reads them in its own time.
    """

    examples: tuple[Example, ...]
    refused: tuple[tuple[str, str], ...]
    seconds: float = 0.0
    prompt_seconds: float = 0.0
    unkept: int = 0

    @property
    def num_records(self) -> int:
        """How many records the examples are of; several budgets make several of one."""
        return len({id(example.record) for example in self.examples})


def prepare(
    records: Sequence[Record],
    task: RecordTask,
    lm: smc.TransformersLM,
    tokenizer: Any,
    config: DictConfig,
    proposals: Mapping[str, smc.Proposal],
    progress: Callable[[int], object] = lambda _: None,
) -> Preparation:
    """Compile and check every record.

    Args:
        task: what the task does with them.
        proposals: by method; their memory is looked at.
        progress: called with the number of records done.

    Raises:
        ValueError: none is left, or lookahead is allowed too little memory for one that is.
    """
    examples: list[Example] = []
    refused: list[tuple[str, str]] = []
    # What records have in common is made once: lifted languages, and the memory of their tables.
    lifted: dict[int, tuple[gcd.Automaton, gcd.TokenAutomaton]] = {}  # by identity of the language
    table_bytes: dict[tuple[int, int], dict[str, int]] = {}  # and by budget
    specs = budgets_in(config.task.budget)
    rules = [str(spec) if len(specs) > 1 else "" for spec in specs]
    started = time.perf_counter()

    def add(number: int, record: Record, language: gcd.Automaton, spec: Any, rule: str) -> None:
        """Make an example of a record under one budget."""
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
        smc.check_prompts(lm, [prompt], [budget])
        place = id(language), budget
        if place not in table_bytes:
            table_bytes[place] = {m: p.memory(constraint, budget) for m, p in proposals.items()}
        tables = table_bytes[place]
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
            f"none of the {len(records)} records can be run; the first: {refused[0][1]}"
        )
    names = [name_of_example(example) for example in examples]
    needs = {method: [e.table_bytes[method] for e in examples] for method in proposals}
    refuse_little_memory(proposals, names, needs)
    return Preparation(tuple(examples), tuple(refused), time.perf_counter() - started)


def ready(
    examples: Sequence[Example],
    lm: smc.TransformersLM,
    config: DictConfig,
    proposals: Mapping[str, smc.Proposal],
    store: ResultStore,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[float, int]:
    """Do beforehand what would be in the seconds of the method that comes first.

    Args:
        examples: those of this process.
        lm, config, proposals, store: as for `sample_examples`.
        progress: called with the number of prompts read.

    Returns:
        Seconds that reading the prompts took, and the number of prompts that are not kept.
    """
    trials = trials_of(config.task)
    due = [e for e in examples if any(trial.key(e) not in store for trial in trials)]
    if not due:
        return 0.0, 0
    prompts = sorted({example.prompt for example in due}, key=lambda prompt: (len(prompt), prompt))
    started, kept = time.perf_counter(), 0
    while kept < len(prompts) and lm.keep(prompts[kept]):  # after one too long all are too long
        kept += 1
        progress(1)
    seconds = time.perf_counter() - started
    quick = min(due, key=lambda example: (example.budget, len(example.prompt)))
    particles = min(max(config.task.particles), _WARM_PARTICLES)
    for method, algorithm in product(config.task.methods, config.task.algorithms):
        _sample(Trial(method, algorithm, particles), [quick], lm, config, proposals[method])
        proposals[method].free()  # the tables of its rows are its own cost
    return seconds, len(prompts) - kept


def sample_examples(
    examples: Sequence[Example],
    task: RecordTask,
    lm: smc.TransformersLM,
    config: DictConfig,
    proposals: Mapping[str, smc.Proposal],
    store: ResultStore,
    progress: Callable[[int], object] = lambda _: None,
    traced: Collection[int] = (),
) -> None:
    """Sample the rows that the store does not hold yet, and add them to it.

    Args:
        examples: those of this process.
        task: what the task does with its records.
        progress: called with the number of rows done.
        traced: numbers of the examples whose traces are kept beside the rows.
    """
    named = {e.number: (name_of_example(e), _about(e)) for e in examples if e.number in traced}
    tracing = Tracing(store, named, lm.vocabulary, config.trace.particles)
    trials = trials_of(config.task)
    for trial, after in zip(trials, [*trials[1:], None], strict=True):
        proposal = proposals[trial.method]
        due = [example for example in examples if trial.key(example) not in store]
        write = partial(_write, due, trial, task, store, tracing, progress)
        _sample(trial, due, lm, config, proposal, observe=tracing.of(*trial), finished=write)
        if after is None or after.method != trial.method:
            proposal.free()  # tables of several methods would not fit side by side


def _sample(
    trial: Trial,
    examples: Sequence[Example],
    lm: smc.TransformersLM,
    config: DictConfig,
    proposal: smc.Proposal,
    **others: Any,
) -> None:
    """Sample these examples; `others` say what becomes of the posteriors."""
    method_of(trial.method).sample(
        lm,
        [e.prompt for e in examples],
        [e.constraint for e in examples],
        budget=[e.budget for e in examples],
        particles=trial.particles,
        proposal=proposal,
        **ALGORITHMS[trial.algorithm].arguments(config),
        temperature=config.smc.temperature,
        top_p=config.smc.top_p,
        seed=trial.seed(config.seed),
        example_ids=[e.number for e in examples],
        max_rows=config.smc.max_rows,
        **others,
    )


def _write(
    due: Sequence[Example],
    trial: Trial,
    task: RecordTask,
    store: ResultStore,
    tracing: Tracing,
    progress: Callable[[int], object],
    found: Mapping[int, smc.Posterior],
) -> None:
    """Write the rows of posteriors that are there, by their place among the examples due."""
    # Traces first, so that a row which is there has its trace.
    tracing.write({due[place].number for place in found})
    store.append(row_of(due[i], trial, task, posterior) for i, posterior in found.items())
    progress(len(found))


def _about(example: Example) -> Row:
    """What a trace says of its example."""
    prompt = example.constraint.vocabulary.decode(example.prompt).decode(errors="replace")
    return {"budget": example.budget, "prompt": prompt}


def name_of_example(example: Example) -> str:
    """Name the example in rows; record ids are unique in their file, numbers make them so here."""
    return f"{example.number}:{example.record.id}"


class Trial(NamedTuple):
    """How an example is sampled: what sets its rows apart.

    Attributes:
        method, algorithm: their names.
        particles: N.
        repeat: number of the repetition; the first is what there is without repetitions.
    """

    method: str
    algorithm: str
    particles: int
    repeat: int = 0

    def seed(self, seed: int) -> int:
        """Give the seed of this repetition, in a run with that seed."""
        return seed if self.repeat == 0 else derived_seed("repeat", seed, self.repeat)

    def key(self, example: Example) -> Key:
        """Give the key of the row of an example."""
        return Key(name_of_example(example), *self)


def trials_of(task: DictConfig) -> list[Trial]:
    """Give all trials of a run, in the order of the results."""
    every = product(task.methods, task.algorithms, task.particles, range(task.repeats))
    return [Trial(*each) for each in every]


def keys_of(examples: Sequence[Example], task: DictConfig) -> list[Key]:
    """Give the keys of all rows of these examples, in the order of the results."""
    return [trial.key(example) for trial in trials_of(task) for example in examples]


def row_of(example: Example, trial: Trial, task: RecordTask, posterior: smc.Posterior) -> Row:
    """Make the row of one posterior, a line of `results.jsonl`."""
    correct = [task.is_correct(example.record, answer) for answer in posterior.answers]
    chosen = posterior.answers[0] if posterior.answers else b""
    row = {
        **trial.key(example)._asdict(),
        "budget": example.budget,
        "needed": example.constraint.fewest_tokens,
        # Checked again on the bytes, by the automaton that never saw a token.
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
        # A method that leaves the language model alone does not even read the prompt.
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
    """What the first particle of a dead row wrote until its budget ran out; a pool has none."""
    if not posterior.dead or not posterior.particles:
        return None
    return posterior.particles[0].answer.decode(errors="replace")
