"""The tool-calling task, `+task=xlam`: methods, algorithms and particles on the same requests.

For each record its tools become an automaton over the model's tokens, each method writes answers
under it, and accuracy compares the calls with the gold ones. Under `torchrun` the records are dealt
out over the processes; everything else is the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from experiments.harness import tracking
from experiments.harness.figures import plot_accuracy, plot_reads
from experiments.harness.identity import Identity, results_config
from experiments.harness.methods import hmm_identity, proposals
from experiments.harness.models import identity_of, load_model
from experiments.harness.results import Row
from experiments.harness.run import Run, Task
from experiments.harness.summary import as_markdown, as_table, summarize
from experiments.tool_calling.config import XlamConfig, check
from experiments.tool_calling.data import load_records
from experiments.tool_calling.examples import Preparation, keys_of, prepare, sample_examples
from experiments.tool_calling.records import ReadResult

_LOG = logging.getLogger(__name__)


def _read(config: DictConfig) -> ReadResult:
    return load_records(config.data, config.task.num_examples, config.seed)


def _identity(config: DictConfig, read: ReadResult) -> Identity:
    """What determines the results: settings, the records themselves, the files of the models."""
    records = json.dumps([dataclasses.asdict(record) for record in read.records], sort_keys=True)
    return {
        **results_config(config),
        "records_sha256": hashlib.sha256(records.encode()).hexdigest()[:16],
        "model_files": identity_of(config.model.path),
        **hmm_identity(config),
    }


def _run(run: Run, read: ReadResult) -> None:
    """Compile the constraints, sample what is not there yet, and report."""
    config = run.config
    lm, tokenizer = load_model(config.model)
    methods = proposals(config, lm)
    with run.bar(len(read.records), "compiling", "record") as shown:
        prepared = prepare(read.records, lm, tokenizer, config, methods, shown.update)
    alike = [(e.number, e.budget, e.prompt) for e in prepared.examples]
    run.open(keys_of(prepared.examples, config.task), prepared=alike)
    if run.rank == 0:
        _report_refusals(run, read, prepared)
    mine = run.share(prepared.examples)
    with run.sampling(keys_of(mine, config.task)) as progress:
        sample_examples(mine, lm, config, methods, run.store, progress)
    rows = run.merged()
    if rows is not None:
        _report(run, read, prepared, rows)


def _report_refusals(run: Run, read: ReadResult, prepared: Preparation) -> None:
    """Say which records were left out, and keep the list with the reasons."""
    path = run.directory / "refused.jsonl"
    lines = [{"record": s.position, "kind": "malformed", "reason": s.reason} for s in read.skipped]
    lines += [{"record": i, "kind": "refused", "reason": why} for i, why in prepared.refused]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for what, count in (("malformed", len(read.skipped)), ("refused", len(prepared.refused))):
        if count:
            first = next(line for line in lines if line["kind"] == what)
            _LOG.warning(
                "%d records are %s and left out, listed in %s; the first (%s): %s",
                count, what, path, first["record"], first["reason"],
            )  # fmt: skip
    if prepared.unknown_types:
        listed = ", ".join(f"{name} ({n})" for name, n in prepared.unknown_types.most_common())
        _LOG.warning("parameter types read as any JSON value: %s", listed)


def _report(run: Run, read: ReadResult, prepared: Preparation, rows: list[Row]) -> None:
    """Make table, summary and figure of all rows."""
    config, task = run.config, run.config.task
    summary = summarize(rows, config.seed)
    table = as_table(summary)
    source = config.data.path or config.data.hub or "embedded generator, held-out split"
    title = (
        f"{task.name}: {len(prepared.examples)} requests ({source}), {task.style} style, "
        f"budget {task.budget}, temperature {config.smc.temperature:g}"
    )
    notes = [
        f"{len(read.records)} records read, {len(read.skipped)} malformed, "
        f"{len(prepared.refused)} refused; constraints compiled in {prepared.seconds:.1f} s.",
        "Accuracies in percent with 95 % bootstrap intervals over requests; dead rows count as "
        "wrong. Tokens are those the language model read, prompts included; `read` is the mean "
        "number of prefixes that it read for one request, the prompt aside.",
    ]
    record: dict[str, Any] = {
        "title": title,
        "model": config.model.path,
        "seed": config.seed,
        "records": len(read.records),
        "malformed": len(read.skipped),
        "refused": len(prepared.refused),
        "unknown_types": dict(prepared.unknown_types),
        "compile_seconds": round(prepared.seconds, 3),
        "methods": summary,
    }
    if task.repeats > 1:
        notes.append(
            f"Everything {task.repeats} times, with random numbers of its own; the standard "
            "deviation of the log evidence is that of one request, averaged over requests."
        )
    figures = {"accuracy": run.directory / "accuracy.png", "reads": run.directory / "reads.png"}
    plot_accuracy(summary, figures["accuracy"], title)
    plot_reads(summary, figures["reads"], title)
    shown = pd.DataFrame(rows).drop(columns=["answers"])
    run.report(
        f"## {title}\n\n{as_markdown(table)}\n\n{' '.join(notes)}\n",
        record,
        lambda tracked: tracking.log_results(tracked, summary, table, shown, figures),
        files=(*(path.name for path in figures.values()), "results.jsonl"),
    )


TASK = Task("xlam", XlamConfig, check, _read, _identity, _run, processes="rows")
