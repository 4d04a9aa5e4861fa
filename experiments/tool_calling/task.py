"""Tool-calling task, `+task=xlam`: methods, algorithms and particles on the same requests.

The tools of each record become an automaton over the model's tokens, each method samples answers
under it, and accuracy compares the calls with the gold calls.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from omegaconf import DictConfig

import gcd
import smc
from experiments.config import RecordConfig, at_least, budgets_in, distinct, one_of
from experiments.evaluate import Example, RecordHandler, check_records, evaluate, identity, report
from experiments.records import ReadResult
from experiments.rows import Row
from experiments.tasks import ExperimentTask, Run
from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.records import (
    NATIVE,
    PARSES,
    STYLES,
    ToolRecord,
    build_prompt,
    load_records,
    makes_calls,
    parses,
    write_answer,
)
from experiments.vllm_model import load_engine
from gcd._automata.horizon import refuse_unchecked
from gcd._languages.tools.call_formats import format_of
from gcd._replies import read_reply

_WRITTEN_IN = {"json": "JSON", "python": "Python"}  # styles, in titles
_LOG = logging.getLogger(__name__)


@dataclass
class XlamConfig(RecordConfig):
    """Tool calling: methods x algorithms x particle counts on the same requests."""

    name: str = "xlam"
    styles: list[str] = field(default_factory=lambda: ["json"])  # every request in each style
    num_examples: int = 24
    algorithms: list[str] = field(default_factory=lambda: ["smc"])
    literals: str = "canonical"  # tokenization of literal text; "all": every tokenization
    max_calls: int | None = None  # None: limited by the budget only
    formats: str = "assert"  # see `gcd.tool_calls`; "ignore": as annotations
    max_bytes: int | None = None  # longest answer that is compiled; None: no limit


def check(config: DictConfig) -> None:
    """Check the settings; raise a `ValueError` with the invalid value and the remedy."""
    task = config.task
    distinct("task.styles", task.styles)
    for style in task.styles:
        one_of("task.styles", style, STYLES + NATIVE)
        if style in NATIVE and any("gold" in str(each) for each in budgets_in(task.budget)):
            raise ValueError(
                f"expected task.budget without gold in the style {style}, in which right answers "
                f"aren't written, got {task.budget}; use fewest:1.25"
            )
    check_records(config)
    at_least("task.max_calls", task.max_calls, 1)
    one_of("task.formats", task.formats, ("assert", "ignore"))
    at_least("task.max_bytes", task.max_bytes, 1)


def _read(config: DictConfig) -> ReadResult[ToolRecord]:
    return load_records(config.data, config.task.num_examples)


class Request(NamedTuple):
    """A record with the style of its calls; rows are per request."""

    record: ToolRecord
    style: str

    @property
    def id(self) -> str:
        """Id of the record; the style is a separate column."""
        return self.record.id

    @property
    def written(self) -> str:
        """Style of the calls after reading: those in a model's own format are read into JSON."""
        return self.style if self.style in STYLES else "json"


METRICS = (PARSES,)
"""Metrics of tool calls; `record_handler` adds their columns to the rows."""


def record_handler(
    config: DictConfig, tokenizer: Any, unknown_types: Counter[str]
) -> RecordHandler:
    """Return the functions that define the task, and count unknown parameter types."""

    def language(request: Request) -> gcd.Automaton:
        record, style = request
        tools = to_json_schema_tools(record.tools, unknown_types)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calls = gcd.tool_calls(
                tools,
                style=style,
                max_calls=config.task.max_calls,
                formats=config.task.formats,
                max_bytes=config.task.max_bytes,
            )
        refuse_unchecked(calls.caveats, "an answer is valid by its constraint", "remove it")
        return calls

    def prompt(request: Request) -> str:
        return build_prompt(*request, tokenizer=tokenizer, kind=config.model.prompt)

    def read(request: Request, answer: bytes) -> bytes:
        """Return an answer in a model's own format as a list of calls in JSON."""
        if request.style in STYLES:
            return answer
        tools = gcd.parse_tools(to_json_schema_tools(request.record.tools)).tools
        try:
            return (read_reply(answer, format_of(request.style), tools, None).calls or "").encode()
        except ValueError:
            return answer

    def is_correct(request: Request, answer: bytes) -> bool:
        return makes_calls(read(request, answer), request.record.calls, request.written)

    def columns(example: Example, posterior: smc.Posterior) -> Row:
        request: Any = example.record
        answer = read(request, posterior.answers[0]) if posterior.answers else b""
        return {
            "style": request.style,
            "gold": gold(request),
            "parses": parses(answer.decode(errors="replace"), request.written),
        }

    def gold(request: Request) -> str:
        return write_answer(request.record.calls, request.record.tools, request.written)

    return RecordHandler(
        language=language,
        prompt=prompt,
        is_correct=is_correct,
        columns=columns,
        gold=gold,
    )


def _run(run: Run, read: ReadResult[ToolRecord]) -> None:
    """Compile the constraints, sample the missing rows, and report."""
    config, task = run.config, run.config.task
    lm, tokenizer = load_engine(config)
    unknown = Counter[str]()
    requests = tuple(Request(record, style) for style in task.styles for record in read.records)
    prepared, rows = evaluate(
        run,
        ReadResult(requests, read.skipped, read.total),
        record_handler(config, tokenizer, unknown),
        lm,
        tokenizer,
    )
    if unknown:
        listed = ", ".join(f"{name} ({n})" for name, n in unknown.most_common())
        _LOG.warning("parameter types read as any JSON value: %s", listed)
    source = config.data.path or config.data.hub or "xLAM 500 to 599"
    report(
        run,
        read,
        prepared,
        rows,
        title=(
            f"Tool calls: {len({each.record.id for each in prepared.examples})} requests "
            f"({source}), in {' and '.join(_WRITTEN_IN.get(s, s) for s in task.styles)}"
        ),
        metrics=METRICS,
        notes=[
            "Accuracies are in percent, with 95% bootstrap intervals over requests. Rows whose "
            "particles all died count as wrong."
        ],
        more={"unknown_types": dict(unknown)},
    )


TASK = ExperimentTask("xlam", XlamConfig, check, _read, identity, _run)
