"""This module compares methods on the records of a task, from the first to the table.

A task that has records, each with a language of answers, needs little of its own beside a
`RecordHandler`: `compare` compiles, samples and merges, `report` writes what all such tasks write.

What a comparison prints: a sentence of result, and a table of at most 120 columns.

`table.md` has all columns and intervals. Here each part of the run has a short table; what is the
same in all rows is said once, below it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

import smc
from experiments.harness import tracking
from experiments.harness.examples import (
    Preparation,
    RecordHandler,
    keys_of,
    prepare,
    ready,
    sample_examples,
)
from experiments.harness.methods import (
    fitted_in_words,
    hidden_states,
    hmm_identity,
    method_of,
    proposals,
)
from experiments.harness.models import title_of, weights_of
from experiments.harness.paired import (
    ACCURACY,
    FINISHED,
    Compared,
    as_paired_table,
    differences,
)
from experiments.harness.records import ReadResult
from experiments.harness.results import Identity, Row, as_lines, results_config
from experiments.harness.run import Run
from experiments.harness.settings import multiple_in, title_of_budgets
from experiments.harness.summary import (
    Table,
    as_columns,
    as_markdown,
    evidence_reference,
    grouped,
    number,
    titles_in,
    without_constants,
)
from experiments.report.traces import chosen_for_tracing

_LOG = logging.getLogger(__name__)


def identity(config: DictConfig, read: ReadResult[Any]) -> Identity:
    """Give what determines the results: settings, the records, the files of the models.

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
    run: Run, read: ReadResult[Any], task: RecordHandler, lm: smc.TransformersLM, tokenizer: Any
) -> tuple[Preparation, list[Row] | None]:
    """Compile the constraints, and sample what is not there yet.

    Returns:
        The examples that the records became, and all rows; None but in the first process.

    Raises:
        ValueError: no record can be run, or memory for lookahead is too little.
    """
    config = run.config
    methods = proposals(config, lm)
    with run.bar(len(read.records), "compiling", "record") as shown:
        prepared = prepare(read.records, task, lm, tokenizer, config, methods, shown.update)
    alike = [(e.number, e.budget, e.prompt) for e in prepared.examples]
    run.open(keys_of(prepared.examples, config.task), prepared=alike)
    if run.rank == 0:
        _report_refusals(run, read, prepared)
    mine = run.share(prepared.examples)
    with run.bar(len({e.prompt for e in mine}), "reading", "prompt") as shown:
        seconds, unkept = ready(mine, lm, config, methods, run.store, shown.update)
    prepared = dataclasses.replace(prepared, prompt_seconds=seconds, unkept=unkept)
    with run.sampling(keys_of(mine, config.task)) as progress:
        traced = chosen_for_tracing([e.number for e in prepared.examples], config.trace.examples)
        sample_examples(mine, task, lm, config, methods, run.store, progress, traced)
    return prepared, run.merged()


def report(
    run: Run,
    read: ReadResult[Any],
    prepared: Preparation,
    rows: Sequence[Row],
    *,
    title: str,
    summary: Sequence[dict[str, Any]],
    table: Table,
    notes: Sequence[str],
    more: Mapping[str, Any] | None = None,
    metric: str = "posterior-weighted accuracy",
    metric_key: str = "weighted_accuracy",
    compared: Mapping[str, Compared] = ACCURACY,
) -> None:
    """Write table, summary and figures.

    Args:
        title: what was asked, in words.
        summary: a record for each arm and number of particles (`summary.summarize`).
        table: the same for readers.
        notes: sentences below the table.
        more: further plain values of the task for `summary.json`.
        metric: what figures show, in words.
        metric_key: where the summary has it: a share, with the ends of its interval.
        compared: in what the methods are compared with the reference, request by request.
    """
    # matplotlib takes half a second, and is needed when a run has ended.
    from experiments.harness.figures import COMPARISONS, plot_budgets, plot_comparison

    config = run.config
    settings = _settings(config)
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
        "methods": list(summary),
    }
    notes = [_counts(read, prepared), _once(config, prepared), *notes]
    notes.append(
        "`read`, `forced`, LM calls, tokens and seconds are means for one request: prefixes that "
        "the language model read, the prompt aside; tokens that were the only ones allowed; "
        "forward passes that the request took part in; tokens read, the prompt included; its "
        "share, by tokens, of the time of its batches."
    )
    reference = evidence_reference(rows)
    notes += filter(None, [reference, fitted_in_words(config)])
    if any(each["drafted"] for each in summary):
        notes.append(
            "`read ahead` are tokens that prompt look-up guessed and passes read in advance; those "
            "of it that became part of an answer are `used`, and needed no pass of their own. Some "
            "of these were chosen: the choices without a pass, and how many that is for each LM "
            "call. The others were forced behind them."
        )
    if config.task.repeats > 1:
        notes.append(
            f"Everything {config.task.repeats} times, with random numbers of its own; the standard "
            "deviation of the log evidence is that of one request, averaged over requests."
        )
    figures = {name: run.directory / f"{name}.png" for name in COMPARISONS}
    for name, path in figures.items():
        plot_comparison(name, summary, path, title, settings, metric, metric_key)
    by_multiples = any(multiple_in(s.get("style", "")) for s in summary)
    compared = {**compared, **FINISHED} if by_multiples else compared
    found = differences(rows, config.seed, compared, config.task.reference)
    record["differences"] = found
    if by_multiples:
        figures["budgets"] = run.directory / "budgets.png"
        plot_budgets(summary, found, figures["budgets"], title, settings, metric, metric_key)
    shown, constants = without_constants(table)
    notes = [constants, *notes] if constants else notes
    text = f"## {title}\n\n{settings}\n\n{as_markdown(shown)}\n\n{' '.join(notes)}\n"
    if found:
        other = method_of(config.task.reference).title
        text += (
            f"\n### Difference to {other} at equal particles\n\n"
            f"{as_markdown(as_paired_table(found, compared))}\n\nIntervals are "
            "of paired differences, 95 %, over the same resamples of requests for both methods; "
            f"calls and seconds are multiples of {other}'s.\n"
        )
    run.report(
        text,
        record,
        lambda tracked: tracking.log_shown(tracked, {"table": table}, figures),
        arms=tracking.logged_arms(summary, rows, hidden_states(config)),
        files=(*(path.name for path in figures.values()), "results.jsonl"),
        screen=on_screen(f"{title}. {settings}", summary, found, metric_key, compared, reference),
    )


def _settings(config: DictConfig) -> str:
    """What all tasks have in common, in a sentence."""
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
        text += f" They are {read.share_skipped:.1%} of what the source holds."
    return text


def _once(config: DictConfig, prepared: Preparation) -> str:
    """What was done once for all methods, in a sentence; it is not in the seconds of rows."""
    text = (
        f"Once for all: constraints compiled in {prepared.seconds:.1f} s, "
        f"prompts read in {prepared.prompt_seconds:.1f} s."
    )
    if prepared.unkept:
        text += (
            f" For {prepared.unkept} prompts model.prompt_mib={config.model.prompt_mib} is too "
            "little: each method reads them in its own seconds."
        )
    return text


def _report_refusals(run: Run, read: ReadResult[Any], prepared: Preparation) -> None:
    """Say which records were left out, and keep the list with the reasons."""
    path: Path = run.directory / "refused.jsonl"
    lines: list[dict[str, Any]] = [
        {"record": s.position, "kind": "malformed", "reason": s.reason} for s in read.skipped
    ]
    lines += [{"record": i, "kind": "refused", "reason": why} for i, why in prepared.refused]
    path.write_text(as_lines(lines), encoding="utf-8")
    if prepared.refused:  # of malformed ones a warning tells when they are read
        first = prepared.refused[0]
        _LOG.warning(
            "%d records are refused and left out, listed in %s; the first (%s): %s",
            len(prepared.refused), path, *first,
        )  # fmt: skip


WIDTH = 120
_METRICS = {"weighted_accuracy": "accuracy %", "expected_rouge_l": "ROUGE-L %"}
Records = Sequence[Mapping[str, Any]]


def on_screen(
    title: str,
    summary: Records,
    found: Records,
    metric_key: str,
    compared: Mapping[str, Compared],
    evidence: str,
) -> str:
    """Write the title, the result in a sentence, and the most important columns.

    Args:
        summary: records of `summarize`.
        found: paired differences (`experiments.harness.paired.differences`).
        metric_key: where the summary has what answers are judged by, a share.
        compared: what the differences are of, the first of it for the sentence.
        evidence: what evidence is compared with, in a sentence, if there is any.
    """
    titles = titles_in(summary)
    table, constants = without_constants(
        [
            {
                **titles(s),
                "particles": s["particles"],
                _METRICS.get(metric_key, metric_key): _percent(s[metric_key]),
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
    for style, rows in grouped(table, lambda row: row.get("style", "")).items():
        shown = [{k: cell for k, cell in row.items() if k != "style"} for row in rows]
        parts.append((f"{style}:\n" if style else "") + as_columns(shown))
    return "\n\n".join(
        [_filled(title), _filled(result(summary, found, compared)), *parts]
        + [_filled(note) for note in (constants, evidence) if note]
    )


def result(summary: Records, found: Records, compared: Mapping[str, Compared]) -> str:
    """Say who finished, and whether methods differ by more than the choice of requests explains."""
    finished, unfinished = [], []
    for method in dict.fromkeys(s["method"] for s in summary):
        own = [s for s in summary if s["method"] == method]
        worst = min(own, key=lambda s: s["valid"])
        title, total = method_of(method).title, worst["examples"] * worst["repeats"]
        left = round((1 - worst["valid"]) * total)
        if left:  # what is closed as JSON is finished, and may break the rule
            invalid = " or invalid" * (worst["valid"] < worst["complete"])
            unfinished.append(f"{title} left up to {left} of {total} unfinished{invalid}")
        else:
            finished.append(title)
    clauses = [f"{_and(finished)} finished every request"] if finished else []
    said = "; ".join([*clauses, *unfinished])
    if found:
        name, measure = next(iter(compared.items()))
        what, other = measure.title.partition(",")[0], method_of(found[0]["reference"]).title
        beyond = []
        for method in dict.fromkeys(d["method"] for d in found):
            own = [d for d in found if d["method"] == method]
            differ = sum(name in d and not d[f"{name}_low"] <= 0 <= d[f"{name}_high"] for d in own)
            if differ:
                beyond.append(f"{differ} of {len(own)} rows of {method_of(method).title}")
        beyond_chance = f"differs from {other}'s by more than chance (paired 95 % intervals)"
        said += f"; {what} {beyond_chance} in " + (_and(beyond) if beyond else "no row")
    return f"{said}."


def _percent(share: float | None) -> str:
    """A share in percent; estimates of the evidence can be far off."""
    if share is None or share <= 10:
        return number(share and 100 * share, 1)
    return "> 1000"


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH)
