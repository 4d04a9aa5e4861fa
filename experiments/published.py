"""Tables of docs/results.md, computed from the rows that are committed in data/rows.

    python -m experiments.published           # print all tables
    python -m experiments.published --write   # replace the tables of the page

On the page a table stands between `<!-- table: NAME -->` and `<!-- end -->`. Means, intervals and
paired differences are those of `experiments.tables`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

from experiments.arms import Arm, is_discrete
from experiments.commongen.task import read_sets, rouge_l
from experiments.models import ROOT
from experiments.tables import (
    ACCURACIES,
    Measure,
    Metric,
    Table,
    as_markdown,
    by_example,
    difference,
    group_rows,
    number,
    read_rows_of,
)
from experiments.tasks import Row

PAGE = ROOT / "docs" / "results.md"
_ROWS = ROOT / "data" / "rows"
_LARGE = ("answers", "unfinished", "gold")  # fields that no table needs
_GONE = ("json_close",)  # methods that the archives have, but not the project
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_STYLES = {"json": "JSON", "python": "Python"}
_BUDGETS = {f"gold:{times}": times for times in ("1.0", "1.25", "2.0")}
_FEWEST = {f"fewest:{times}": times for times in ("1.25", "1.5", "2.0")}
_JSON = {f"json, {style}": title for style, title in _BUDGETS.items()}
_BOTH = {
    f"{style}, {budget}": f"{title}, {times}"
    for style, title in _STYLES.items()
    for budget, times in _BUDGETS.items()
}
Cell = Callable[[Sequence[Row]], str]
"""Text of a table's cell, from the rows of one arm under one budget or style."""


class _Arm(NamedTuple):
    """A method with an algorithm and a number of particles, which has a line in a table."""

    method: str
    algorithm: str
    particles: int

    @classmethod
    def of(cls, row: Row) -> _Arm:
        return cls(row["method"], row["algorithm"], row["particles"])

    @property
    def titles(self) -> dict[str, str]:
        filtered = "filter, " if is_discrete(self.algorithm) else ""
        title = Arm(self.method, self.algorithm).titles["method"]
        return {"method": title, "particles": f"{filtered}{self.particles}"}


@cache
def rows_of(name: str) -> list[Row]:
    """Read the rows of an archive in data/rows, without the answers."""
    rows = read_rows_of([_ROWS / f"{name}.tar.xz"])
    return [
        {key: value for key, value in row.items() if key not in _LARGE}
        for row in rows
        if row["method"] not in _GONE
    ]


def _rows(names: str) -> list[Row]:
    return [row for name in names.split() for row in rows_of(name)]


# -- cells


@cache
def _references() -> dict[str, tuple[str, ...]]:
    records = read_sets(ROOT / "data" / "commongen" / "dev_100.jsonl").records
    return {record.id: record.references for record in records}


@cache
def _rouge(example: str, answer: str) -> float:
    return rouge_l(answer, _references()[example.partition(":")[2]])


def _rouge_of(name: str) -> Measure:
    return lambda row: _rouge(row["example"], row[name] or "")


def _show(value: str | Measure, digits: int = 1, scale: float = 100) -> Cell:
    """Make cells with the mean over examples of a column or a measure."""
    measure = value if callable(value) else lambda row: row.get(value)

    def cell(rows: Sequence[Row]) -> str:
        values = [*by_example(rows, measure).values()]
        return number(scale * sum(values) / len(values) if values else None, digits)

    return cell


def _percent(rows: Sequence[Row]) -> str:
    return "100" if all(row["valid"] for row in rows) else _show("valid")(rows)


def _evidence(rows: Sequence[Row]) -> str:
    answered = len(by_example(rows, lambda row: row["log_evidence"]))
    text = _show("log_evidence", 2, 1)(rows)
    return f"{text} ({answered})" if answered < len({row["example"] for row in rows}) else text


def _join(*cells: Cell) -> Cell:
    return lambda rows: " / ".join(cell(rows) for cell in cells)


_RIGHT, _MAJORITY, _BEST = map(_show, ("weighted_accuracy", "majority_correct", "best_correct"))
_READ = _show("read", 0, 1)
_LIKELY = _show("log_p_per_token", 2, 1)


def _right_and_best(rows: Sequence[Row]) -> str:
    """Format the accuracy of weighted answers and of the best answer; one figure for N = 1."""
    several = any(row["particles"] > 1 for row in rows)
    return f"{_RIGHT(rows)} / {_BEST(rows)}" if several else _RIGHT(rows)


_FINISHED_ = Metric("valid", "finished")
_RIGHT_ = Metric("weighted_accuracy", "right")
_BEST_ = Metric("best_correct", "right, best")
_MAJORITY_ = Metric("majority_correct", "right, majority")
_EVIDENCE_ = Metric("log_evidence", "log evidence", digits=2, scale=1)
_LIKELY_ = Metric("log_p_per_token", "log p per token", digits=2, scale=1)
_ROUGE_ = Metric("best_rouge_l", "ROUGE-L, best", value=_rouge_of("best"))


# -- layouts


def by_style(
    names: str,
    styles: Mapping[str, str],
    *cells: Cell,
    without: Sequence[str] = (),
    sampled: Sequence[tuple[str, int]] = (),
) -> Table:
    """Lay out one line for each arm and one column for each style or budget.

    Args:
        names: archives, separated by spaces; rows that several hold are taken from the first.
        styles: titles of the columns, by the style of the rows.
        cells: parts of a cell; a dash stands where no archive has rows.
        without: methods that the table leaves out.
        sampled: algorithms and numbers of particles that the table has; all by default.
    """
    groups: dict[tuple[_Arm, str], list[Row]] = {}
    for name in names.split():
        grouped = group_rows(rows_of(name), lambda row: (_Arm.of(row), row["style"]))
        for key, rows in grouped.items():
            groups.setdefault(key, rows)
    table: Table = []
    for arm in dict.fromkeys(arm for arm, _ in groups):
        if arm.method not in without and (not sampled or arm[1:] in sampled):
            found = {title: groups.get((arm, style)) for style, title in styles.items()}
            shown = {title: _join(*cells)(own) if own else "–" for title, own in found.items()}
            table.append({**arm.titles, **shown})
    return table


def listing(names: str, columns: Mapping[str, Cell], without: Sequence[str] = ()) -> Table:
    """Lay out one line for each arm, with these columns; leave out the methods in `without`."""
    rows = [row for row in _rows(names) if row["method"] not in without]
    return [
        {**arm.titles, **{title: cell(own) for title, cell in columns.items()}}
        for arm, own in group_rows(rows, _Arm.of).items()
    ]


def _pair(own: Sequence[Row], other: Sequence[Row], measure: Metric) -> str:
    found = difference(own, other, measure.of, seed=0)
    assert found is not None
    figures = (round(measure.scale * x, measure.digits) + 0.0 for x in found.interval)  # no -0.0
    mean, low, high = (f"{figure:+.{measure.digits}f}" for figure in figures)
    return f"{mean} [{low}, {high}]"


def differences(
    names: str, styles: Mapping[str, str], pairs: Iterable[tuple[_Arm, _Arm, Metric]]
) -> Table:
    """Lay out one line for each pair of arms: the first minus the second, a column per style."""
    groups = group_rows(_rows(names), lambda row: (_Arm.of(row), row["style"]))
    table: Table = []
    for own, other, measure in pairs:
        titles = [
            " minus ".join(dict.fromkeys((own.titles[key], other.titles[key])))
            for key in ("method", "particles")
        ]
        line = dict(zip(("", "particles", "of"), (*titles, measure.title), strict=True))
        for style, title in styles.items():
            line[title] = _pair(groups[own, style], groups[other, style], measure)
        table.append(line)
    return table


def _pairs(
    own: str, other: str, measure: Metric, *sampled: tuple[str, int]
) -> list[tuple[_Arm, _Arm, Metric]]:
    return [(_Arm(own, *each), _Arm(other, *each), measure) for each in sampled]


# -- the tables

_SMC_1, _SMC_4, _SMC_16 = (("smc", n) for n in (1, 4, 16))
_FILTER_4, _FILTER_16 = (("discrete", n) for n in (4, 16))
_GCD_LCD, _PGCD_GCD = partial(_pairs, "gcd", "lcd"), partial(_pairs, "pgcd", "gcd")


def _which_answer() -> Table:
    """Compare the majority's answer of GCD with the most probable one, in several studies."""
    studies = [
        *((f"tool calls, {title}", "tool_calls", style, _SMC_16)
          for style, title in _STYLES.items()),
        *((f"JSON by schemas, {title}", "json_schema_16", style, _SMC_16)
          for style, title in _BUDGETS.items()),
        *(("SQL", name, None, sampled)
          for name, sampled in (("sql", _SMC_4), ("sql", _SMC_16), ("sql_filter", _FILTER_4),
                                ("sql_filter", _FILTER_16))),
    ]  # fmt: skip
    (gained,) = (each for each in ACCURACIES if each.name == "best_over_majority")
    table: Table = []
    for title, name, style, sampled in studies:
        arm = _Arm("gcd", *sampled)
        rows = [row for row in rows_of(name) if (_Arm.of(row), row.get("style")) == (arm, style)]
        zero = [{**row, "best_correct": 0, "majority_correct": 0} for row in rows]
        table.append(
            {
                "requests": title,
                "particles": arm.titles["particles"],
                "majority": _MAJORITY(rows),
                "best": _BEST(rows),
                "best minus majority": _pair(rows, zero, gained),
            }
        )
    return table


def _hmm_sizes() -> Table:
    """Compare P-GCD with GCD by the size of the HMM; GCD and 512 states are with the tool calls."""
    ours = [row for row in rows_of("tool_calls") if row["style"] == "json"]
    groups = group_rows([*ours, *rows_of("hmm_sizes")], _Arm.of)
    states = {"pgcd:H64": "64", "pgcd:H256": "256", "pgcd": "512", "pgcd:H1024": "1,024"}
    table: Table = []
    for method, title in states.items():
        arms = [
            (n, groups[_Arm(method, "smc", n)], groups[_Arm("gcd", "smc", n)]) for n in (1, 4, 16)
        ]
        table.append(
            {
                "states": title,
                "right, N = 1, 4, 16": ", ".join(_RIGHT(rows) for _, rows, _ in arms),
                **{f"log evidence, N = {n}": _pair(o, g, _EVIDENCE_) for n, o, g in arms},
            }
        )
    return table


def _sentences_paired() -> Table:
    """Compare P-GCD with GCD, a column for each number of particles."""
    groups = group_rows(rows_of("sentences"), _Arm.of)
    return [
        {
            "P-GCD minus GCD": measure.title,
            **{
                f"N = {n}": _pair(
                    groups[_Arm("pgcd", "smc", n)], groups[_Arm("gcd", "smc", n)], measure
                )
                for n in (1, 4, 16)
            },
        }
        for measure in (_ROUGE_, _LIKELY_, _EVIDENCE_)
    ]


_TRUNCATED = "truncation_16 truncation_16_python truncation_filter"
_CLOSE = ("greedy_close",)
TABLES: dict[str, Callable[[], Table]] = {
    "budgets": lambda: by_style("truncation", _BOTH, _percent, _RIGHT),
    "budgets_many": lambda: by_style(_TRUNCATED, _BOTH, _percent, without=("gcd", "pgcd")),
    "budgets_paired": lambda: differences(
        f"truncation {_TRUNCATED}",
        _BOTH,
        [
            *_GCD_LCD(_FINISHED_, _SMC_1),
            *_GCD_LCD(_RIGHT_, _SMC_1, _SMC_16, _FILTER_4),
            *_PGCD_GCD(_RIGHT_, _SMC_1),
        ],
    ),
    "no_adapter": lambda: by_style("no_adapter", _JSON, _percent, _RIGHT),
    "no_adapter_paired": lambda: differences(
        "no_adapter", _JSON, [*_GCD_LCD(_FINISHED_, _SMC_1), *_GCD_LCD(_RIGHT_, _SMC_1)]
    ),
    "json": lambda: by_style(
        "json_schema json_schema_pgcd json_schema_16", _BUDGETS, _percent, _right_and_best
    ),
    "json_paired": lambda: [
        *differences(
            "json_schema json_schema_16",
            _BUDGETS,
            [
                *_GCD_LCD(_FINISHED_, _SMC_1),
                *_GCD_LCD(_RIGHT_, _SMC_1, _SMC_16),
                *_GCD_LCD(_BEST_, _SMC_16),
            ],
        ),
        *differences(
            "json_schema_pgcd",
            _BUDGETS,
            [*_PGCD_GCD(_RIGHT_, _SMC_1), *_PGCD_GCD(_EVIDENCE_, _SMC_1)],
        ),
    ],
    "which_answer": _which_answer,
    "short_sentences": lambda: by_style(
        "sentences_short", _FEWEST, _percent, _show(_rouge_of("best")), _LIKELY, without=_CLOSE
    ),
    "short_sentences_paired": lambda: differences(
        "sentences_short",
        _FEWEST,
        [
            pair
            for measure in (_ROUGE_, _LIKELY_, _EVIDENCE_)
            for pair in _PGCD_GCD(measure, _SMC_1, _SMC_4)
        ],
    ),
    "tool_calls": lambda: by_style(
        "tool_calls tool_calls_filter",
        _STYLES,
        *(_percent, _RIGHT, _evidence, _READ),
        without=("hmm", *_CLOSE),
        sampled=(_SMC_1, _SMC_16, _FILTER_16),
    ),
    "tool_calls_paired": lambda: differences(
        "tool_calls tool_calls_filter",
        _STYLES,
        [
            *_PGCD_GCD(_RIGHT_, _SMC_1, _SMC_16),
            *_PGCD_GCD(_EVIDENCE_, _SMC_1, _SMC_4, _SMC_16),
            (_Arm("gcd", *_FILTER_16), _Arm("gcd", *_SMC_16), _EVIDENCE_),
            (_Arm("gcd", *_FILTER_16), _Arm("gcd", *_SMC_16), _MAJORITY_),
        ],
    ),
    "hmm_sizes": _hmm_sizes,
    "sentences": lambda: listing(
        "sentences",
        {
            "ROUGE-L, majority": _show(_rouge_of("answer")),
            "ROUGE-L, best": _show(_rouge_of("best")),
            "log p per token": _LIKELY,
            "log evidence": _evidence,
            "read": _READ,
        },
        without=_CLOSE,
    ),
    "sentences_paired": _sentences_paired,
    "sql": lambda: listing(
        "sql sql_filter",
        {
            "finished": _percent,
            "right": _RIGHT,
            "majority": _MAJORITY,
            "best": _BEST,
            "log evidence": _evidence,
            "read": _READ,
        },
        without=("lcd", *_CLOSE),
    ),
}
"""The tables of the page, by the name in its marks."""


def fill(page: str) -> str:
    """Put the tables into a page, between their marks.

    Raises:
        ValueError: a mark has a name that isn't in `TABLES`.
    """

    def table(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise ValueError(f"expected one of {', '.join(TABLES)}, got table: {match[2]}")
        return f"{match[1]}\n{_compact(as_markdown(TABLES[match[2]]()))}\n\n{match[3]}"

    return _MARKED.sub(table, page)


def _compact(table: str) -> str:
    """Remove the padding of cells, which doesn't help to read the source of such wide tables."""
    lines = [re.sub(r" {2,}\|", " |", line) for line in table.splitlines()]
    return "\n".join([lines[0], re.sub("-+", "---", lines[1]), *lines[2:]])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="experiments.published", description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the tables of the page")
    if parser.parse_args().write:
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    for name, make in TABLES.items():
        print(f"{name}\n\n{_compact(as_markdown(make()))}\n")


if __name__ == "__main__":
    main()
