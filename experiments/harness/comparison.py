"""Comparison of methods on the records of a task: sampling, summary, figures and screen output.

A task whose records each have a language of answers only has to define a `RecordHandler`. `compare`
compiles the constraints, samples and merges the rows. `report` writes the table, summary and
figures.

The terminal shows one sentence with the result and a table of at most 120 columns per part of the
run (`on_screen`). `table.md` has all columns and intervals.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig

import smc
from experiments.harness import tracking
from experiments.harness.examples import (
    Model,
    Preparation,
    RecordHandler,
    Sampling,
    keys_of,
    prepare,
)
from experiments.harness.methods import (
    describe_fitted,
    hidden_states,
    hmm_identity,
    method_of,
    proposals,
)
from experiments.harness.models import title_of, weights_of
from experiments.harness.records import ReadResult
from experiments.harness.results import Identity, Row, as_lines, results_config
from experiments.harness.run import Run
from experiments.harness.settings import multiple_in, title_of_budgets
from experiments.report.traces import choose_for_tracing
from experiments.tables import (
    LOG_EVIDENCE,
    VALID,
    WEIGHTED,
    Metric,
    Table,
    as_columns,
    as_markdown,
    as_paired_table,
    as_table,
    differences,
    evidence_reference,
    group_rows,
    number,
    summarize,
    titles_in,
    without_constants,
)

_LOG = logging.getLogger(__name__)


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


def compare(
    run: Run, read: ReadResult[Any], task: RecordHandler, lm: Model, tokenizer: Any
) -> tuple[Preparation, list[Row]]:
    """Compile the constraints and sample the missing rows.

    Returns:
        The prepared examples, and all rows.

    Raises:
        ValueError: no record can be run, or `hmm.max_table_mib` is too small.
    """
    config = run.config
    methods = proposals(config, cast(smc.LanguageModel, lm))
    with run.bar(len(read.records), "compiling", "record") as shown:
        prepared = prepare(read.records, task, lm, tokenizer, config, methods, shown.update)
    mine = prepared.examples
    keys = keys_of(mine, config.task)
    run.open(keys)
    _report_refusals(run, read, prepared)
    with run.bar(len({e.prompt for e in mine}), "reading", "prompt") as shown:
        sampling = Sampling(task, lm, config, methods, run.store)
        seconds, unkept = sampling.ready(mine, shown.update)
    prepared = dataclasses.replace(prepared, prompt_seconds=seconds, unkept=unkept)
    with run.sampling(keys) as progress:
        traced = choose_for_tracing([e.number for e in mine], config.trace.examples)
        sampling.run(mine, progress, traced)
    return prepared, run.merge()


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
    tabulate: Callable[[Sequence[dict[str, Any]], Sequence[Metric]], Table] = as_table,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Summarize the rows, and write the table, the summary and the figures.

    Args:
        run: the run, whose directory the files go to.
        read: the records of the source.
        prepared: the examples made of them.
        rows: all rows of the run.
        title: the question of the comparison, in words.
        notes: sentences below the table.
        metrics: metrics of the task, besides those of every comparison.
        main: metric of the figures and the terminal; a share.
        tabulate: function that formats the summary as a table.
        more: additional plain values for `summary.json`.
    """
    # Importing matplotlib takes half a second, so it is imported at the end of a run.
    from experiments.harness.figures import COMPARISONS, plot_budgets, plot_comparison

    config = run.config
    settings = _settings(config)
    summary = summarize(rows, config.seed, metrics)
    table = tabulate(summary, metrics)
    record: dict[str, Any] = {
        "title": title,
        "settings": settings,
        "model": title_of(config.model),
        "seed": config.seed,
        "records": len(read.records),
        "malformed": len(read.skipped),
        "malformed_share": round(read.share_skipped, 6),
        "refused": len(prepared.refused),
        **(more or {}),
        "compile_seconds": round(prepared.seconds, 3),
        "prompt_seconds": round(prepared.prompt_seconds, 3),
        "metrics": {m.name: m.words for m in metrics},
        "methods": summary,
    }
    notes = [_counts(read, prepared), _once(config, prepared), *notes]
    notes += [f"`{m.title}` is {m.meaning}." for m in metrics if m.meaning]
    notes.append(
        "Costs are means per request. `read` is the number of prefixes that the language model "
        "computed, without the prompt, and `forced` the number of tokens that were the only ones "
        "allowed. LM calls are forward passes that included the request. Tokens computed include "
        "the prompt. Seconds are the request's share, by tokens, of the time of its batches."
    )
    reference = evidence_reference(rows)
    notes += filter(None, [reference, describe_fitted(config)])
    if any(each["drafted"] for each in summary):
        notes.append(
            "`read ahead` is the number of tokens that prompt look-up guessed and forward passes "
            "computed in advance. `of it used` is the number of guessed tokens that became part of "
            "an answer without another forward pass. `choices without a pass` is the number of "
            "used tokens that were chosen, not forced, and their number per LM call."
        )
    if config.task.repeats > 1:
        notes.append(
            f"Every row was sampled {config.task.repeats} times with independent random numbers; "
            "the standard deviation of the log evidence is per request, averaged over requests."
        )
    figures = {name: run.directory / f"{name}.png" for name in COMPARISONS}
    for name, path in figures.items():
        plot_comparison(name, summary, path, title, settings, main)
    by_multiples = any(multiple_in(s.get("style", "")) for s in summary)
    own = {m.name: m for m in (main, *metrics) if m.compared or m is main}
    compared = [*own.values(), LOG_EVIDENCE, *([VALID] if by_multiples else [])]
    found = differences(rows, config.seed, compared, config.task.reference)
    record["differences"] = found
    if by_multiples:
        figures["budgets"] = run.directory / "budgets.png"
        plot_budgets(summary, found, figures["budgets"], title, settings, main)
    shown, constants = without_constants(table)
    notes = [constants, *notes] if constants else notes
    text = f"## {title}\n\n{settings}\n\n{as_markdown(shown)}\n\n{' '.join(notes)}\n"
    if found:
        other = method_of(config.task.reference).title
        text += (
            f"\n### Difference to {other} at equal particles\n\n"
            f"{as_markdown(as_paired_table(found, compared))}\n\nBrackets are 95% intervals of "
            "paired differences, with the same resampled requests for both methods. LM calls and "
            f"seconds are multiples of those of {other}.\n"
        )
    run.report(
        text,
        record,
        lambda tracked: tracking.log_shown(tracked, {"summary": table}, figures, rows),
        arms=tracking.split_arms(summary, rows, hidden_states(config)),
        files=(*(path.name for path in figures.values()), "results.jsonl"),
        screen=on_screen(f"{title}. {settings}", summary, found, main, compared, reference),
    )


def _settings(config: DictConfig) -> str:
    """Describe, in one sentence, the values of the settings that all tasks have."""
    task = config.task
    return (
        f"Budget {title_of_budgets(task.budget)}, literals={task.literals}, temperature "
        f"{config.smc.temperature:g}; {title_of(config.model)}."
    )


def _counts(read: ReadResult[Any], prepared: Preparation) -> str:
    """Describe how many records were read, skipped and malformed."""
    sampled, refused = len(prepared.examples), len(prepared.refused)
    several = any(example.rule for example in prepared.examples)
    what = "examples (a record under a budget)" if several else "well-formed records"
    well_formed = f"{sampled + refused} {what}: {sampled} sampled, {refused} refused"
    text = f"{well_formed}; {len(read.skipped)} malformed records left out."
    if read.skipped:
        text += f" They are {read.share_skipped:.1%} of the records in the source."
    return text


def _once(config: DictConfig, prepared: Preparation) -> str:
    """Describe the work that all methods share, which isn't in the seconds of rows."""
    text = (
        f"Work that all methods share: compiling the constraints took {prepared.seconds:.1f} s, "
        f"and prefilling the prompts {prepared.prompt_seconds:.1f} s."
    )
    if prepared.unkept:
        text += (
            f" With model.prompt_mib={config.model.prompt_mib}, {prepared.unkept} prompts don't "
            "fit into the cache, so each method prefills them in its measured time."
        )
    return text


def _report_refusals(run: Run, read: ReadResult[Any], prepared: Preparation) -> None:
    """Write the skipped records and the reasons to `refused.jsonl`, and log the first."""
    path: Path = run.directory / "refused.jsonl"
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


WIDTH = 120
Records = Sequence[Mapping[str, Any]]


def on_screen(
    title: str,
    summary: Records,
    found: Records,
    main: Metric,
    compared: Sequence[Metric],
    evidence: str,
) -> str:
    """Write the title, one sentence with the result, and the most important columns.

    Args:
        title: the question of the comparison.
        summary: records of `summarize`.
        found: paired differences (`experiments.tables.differences`).
        main: the task's metric; a share.
        compared: metrics of the differences; the sentence reports the first.
        evidence: a sentence on the reference of the evidence, or an empty string.
    """
    titles = titles_in(summary)
    table, constants = without_constants(
        [
            {
                **titles(s),
                "particles": s["particles"],
                f"{main.words.partition(' (')[0]} %": _percent(s[main.name]),
                "valid %": _percent(s["valid"]),
                "dead rows": s["dead"],
                "evidence %": _percent(s["evidence_found"]),
                "read": number(s["read"], 0),
                "LM calls": number(s["lm_calls_each"], 1),
            }
            for s in summary
        ]
    )
    parts = []
    for style, rows in group_rows(table, lambda row: row.get("style", "")).items():
        shown = [{k: cell for k, cell in row.items() if k != "style"} for row in rows]
        parts.append((f"{style}:\n" if style else "") + as_columns(shown))
    return "\n\n".join(
        [_fill(title), _fill(result(summary, found, compared)), *parts]
        + [_fill(note) for note in (constants, evidence) if note]
    )


def result(summary: Records, found: Records, compared: Sequence[Metric]) -> str:
    """State which methods finished every request and which differences are significant."""
    finished, unfinished = [], []
    for method in dict.fromkeys(s["method"] for s in summary):
        own = [s for s in summary if s["method"] == method]
        worst = min(own, key=lambda s: s["valid"])
        title, total = method_of(method).title, worst["examples"] * worst["repeats"]
        left = round((1 - worst["valid"]) * total)
        if left:
            unfinished.append(f"{title} left up to {left} of {total} unfinished")
        else:
            finished.append(title)
    clauses = [f"{_and(finished)} finished every request"] if finished else []
    said = "; ".join([*clauses, *unfinished])
    if found:
        name, what = compared[0].name, compared[0].words
        other = method_of(found[0]["reference"]).title
        beyond = []
        for method in dict.fromkeys(d["method"] for d in found):
            own = [d for d in found if d["method"] == method]
            differ = sum(name in d and not d[f"{name}_low"] <= 0 <= d[f"{name}_high"] for d in own)
            if differ:
                beyond.append(f"{differ} of {len(own)} rows of {method_of(method).title}")
        beyond_chance = f"differs from {other}'s by more than chance (paired 95% intervals)"
        said += f"; {what} {beyond_chance} in " + (_and(beyond) if beyond else "no row")
    return f"{said}."


def _percent(share: float | None) -> str:
    """Format a share in percent; an evidence estimate can exceed 1 by far."""
    if share is None or share <= 10:
        return number(share and 100 * share, 1)
    return "> 1000"


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _fill(text: str) -> str:
    return textwrap.fill(text, WIDTH)
