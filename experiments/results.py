"""Results of a run: the table, the summary, the figures, the screen, wandb and the page.

`report` summarizes the rows of `experiments.evaluate`. Every task ends with `write_results`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiments import tables, tracking
from experiments.arms import describe_fitted, method_of
from experiments.config import multiple_in, title_of_budgets
from experiments.evaluate import Preparation, ReadResult
from experiments.models import title_of
from experiments.report.page import write_report
from experiments.tables import LOG_EVIDENCE, VALID, WEIGHTED, Metric, Table, as_markdown, as_table
from experiments.tasks import REPORT, SUMMARY, TABLE, Row, Run
from experiments.tracking import name_of, numbers_of
from hmm._files import write_json

WIDTH = 120  # of the terminal


def write_results(
    run: Run,
    text: str,
    summary: dict[str, Any],
    *,
    tables: Mapping[str, Table] | None = None,
    figures: Mapping[str, Path] | None = None,
    numbers: Mapping[str, Any] | None = None,
    rows: Sequence[Row] = (),
    history: Sequence[Mapping[str, float]] = (),
    also: str = "",
    screen: str = "",
) -> None:
    """Write, print and log the results, and write the HTML report of the directory.

    Args:
        run: the run.
        text: Markdown for `table.md`, and for the screen if `screen` is empty.
        summary: plain values for `summary.json`.
        tables: tables for wandb, by name.
        figures: images that the task has written, by name.
        numbers: plain values for the summary in wandb.
        rows: rows for wandb.
        history: points of a curve for wandb.
        also: text to append to the last line.
        screen: text to print in place of `text`.
    """
    (run.directory / TABLE).write_text(text, encoding="utf-8")
    write_json(summary, run.directory / SUMMARY)
    write_report(run.directory)
    shared = {
        "task": run.task.name,
        "model": title_of(run.config.model),
        "seed": run.config.seed,
        "settings": run.identity,
    }
    tracking.log(
        run.config.wandb, run.directory, shared, tables=tables or {}, figures=figures or {},
        numbers=numbers or {}, rows=rows, history=history,
    )  # fmt: skip
    print(screen or text)
    written = [REPORT, TABLE, SUMMARY, *(path.name for path in (figures or {}).values())]
    written += ["results.jsonl"] * (run.directory / "results.jsonl").exists()
    print(f"Results: {run.directory}/ ({', '.join(written)}){also}")


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
    write_results(
        run,
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
