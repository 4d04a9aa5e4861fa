"""Evaluation of methods on records: each example, arm and number of particles becomes a row.

A `RecordHandler` defines what a task does with its records. `evaluate` makes the rows of a run in
these steps, and `experiments.results.report` writes its table, figures and summary:

    prepare     lift each record's language to the model's tokens, compute its budget, and check its
                prompt; refuse invalid records by name before the model runs
    warm up     do the work that all arms share: prefill prompts, and sample one example per arm
    sample      call `smc.sample` for each arm on the examples without a row, and append rows

Rows report seconds so that methods can be compared, hence the warm-up. Only a method's own tables
remain in the time of its first rows.

Records come from files or the hub. A malformed record, including one with invalid UTF-8, is skipped
and reported with its position and the reason. A command that skipped more than a given share of
records fails at its end (`at_most_skipped`). A source without a single well-formed record is
refused. Byte order marks are ignored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from omegaconf import DictConfig

import gcd
import smc.captured
from experiments.arms import (
    ALGORITHMS,
    METHODS,
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
    one_of,
    part_of,
)
from experiments.models import PromptError, encode, load_model, weights_of
from experiments.report.traces import Tracing
from experiments.tasks import (
    Identity,
    Key,
    ResultStore,
    Row,
    Run,
    as_lines,
    bar,
    derive_seed,
    results_config,
)
from experiments.vllm_model import VllmModel, load_vllm
from smc._results.posterior import content, regroup

Model: TypeAlias = smc.TransformersLM | VllmModel
"""A language model in one of the engines that sample examples."""
_LOG = logging.getLogger(__name__)
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


def load_engine(config: DictConfig) -> tuple[Model, Any]:
    """Load the model of a checked configuration in its engine, and its tokenizer.

    Raises:
        ValueError, ConstraintError: as `load_model`; or vLLM isn't installed.
    """
    return load_model(config.model) if config.model.engine == "transformers" else load_vllm(config)


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
    with bar(len(read.records), "compiling", "record") as shown:
        prepared = prepare(read.records, task, lm, tokenizer, config, methods, shown.update)
    keys = [t.key(example) for t in trials_of(config.task) for example in prepared.examples]
    run.open(keys)
    _report_refusals(run, read, prepared)
    prepared = _warm_up(run, prepared, lm, methods)
    with run.sampling(keys) as progress:
        make_rows(run.store, prepared.examples, task, lm, config, methods, progress)
    return prepared, run.store.merge(keys)


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
    # An engine doesn't show its particles.
    traceable = [] if isinstance(lm, VllmModel) else examples
    tracing = Tracing(store, traceable, lm.vocabulary, config.trace)
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
    with bar(len(prompts), "reading", "prompt") as shown:
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


# -- records

R = TypeVar("R")
RecordOf = Callable[[Any, str], R]
"""Function that makes a record from a parsed row and a default id, or raises `ValueError`."""


class DataError(ValueError):
    """Raised if records can't be read: a missing file, invalid JSON, or no well-formed record."""


@dataclass(frozen=True)
class SkippedRecord:
    """A malformed record: line number or position in the list, from 1, and the reason."""

    position: int
    reason: str


@dataclass(frozen=True)
class ReadResult(Generic[R]):
    """The records of a source, and the records that were skipped."""

    records: tuple[R, ...]
    skipped: tuple[SkippedRecord, ...] = ()
    total: int = 0  # number of records in the source; 0 for the sum of both fields

    @property
    def share_skipped(self) -> float:
        """Share of malformed records, from 0 to 1."""
        total = self.total or len(self.records) + len(self.skipped)
        return len(self.skipped) / total if total else 0.0

    def part(self, offset: int, count: int) -> ReadResult[R]:
        """Return `count` records after the first `offset`; raise `DataError` if there are none."""
        records = self.records[offset : offset + count]
        if not records:
            raise DataError(
                f"expected data.offset to be less than the number of records, {len(self.records)}, "
                f"got {offset}"
            )
        return ReadResult(records, self.skipped, self.total)


_LOSSES: ContextVar[list[tuple[float, str]] | None] = ContextVar("losses", default=None)
"""Share of malformed records of each source that was read, with a message."""


@contextmanager
def at_most_skipped(key: str, share: float) -> Iterator[None]:
    """Fail on exit if a source read in this context skipped too many records.

    Args:
        key: setting with the share, for the message.
        share: largest share of skipped records, from 0 to 1.

    Raises:
        DataError: a source skipped more; the message has their number and the first one.
    """
    losses: list[tuple[float, str]] = []
    token = _LOSSES.set(losses)
    try:
        yield
    finally:
        _LOSSES.reset(token)
    most, words = max(losses, default=(0.0, ""))
    if most > share:
        raise DataError(
            f"expected at most {key}={share:g} of the records to be malformed, but {words}; "
            f"correct the records, or raise {key}"
        )


def read_file(
    path: str | Path, record_of: RecordOf[R], needs: str, *, prefix: str = ""
) -> ReadResult[R]:
    """Read the records of a file: one JSON list if it is named *.json, else JSON lines.

    Args:
        path: the file.
        record_of: makes a record.
        needs: description of the required fields.
        prefix: prefix of default ids in a list, before the number.

    Raises:
        DataError: the file doesn't exist, is named *.json and isn't a JSON list, or has no
            well-formed record.
    """
    if Path(path).suffix != ".json":
        # `splitlines` would also split at line separators within JSON strings.
        lines = enumerate(read_text(path, errors="surrogateescape").split("\n"), 1)
        rows = ((number, str(number), line) for number, line in lines if line.strip())
        return collect(rows, record_of, str(path), needs)
    text = read_text(path)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"expected JSON in {path}, got {error}; if it has JSON lines, name it *.jsonl"
        ) from error
    if not isinstance(values, list):
        raise DataError(f"expected a list of records in {path}, got a {type(values).__name__}")
    named = ((number, f"{prefix}{number}", row) for number, row in enumerate(values, 1))
    return collect(named, record_of, str(path), needs)


def read_hub(
    name: str, split: str, record_of: RecordOf[R], needs: str, limit: int | None = None
) -> ReadResult[R]:
    """Read the first `limit` rows (by default all) of a hub data set with `datasets`.

    Raises:
        DataError: the data set can't be loaded or has no well-formed record.
    """
    import datasets

    try:
        rows = datasets.load_dataset(name, split=split)
    except (OSError, ValueError) as error:  # no network, no such data set or split, or no access
        raise DataError(
            f"{name!r} (split {split!r}) cannot be loaded: {error}; check the name and the "
            "network, log in with `hf auth login` where access must be granted, or give a file "
            "instead"
        ) from error
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    named = ((number, str(number), row) for number, row in enumerate(rows, 1))
    return collect(named, record_of, name, needs)


def check_fields(row: Any, names: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return a parsed row; raise a `ValueError` if it isn't an object or lacks a field."""
    if not isinstance(row, Mapping):
        raise ValueError(f"expected a record to be a JSON object, got {type(row).__name__}")
    missing = [name for name in names if name not in row]
    if missing:
        raise ValueError(f"expected the fields {' and '.join(map(repr, missing))}, got none")
    return row


def refuse_unwritable(record: Any, answer: Any) -> None:
    """Refuse values that Python's JSON reader accepts but that can't be written as JSON in UTF-8.

    Args:
        record: a dataclass of plain values; lone surrogates are refused.
        answer: a JSON value; NaN and infinities are refused.

    Raises:
        ValueError: there is such a value.
    """
    try:
        json.dumps(answer, allow_nan=False)
    except ValueError as error:
        raise ValueError(
            f"expected an answer with JSON values only, got another one ({error})"
        ) from error
    try:
        json.dumps(dataclasses.asdict(record), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"expected text that UTF-8 can represent, got {error}") from error


def read_text(path: str | Path, errors: str = "strict") -> str:
    """Read a text file without byte order marks; raise `DataError` if it can't be read."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors=errors)
        return text.replace("\n\ufeff", "\n")  # byte order marks within concatenated files
    except FileNotFoundError as error:
        raise DataError(f"expected an existing file, got {path}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        place = f"line {line}, byte {error.start + 1} of the file"
        raise DataError(
            f"expected UTF-8 in {path}, got 0x{error.object[error.start]:02x} in {place}; save the "
            "file in UTF-8"
        ) from error


def collect(
    rows: Iterable[tuple[int, str, Any]], record_of: RecordOf[R], source: str, needs: str
) -> ReadResult[R]:
    """Make records of rows, given as position, default id, and a value or a JSON string.

    Raises:
        DataError: there is no well-formed record.
    """
    records, skipped = [], []
    for position, default_id, row in rows:
        try:
            value = _parse(row) if isinstance(row, str) else row
            records.append(record_of(value, default_id))
        except (ValueError, RecursionError) as error:
            skipped.append(SkippedRecord(position, str(error)))
    if not records:
        first = f"; the first ({skipped[0].position}): {skipped[0].reason}" if skipped else ""
        raise DataError(
            f"expected records with {needs} in {source}, got {len(skipped)} malformed and no "
            f"well-formed record{first}"
        )
    result = ReadResult(tuple(records), tuple(skipped), len(records) + len(skipped))
    if skipped:
        words = (
            f"{source}: {len(skipped)} of {result.total} records ({result.share_skipped:.1%}) are "
            f"malformed and skipped; the first ({skipped[0].position}): {skipped[0].reason}"
        )
        _LOG.warning("%s", words)
        losses = _LOSSES.get()
        if losses is not None:
            losses.append((result.share_skipped, words))
    return result


def _parse(line: str) -> Any:
    """Parse a line of JSON whose invalid UTF-8 bytes were read as surrogates."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        byte = ord(line[error.start]) & 0xFF
        raise ValueError(
            f"expected UTF-8, got 0x{byte:02x} at character {error.start + 1}"
        ) from None
    return json.loads(line)
