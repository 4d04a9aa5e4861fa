"""A run of the tool-calling task: `+task=xlam`.

Rows go to the run directory as they are made; the same command finds them and goes on, to the same
final result. When all rows are there, the table, the summary and the figure are written, and logged
to wandb. Under `torchrun` the examples are dealt out over the processes; everything else is the
same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from experiments.harness import config as configuration
from experiments.harness import tracking
from experiments.harness.figures import plot_accuracy
from experiments.harness.methods import hmm_identity, proposals
from experiments.harness.models import identity_of, load_model
from experiments.harness.processes import bar, processes, wait_for_all
from experiments.harness.results import ResultStore, Row
from experiments.harness.run_directory import (
    open_run_dir,
    refuse_another_run,
    run_dir_of,
    same_command,
)
from experiments.harness.screen import show
from experiments.harness.summary import as_markdown, as_table, summarize
from experiments.tool_calling import examples as xlam
from experiments.tool_calling.data import load_records
from experiments.tool_calling.examples import Preparation
from experiments.tool_calling.records import ReadResult

_LOG = logging.getLogger(__name__)


def run(config: DictConfig) -> Path:
    """Run one experiment to its end; returns its directory."""
    rank, world = processes()
    read = load_records(config.data, config.task.num_examples, config.seed)
    identity = _identity(config, read)
    run_dir = run_dir_of(config, identity)
    if config.resume:
        refuse_another_run(run_dir, identity)

    lm, tokenizer = load_model(config.model)
    methods = proposals(config, lm)
    with bar(len(read.records), "compiling", "record", rank) as shown:
        prepared = xlam.prepare(read.records, lm, tokenizer, config, methods, shown.update)
    if rank == 0:
        open_run_dir(run_dir, config, identity)
        _report_refusals(run_dir, read, prepared)
    wait_for_all(world)

    store = ResultStore(run_dir, rank)
    mine = prepared.examples[rank::world]
    keys = [
        xlam.key_of_example(example, method, particles)
        for method in config.task.methods
        for particles in config.task.particles
        for example in prepared.examples
    ]
    done = sum(xlam.key_of_example(e, m, n) in store for m in config.task.methods
               for n in config.task.particles for e in mine)  # fmt: skip
    if done and rank == 0:
        _LOG.info(
            "%d rows are in %s already and are kept (resume=false starts over)", done, run_dir
        )
    total = len(mine) * len(config.task.methods) * len(config.task.particles)
    try:
        with bar(total, "sampling", "row", rank, done) as shown:
            xlam.run(mine, lm, config, methods, store, shown.update)
    except KeyboardInterrupt:
        _LOG.warning(
            "interrupted: %d of %d rows are in %s; %s goes on from there",
            len(store), len(keys), run_dir, same_command(config),
        )  # fmt: skip
        raise
    wait_for_all(world)
    if rank == 0:
        store.reload()
        _report(run_dir, config, read, prepared, store.merge(keys))
    return run_dir


def _identity(config: DictConfig, read: ReadResult) -> dict[str, Any]:
    """What determines the results: settings, the records themselves, the model's files."""
    records = json.dumps([dataclasses.asdict(record) for record in read.records], sort_keys=True)
    return {
        **configuration.results_config(config),
        "records_sha256": hashlib.sha256(records.encode()).hexdigest()[:16],
        "model_files": identity_of(config.model.path),
        **hmm_identity(config),
    }


def _report_refusals(run_dir: Path, read: ReadResult, prepared: Preparation) -> None:
    """Say what was left out, and keep the list."""
    path = run_dir / "refused.jsonl"
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


def _report(
    run_dir: Path, config: DictConfig, read: ReadResult, prepared: Preparation, rows: list[Row]
) -> None:
    """Write, print and log the results."""
    task = config.task
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
        "wrong. Tokens are those the language model read.",
    ]
    text = f"## {title}\n\n{as_markdown(table)}\n\n{' '.join(notes)}\n"
    (run_dir / "table.md").write_text(text, encoding="utf-8")
    record = {
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
    (run_dir / "summary.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    figure = run_dir / "accuracy.png"
    plot_accuracy(summary, figure, title)

    run_id = configuration.fingerprint(_identity(config, read))
    plain = configuration.results_config(config)
    with tracking.start(config.wandb, run_dir, plain, run_dir.name, run_id) as run:
        shown = pd.DataFrame(rows).drop(columns=["answers"])
        tracking.log_results(run, summary, table, shown, figure)
    show(text)
    print(f"Results: {run_dir}/ (table.md, accuracy.png, results.jsonl, summary.json)")
