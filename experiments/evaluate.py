"""Evaluation of methods on records: each example, arm and number of particles becomes a row.

A `RecordHandler` defines what a task does with its records. `evaluate` makes the rows of a run in
these steps, and `report` writes its table, figures and summary:

    prepare     lift each record's language to the model's tokens, compute its budget, and check its
                prompt; refuse invalid records by name before the model runs
    warm up     do the work that all arms share: prefill prompts, and sample one example per arm
    sample      call `smc.sample` for each arm on the examples without a row, and append rows

Rows report seconds so that methods can be compared, hence the warm-up. Only a method's own tables
remain in the time of its first rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from omegaconf import DictConfig

import gcd
import smc.captured
from experiments import tables
from experiments.arms import (
    ALGORITHMS,
    METHODS,
    describe_fitted,
    hmm_identity,
    method_of,
    proposals,
    refuse_little_memory,
)
from experiments.config import (
    RecordConfig,
    at_least,
    budget_of,
    budgets_in,
    check_budget,
    multiple_in,
    one_of,
    part_of,
    title_of_budgets,
)
from experiments.models import PromptError, encode, title_of, weights_of
from experiments.records import ReadResult
from experiments.report.traces import Tracing, choose_for_tracing
from experiments.rows import Identity, Key, ResultStore, Row, as_lines, derive_seed, results_config
from experiments.tables import LOG_EVIDENCE, VALID, WEIGHTED, Metric, Table, as_markdown, as_table
from experiments.tasks import Run
from experiments.tracking import name_of, numbers_of
from experiments.vllm_model import VllmModel
from smc._results.posterior import content, regroup

Model: TypeAlias = smc.TransformersLM | VllmModel
"""A language model in one of the engines that sample examples."""
_LOG = logging.getLogger(__name__)
_WARM_PARTICLES = 4  # enough to trigger resampling
_SHOWN_ANSWERS = 16  # most probable answers in a row; the row also has the number of answers
WIDTH = 120  # of the terminal


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

    @property
    def name(self) -> str:
        """Name in rows; the number makes it unique within the run."""
        return f"{self.number}:{self.record.id}"


@dataclass(frozen=True)
class Preparation:
    """The examples made of the records, and the records that were refused.

    Attributes:
        examples: the examples to sample.
        refused: id and reason of each refused record.
        seconds: time to compile all constraints.
        prompt_seconds: time to open the prompts, which all methods share.
        unkept: number of prompts that weren't opened for lack of memory; each method computes them.
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
        return Key(example.name, *self)


def trials_of(task: DictConfig) -> list[Trial]:
    """Return all trials of a run, in the order of the results."""
    every = product(task.methods, task.algorithms, task.particles, range(task.repeats))
    return [Trial(*each) for each in every]


def check_records(config: DictConfig) -> None:
    """Check the settings of tasks with records (`RecordConfig`)."""
    task = config.task
    at_least("task.num_examples", task.num_examples, 1)
    at_least("task.repeats", task.repeats, 1)
    check_budget("task.budget", task.budget)
    one_of("task.literals", task.literals, ("all", "canonical"))
    one_of("task.reference", task.reference.partition(":")[0], tuple(METHODS))
    if task.reference not in (RecordConfig.reference, *task.methods):
        raise ValueError(
            f"expected task.reference to be one of task.methods={list(task.methods)}, got "
            f"{task.reference}; add it to task.methods, or give another reference"
        )


def identity(config: DictConfig, read: ReadResult[Any]) -> Identity:
    """Return what determines the results: settings, records and model files.

    The records are dataclasses of plain values.
    """
    records = json.dumps([dataclasses.asdict(record) for record in read.records], sort_keys=True)
    return {
        **results_config(config),
        "records_sha256": hashlib.sha256(records.encode()).hexdigest()[:16],
        **weights_of(config.model),
        **hmm_identity(config),
    }


# -- rows


def evaluate(
    run: Run, read: ReadResult[Any], task: RecordHandler, lm: Model, tokenizer: Any
) -> tuple[Preparation, list[Row]]:
    """Make the missing rows of a run.

    Returns:
        The prepared examples, and all rows.

    Raises:
        ValueError: no record can be run, or `hmm.max_table_mib` is too small.
    """
    config = run.config
    methods = proposals(config, cast(smc.LanguageModel, lm))
    with run.bar(len(read.records), "compiling", "record") as shown:
        prepared = prepare(read.records, task, lm, tokenizer, config, methods, shown.update)
    keys = [t.key(example) for t in trials_of(config.task) for example in prepared.examples]
    run.open(keys)
    _report_refusals(run, read, prepared)
    prepared = _warm_up(run, prepared, lm, methods)
    with run.sampling(keys) as progress:
        make_rows(run.store, prepared.examples, task, lm, config, methods, progress)
    return prepared, run.merge()


def make_rows(
    store: ResultStore,
    examples: Sequence[Example],
    task: RecordHandler,
    lm: Model,
    config: DictConfig,
    methods: Mapping[str, smc.Proposal],
    progress: Callable[[int], object] = lambda _: None,
) -> None:
    """Sample the rows that are missing from the store, and append them.

    Args:
        methods: proposals by method.
        progress: called with the number of rows done.
    """
    tracing = Tracing(
        store, _choose_traced(examples, config, lm), lm.vocabulary, config.trace.particles
    )
    trials = trials_of(config.task)
    for trial, after in zip(trials, [*trials[1:], None], strict=True):
        due = [example for example in examples if trial.key(example) not in store]

        def write(
            found: Mapping[int, smc.Posterior],
            due: Sequence[Example] = due,
            trial: Trial = trial,
        ) -> None:
            """Append the rows of finished posteriors, given by their index in `due`."""
            # Traces first, so that every stored row has its trace.
            tracing.write({due[index].number for index in found})
            store.append(row_of(due[i], trial, task, posterior) for i, posterior in found.items())
            progress(len(found))

        # Without reading ahead, so that rows count only what the method itself needs.
        hooks = smc.Hooks(observe=tracing.of(*trial), finished=write, read_ahead=0)
        sample(trial, due, config, lm, methods[trial.method], hooks)
        if after is None or after.method != trial.method:
            # The tables of several methods wouldn't fit into memory together.
            methods[trial.method].free()


def prepare(
    records: Sequence[Record],
    task: RecordHandler,
    lm: Model,
    tokenizer: Any,
    config: DictConfig,
    proposals: Mapping[str, smc.Proposal],
    progress: Callable[[int], object] = lambda _: None,
) -> Preparation:
    """Compile and check every record; proposals by method give the memory of their tables.

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
    needs = {method: [e.table_bytes[method] for e in examples] for method in proposals}
    refuse_little_memory(proposals, [example.name for example in examples], needs)
    return Preparation(tuple(examples), tuple(refused), time.perf_counter() - started)


def _warm_up(
    run: Run, prepared: Preparation, lm: Model, methods: Mapping[str, smc.Proposal]
) -> Preparation:
    """Open prompts, and sample the cheapest example once with each arm, without keeping it."""
    task = run.config.task
    trials = trials_of(task)
    due = [e for e in prepared.examples if any(trial.key(e) not in run.store for trial in trials)]
    if not due:
        return prepared
    prompts = sorted({e.prompt for e in due}, key=lambda prompt: (len(prompt), prompt))
    started = time.perf_counter()
    opened = {prompt: prompt for prompt in prompts}  # static shapes compute, and vLLM caches them
    if isinstance(lm, smc.TransformersLM) and run.config.smc.execution != "static":
        opened = _open_prompts(run, prompts, lm)
    seconds = time.perf_counter() - started
    quick = min(due, key=lambda example: (example.budget, len(example.prompt)))
    particles = min(max(task.particles), _WARM_PARTICLES)
    hooks = smc.Hooks(read_ahead=0)
    for method, algorithm in product(task.methods, task.algorithms):
        trial = Trial(method, algorithm, particles)
        sample(trial, [quick], run.config, lm, methods[method], hooks)
        methods[method].free()  # tables are part of the method's own cost
    examples = [replace(e, prompt=opened.get(e.prompt, e.prompt)) for e in prepared.examples]
    unkept = len(prompts) - len(opened)
    return replace(prepared, examples=tuple(examples), prompt_seconds=seconds, unkept=unkept)


def _open_prompts(
    run: Run, prompts: Sequence[tuple[int, ...]], lm: smc.TransformersLM
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Compute the prompts that fit into `model.prompt_mib`, in the given order."""
    opened: dict[tuple[int, ...], tuple[int, ...]] = {}
    left = run.config.model.prompt_mib << 20
    with run.bar(len(prompts), "reading", "prompt") as shown:
        for prompt in prompts if left else []:
            found = lm.open(prompt)
            left -= found.nbytes
            if left < 0:
                break
            opened[prompt] = found
            shown.update(1)
    return opened


def sample(
    trial: Trial,
    examples: Sequence[Example],
    config: DictConfig,
    lm: Model,
    proposal: smc.Proposal,
    hooks: smc.Hooks,
) -> None:
    """Sample examples with one arm."""
    if isinstance(lm, VllmModel):
        lm.sample(trial, examples, config, proposal, hooks.finished)
        return
    usual = smc.captured.sample if config.smc.execution == "static" else smc.sample
    (method_of(trial.method).sample or usual)(
        lm,
        [example.prompt for example in examples],
        [example.constraint for example in examples],
        max_tokens=[example.budget for example in examples],
        particles=trial.particles,
        proposal=proposal,
        algorithm=ALGORITHMS[trial.algorithm].make(config),
        temperature=config.smc.temperature,
        seed=trial.seed(config.seed),
        example_ids=[example.number for example in examples],
        max_rows=config.smc.max_rows,
        hooks=hooks,
    )


def _choose_traced(
    examples: Sequence[Example], config: DictConfig, lm: Model
) -> dict[int, tuple[str, Row]]:
    """Return name, budget and prompt of the examples whose traces are stored, by number."""
    if isinstance(lm, VllmModel):
        return {}
    chosen = choose_for_tracing([example.number for example in examples], config.trace.examples)
    return {
        example.number: (
            example.name,
            {
                "budget": example.budget,
                "prompt": lm.vocabulary.decode(example.prompt).decode(errors="replace"),
            },
        )
        for example in examples
        if example.number in chosen
    }


def row_of(example: Example, trial: Trial, task: RecordHandler, posterior: smc.Posterior) -> Row:
    """Make the row of one posterior, one line of `results.jsonl`."""
    vocabulary, specials = example.constraint.vocabulary, example.language.specials
    if specials:  # the answers of a posterior lack these tokens
        marked, eos = vocabulary.with_specials(specials), set(vocabulary.eos_ids)
        posterior = regroup(posterior, lambda each: marked.decode(content(each.ids, eos)))
    correct = [task.is_correct(example.record, answer) for answer in posterior.answers]
    chosen = posterior.answers[0] if posterior.answers else b""
    dead, costs = posterior.dead, posterior.diagnostics
    row = {
        **trial.key(example)._asdict(),
        "budget": example.budget,
        "needed": example.constraint.fewest_tokens,
        # Checked again on the bytes, with the automaton over bytes.
        "valid": not dead and example.language.accepts(chosen),
        "complete": not dead and posterior.complete,
        "share_finished": costs.share_finished,
        "dead": dead,
        "enumerated": posterior.enumerated,
        "weighted_accuracy": sum(
            p for p, right in zip(posterior.probabilities, correct, strict=True) if right
        ),
        "majority_correct": bool(correct and correct[0]),
        "best": posterior.best,
        "best_correct": bool(correct) and correct[posterior.texts.index(posterior.best)],
        "log_evidence": None if dead else posterior.log_evidence,
        "log_evidence_error": None if dead else posterior.reliability.log_evidence_error,
        "certified": posterior.certified,
        "reliability": posterior.reliability.label,
        "ess": posterior.ess,
        "independent": posterior.reliability.ess,
        "budget_removed": None if posterior.budget is None else posterior.budget.removed,
        "stopped": posterior.stopped,
        "lm_calls": costs.lm_calls,
        "tokens": costs.tokens,
        # A method that doesn't use the language model doesn't read the prompt either.
        "read": max(0, costs.tokens - len(example.prompt)),
        **{name: getattr(costs, name) for name in ("forced", "drafted", "used", "landed")},
        "seconds": round(costs.seconds, 4),
        "num_answers": len(posterior.answers),
        "answers": [
            {"text": text, "probability": p, "correct": right}
            for text, p, right in zip(
                posterior.texts[:_SHOWN_ANSWERS], posterior.probabilities, correct, strict=False
            )
        ],
        # The unfinished text of the first particle, if all died; the discrete filter has none.
        "unfinished": posterior.particles[0].answer.decode(errors="replace")
        if dead and posterior.particles
        else None,
        **task.columns(example, posterior),
    }
    return row | {"style": part_of(row.get("style", ""), example.rule)} if example.rule else row


def _report_refusals(run: Run, read: ReadResult[Any], prepared: Preparation) -> None:
    """Write the skipped records and the reasons to `refused.jsonl`, and log the first."""
    path = run.directory / "refused.jsonl"
    lines: list[dict[str, Any]] = [
        {"record": s.position, "kind": "malformed", "reason": s.reason} for s in read.skipped
    ]
    lines += [{"record": i, "kind": "refused", "reason": why} for i, why in prepared.refused]
    path.write_text(as_lines(lines), encoding="utf-8")
    if prepared.refused:  # malformed records were logged when they were read
        first = prepared.refused[0]
        _LOG.warning(
            "%d records are refused and skipped, see %s; the first (%s): %s",
            len(prepared.refused), path, *first,
        )  # fmt: skip


# -- report


def report(
    run: Run,
    read: ReadResult[Any],
    prepared: Preparation,
    rows: Sequence[Row],
    *,
    title: str,
    notes: Sequence[str],
    metrics: Sequence[Metric] = (),
    main: Metric = WEIGHTED,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Summarize the rows, and write the table, the summary and the figures.

    Args:
        title: the question of the comparison, in words.
        notes: sentences below the table.
        metrics: metrics of the task, besides those of every comparison.
        main: metric of the figures and the terminal; a share.
        more: additional plain values for `summary.json`.
    """
    # Importing matplotlib takes half a second, so it is imported at the end of a run.
    from experiments.figures import plot_all

    config = run.config
    settings = _settings_of(config)
    summary = tables.summarize(rows, config.seed, metrics)
    compared = [*{m.name: m for m in (main, *metrics) if m.compared or m is main}.values()]
    compared.append(LOG_EVIDENCE)
    if any(multiple_in(s.get("style", "")) for s in summary):
        compared.append(VALID)
    found = tables.differences(rows, config.seed, compared, config.task.reference)
    pairs = tables.as_paired_table(found, compared)
    table = as_table(summary, metrics)
    shown, constants = tables.without_constants(table)
    notes = [constants, *_notes(config, read, prepared), *notes]
    notes += [f"`{m.title}` is {m.meaning}." for m in metrics if m.meaning]
    notes += [tables.evidence_reference(rows), describe_fitted(config)]
    text = f"## {title}\n\n{settings}\n\n{as_markdown(shown)}\n\n{' '.join(filter(None, notes))}\n"
    text += _differences_of(config, pairs) if found else ""
    figures = plot_all(summary, found, run.directory, title, settings, main)
    record = {
        "title": title,
        "settings": settings,
        **_facts(config, read, prepared),
        **(more or {}),
        "metrics": {m.name: m.words for m in metrics},
        "methods": summary,
        "differences": found,
    }
    run.report(
        text,
        record,
        tables={"summary": table},
        figures=figures,
        numbers={name_of(each): numbers_of(each) for each in summary},
        rows=rows,
        screen=on_screen(f"{title}. {settings}", summary, main, pairs, config.task.reference),
    )


def _differences_of(config: DictConfig, pairs: Table) -> str:
    """Format the paired differences to the reference as a section."""
    other = method_of(config.task.reference).title
    return (
        f"\n### Difference to {other} at equal particles\n\n{as_markdown(pairs)}\n\n"
        "Brackets are 95% intervals of paired differences, with the same resampled requests "
        f"for both methods. LM calls and seconds are multiples of those of {other}.\n"
    )


def _settings_of(config: DictConfig) -> str:
    """Describe the main settings in a line."""
    return (
        f"Budget {title_of_budgets(config.task.budget)}, literals={config.task.literals}, "
        f"temperature {config.smc.temperature:g}; {title_of(config.model)}."
    )


def _facts(config: DictConfig, read: ReadResult[Any], prepared: Preparation) -> dict[str, Any]:
    """Return the model, and how many records were read, refused and prepared in which time."""
    return {
        "model": title_of(config.model),
        "seed": config.seed,
        "records": len(read.records),
        "malformed": len(read.skipped),
        "malformed_share": round(read.share_skipped, 6),
        "refused": len(prepared.refused),
        "compile_seconds": round(prepared.seconds, 3),
        "prompt_seconds": round(prepared.prompt_seconds, 3),
    }


def _notes(config: DictConfig, read: ReadResult[Any], prepared: Preparation) -> list[str]:
    """Say how many records were sampled, what the shared work took, and what costs are."""
    sampled, refused = len(prepared.examples), len(prepared.refused)
    several = any(example.rule for example in prepared.examples)
    what = "examples (a record under a budget)" if several else "well-formed records"
    counts = (
        f"{sampled + refused} {what}: {sampled} sampled, {refused} refused; "
        f"{len(read.skipped)} malformed records left out."
    )
    if read.skipped:
        counts += f" They are {read.share_skipped:.1%} of the records in the source."
    shared = (
        f"Work that all methods share: compiling the constraints took {prepared.seconds:.1f} s, "
        f"and prefilling the prompts {prepared.prompt_seconds:.1f} s."
    )
    if prepared.unkept:
        shared += (
            f" With model.prompt_mib={config.model.prompt_mib}, {prepared.unkept} prompts don't "
            "fit into memory, so each method prefills them in its measured time."
        )
    costs = (
        "Costs are means per request: `read` are prefixes that the model computed without the "
        "prompt, `forced` tokens that were the only allowed ones, and tokens include the prompt."
    )
    if config.task.repeats > 1:
        costs += (
            f" Every row was sampled {config.task.repeats} times with independent random numbers; "
            "the standard deviation of the log evidence is per request, averaged over requests."
        )
    return [counts, shared, costs]


def on_screen(
    title: str, summary: Sequence[Row], main: Metric, pairs: Table, reference: str
) -> str:
    """Write the title, the main columns and the paired differences for a terminal.

    Args:
        summary: records of `experiments.tables.summarize`.
        main: the task's metric; a share.
        pairs: table of the paired differences to the method `reference`.
    """
    titles = tables.titles_in(summary)
    table, constants = tables.without_constants(
        [
            {
                **titles(s),
                "particles": s["particles"],
                f"{main.words.partition(' (')[0]} %": main.cell(s),
                "valid %": VALID.cell(s),
                "dead rows": s["dead"],
                "evidence %": tables.share_of_evidence(s).partition(" [")[0],
                "read": tables.number(s["read"], 0),
                "LM calls": tables.number(s["lm_calls_each"], 1),
            }
            for s in summary
        ]
    )
    parts = [textwrap.fill(title, WIDTH)]
    for style, rows in tables.group_rows(table, lambda row: row.get("style", "")).items():
        shown = [{k: cell for k, cell in row.items() if k != "style"} for row in rows]
        parts.append((f"{style}:\n" if style else "") + tables.as_columns(shown))
    parts += [textwrap.fill(constants, WIDTH)] if constants else []
    if pairs:
        own = [{k: cell for k, cell in row.items() if "times" not in k} for row in pairs]
        head = f"Difference to {method_of(reference).title}, with 95% intervals:"
        parts.append(f"{head}\n{tables.as_columns(own)}")
    return "\n\n".join(parts)
