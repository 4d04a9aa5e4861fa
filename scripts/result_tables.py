"""Tables of docs/results.md, computed from the rows that are committed in docs/rows.

    python -m scripts.result_tables           # print all tables
    python -m scripts.result_tables --write   # replace the tables of the page

On the page a table stands between `<!-- table: NAME -->` and `<!-- end -->`. Means are over the
examples, each with the mean of its repetitions. Intervals are 95% percentile bootstrap over
examples; differences are paired by example, as in `experiments.harness.paired`.
"""

from __future__ import annotations

import argparse
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from experiments.commongen.metrics import rouge_l
from experiments.commongen.records import read_file
from experiments.harness.algorithms import Arm, is_discrete
from experiments.harness.metrics import ACCURACIES, Measure, Metric, by_example, group_rows, number
from experiments.harness.paired import difference
from experiments.harness.results import Row
from experiments.harness.summary import Table, as_markdown

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results.md"
_ROWS = ROOT / "docs" / "rows"
_KEPT = (  # fields that tables need; answers take most of the memory
    "example",
    "method",
    "algorithm",
    "particles",
    "repeat",
    "style",
    "valid",
    "weighted_accuracy",
    "majority_correct",
    "best_correct",
    "best",
    "answer",
    "log_evidence",
    "log_p_per_token",
    "read",
)
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

_BUDGETS = {"gold:1.0": "1.0", "gold:1.25": "1.25", "gold:2.0": "2.0"}
_FEWEST = {"fewest:1.25": "1.25", "fewest:1.5": "1.5", "fewest:2.0": "2.0"}
_JSON = {f"json, {style}": title for style, title in _BUDGETS.items()}
_BOTH = {
    f"{style}, {budget}": f"{title}, {times}"
    for style, title in (("json", "JSON"), ("python", "Python"))
    for budget, times in _BUDGETS.items()
}
_STYLES = {"json": "JSON", "python": "Python"}


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


Cell = Callable[[Sequence[Row]], str]
"""Text of a table's cell, from the rows of one arm under one budget or style."""


@cache
def _references() -> dict[str, tuple[str, ...]]:
    records = read_file(ROOT / "data" / "commongen" / "dev_100.jsonl").records
    return {record.id: record.references for record in records}


@cache
def _rouge(example: str, answer: str) -> float:
    return rouge_l(answer, _references()[example.partition(":")[2]])


@cache
def rows_of(name: str) -> list[Row]:
    """Read the rows of an archive in docs/rows, without the answers."""
    with tarfile.open(_ROWS / f"{name}.tar.xz") as archive:
        file = archive.extractfile("results.jsonl")
        assert file is not None
        return [{key: row.get(key) for key in _KEPT} for row in map(json.loads, file)]


def _rows(names: str) -> list[Row]:
    return [row for name in names.split() for row in rows_of(name)]


def _mean(rows: Sequence[Row], value: Measure) -> float | None:
    values = [*by_example(rows, value).values()]
    return sum(values) / len(values) if values else None


def _field(name: str) -> Measure:
    return lambda row: row[name]


def _show(name: str, digits: int = 1, scale: float = 100) -> Cell:
    def cell(rows: Sequence[Row]) -> str:
        value = _mean(rows, _field(name))
        return number(None if value is None else scale * value, digits)

    return cell


def _percent(rows: Sequence[Row]) -> str:
    return "100" if all(row["valid"] for row in rows) else _show("valid")(rows)


def _evidence(rows: Sequence[Row]) -> str:
    answered, examples = (
        len(by_example(rows, value)) for value in (_field("log_evidence"), lambda row: 0.0)
    )
    text = _show("log_evidence", 2, 1)(rows)
    return f"{text} ({answered})" if answered < examples else text


def _rouge_of(name: str) -> Measure:
    return lambda row: _rouge(row["example"], row[name] or "")


def _rouge_cell(name: str) -> Cell:
    return lambda rows: number(100 * (_mean(rows, _rouge_of(name)) or 0), 1)


def _join(*cells: Cell) -> Cell:
    return lambda rows: " / ".join(cell(rows) for cell in cells)


_RIGHT = _show("weighted_accuracy")


def _right_and_best(rows: Sequence[Row]) -> str:
    """Format the accuracy of weighted answers and of the best answer; one figure for N = 1."""
    several = any(row["particles"] > 1 for row in rows)
    return f"{_RIGHT(rows)} / {_BEST(rows)}" if several else _RIGHT(rows)


_MAJORITY = _show("majority_correct")
_BEST = _show("best_correct")
_FINISHED_ = Metric("valid", "finished")
_RIGHT_ = Metric("weighted_accuracy", "right")
_BEST_ = Metric("best_correct", "right, best")
_EVIDENCE_ = Metric("log_evidence", "log evidence", digits=2, scale=1)
_LIKELY_ = Metric("log_p_per_token", "log p per token", digits=2, scale=1)
_ROUGE_ = Metric("best_rouge_l", "ROUGE-L, best", value=_rouge_of("best"))


def by_style(
    names: str,
    styles: Mapping[str, str],
    cell: Cell,
    without: Sequence[str] = (),
    sampled: Sequence[tuple[str, int]] = (),
) -> Table:
    """Lay out one line for each arm and one column for each style or budget.

    Args:
        names: archives, separated by spaces; rows that several hold are taken from the first.
        styles: titles of the columns, by the style of the rows.
        cell: text of a cell; a dash stands where no archive has rows.
        without: methods that the table leaves out.
        sampled: algorithms and numbers of particles that the table has; all by default.
    """
    groups: dict[tuple[_Arm, str], list[Row]] = {}
    for name in names.split():
        for key, rows in group_rows(
            rows_of(name), lambda row: (_Arm.of(row), row["style"])
        ).items():
            groups.setdefault(key, rows)
    return [
        {
            **arm.titles,
            **{
                title: cell(groups[arm, style]) if (arm, style) in groups else "–"
                for style, title in styles.items()
            },
        }
        for arm in dict.fromkeys(arm for arm, _ in groups)
        if arm.method not in without and (not sampled or arm[1:] in sampled)
    ]


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
    names: str,
    pairs: Iterable[tuple[_Arm, _Arm, Metric]],
    styles: Mapping[str, str],
) -> Table:
    """Lay out one line for each pair of arms: the first minus the second, a column per style."""
    groups = group_rows(_rows(names), lambda row: (_Arm.of(row), row["style"]))
    table: Table = []
    for own, other, measure in pairs:
        ours, theirs = own.titles, other.titles
        same = ours["particles"] == theirs["particles"]
        particles = (
            ours["particles"] if same else f"{ours['particles']} minus {theirs['particles']}"
        )
        methods = (
            ours["method"]
            if ours["method"] == theirs["method"]
            else (f"{ours['method']} minus {theirs['method']}")
        )
        cells = {
            title: _pair(groups[own, style], groups[other, style], measure)
            for style, title in styles.items()
        }
        table.append({"": methods, "particles": particles, "of": measure.title, **cells})
    return table


def _pairs(
    own: str, other: str, measure: Metric, *sampled: tuple[str, int]
) -> list[tuple[_Arm, _Arm, Metric]]:
    return [
        (_Arm(own, algorithm, n), _Arm(other, algorithm, n), measure) for algorithm, n in sampled
    ]


_SMC_1, _SMC_4, _SMC_16 = (("smc", n) for n in (1, 4, 16))
_FILTER_4, _FILTER_16 = (("discrete", n) for n in (4, 16))


def _which_answer() -> Table:
    """Compare the majority's answer of GCD with the most probable one, in several studies."""
    studies = [
        *(
            (f"tool calls, {title}", "tool_calls", style, _SMC_16)
            for style, title in _STYLES.items()
        ),
        *(
            (f"JSON by schemas, {title}", "json_schema_16", style, _SMC_16)
            for style, title in _BUDGETS.items()
        ),
        ("SQL", "sql", None, _SMC_4),
        ("SQL", "sql", None, _SMC_16),
        ("SQL", "sql_filter", None, _FILTER_4),
        ("SQL", "sql_filter", None, _FILTER_16),
    ]
    (gained,) = (each for each in ACCURACIES if each.name == "best_over_majority")
    table: Table = []
    for title, name, style, sampled in studies:
        arm = _Arm("gcd", *sampled)
        rows = [row for row in rows_of(name) if _Arm.of(row) == arm and row["style"] == style]
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
    """Compare P-GCD with GCD, a line for each size of P-GCD's HMM.

    The rows of GCD and of the HMM with 512 states are in the archive of the tool calls.
    """
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

    def cell(measure: Metric, n: int) -> str:
        return _pair(groups[_Arm("pgcd", "smc", n)], groups[_Arm("gcd", "smc", n)], measure)

    return [
        {"P-GCD minus GCD": measure.title, **{f"N = {n}": cell(measure, n) for n in (1, 4, 16)}}
        for measure in (_ROUGE_, _LIKELY_, _EVIDENCE_)
    ]


TABLES: dict[str, Callable[[], Table]] = {
    "budgets": lambda: by_style("truncation", _BOTH, _join(_percent, _RIGHT)),
    "budgets_many": lambda: by_style(
        "truncation_16 truncation_16_python truncation_filter",
        _BOTH,
        _percent,
        without=("gcd", "pgcd"),
    ),
    "budgets_paired": lambda: differences(
        "truncation truncation_16 truncation_16_python truncation_filter",
        [
            *_pairs("gcd", "lcd", _FINISHED_, _SMC_1),
            *_pairs("gcd", "lcd", _RIGHT_, _SMC_1, _SMC_16, _FILTER_4),
            *_pairs("pgcd", "gcd", _RIGHT_, _SMC_1),
        ],
        _BOTH,
    ),
    "no_adapter": lambda: by_style("no_adapter", _JSON, _join(_percent, _RIGHT)),
    "no_adapter_paired": lambda: differences(
        "no_adapter",
        [
            *_pairs("gcd", "lcd", _FINISHED_, _SMC_1),
            *_pairs("gcd", "lcd", _RIGHT_, _SMC_1),
        ],
        _JSON,
    ),
    "json": lambda: by_style(
        "json_schema json_schema_pgcd json_schema_16", _BUDGETS, _join(_percent, _right_and_best)
    ),
    "json_paired": lambda: [
        *differences(
            "json_schema json_schema_16",
            [
                *_pairs("gcd", "lcd", _FINISHED_, _SMC_1),
                *_pairs("gcd", "lcd", _RIGHT_, _SMC_1, _SMC_16),
                *_pairs("gcd", "lcd", _BEST_, _SMC_16),
            ],
            _BUDGETS,
        ),
        *differences(
            "json_schema_pgcd",
            [
                *_pairs("pgcd", "gcd", _RIGHT_, _SMC_1),
                *_pairs("pgcd", "gcd", _EVIDENCE_, _SMC_1),
            ],
            _BUDGETS,
        ),
    ],
    "which_answer": _which_answer,
    "short_sentences": lambda: by_style(
        "sentences_short",
        _FEWEST,
        _join(_percent, _rouge_cell("best"), _show("log_p_per_token", 2, 1)),
        without=("greedy_close",),
    ),
    "short_sentences_paired": lambda: differences(
        "sentences_short",
        [
            pair
            for measure in (_ROUGE_, _LIKELY_, _EVIDENCE_)
            for pair in _pairs("pgcd", "gcd", measure, _SMC_1, _SMC_4)
        ],
        _FEWEST,
    ),
    "tool_calls": lambda: by_style(
        "tool_calls tool_calls_filter",
        _STYLES,
        _join(_percent, _RIGHT, _evidence, _show("read", 0, 1)),
        without=("hmm", "greedy_close"),
        sampled=(_SMC_1, _SMC_16, _FILTER_16),
    ),
    "tool_calls_paired": lambda: differences(
        "tool_calls tool_calls_filter",
        [
            *_pairs("pgcd", "gcd", _RIGHT_, _SMC_1, _SMC_16),
            *_pairs("pgcd", "gcd", _EVIDENCE_, _SMC_1, _SMC_4, _SMC_16),
            (_Arm("gcd", *_FILTER_16), _Arm("gcd", *_SMC_16), _EVIDENCE_),
            (
                _Arm("gcd", *_FILTER_16),
                _Arm("gcd", *_SMC_16),
                Metric("majority_correct", "right, majority"),
            ),
        ],
        _STYLES,
    ),
    "hmm_sizes": _hmm_sizes,
    "sentences": lambda: listing(
        "sentences",
        without=("greedy_close",),
        columns={
            "ROUGE-L, majority": _rouge_cell("answer"),
            "ROUGE-L, best": _rouge_cell("best"),
            "log p per token": _show("log_p_per_token", 2, 1),
            "log evidence": _evidence,
            "read": _show("read", 0, 1),
        },
    ),
    "sentences_paired": _sentences_paired,
    "sql": lambda: listing(
        "sql sql_filter",
        without=("lcd", "greedy_close"),
        columns={
            "finished": _percent,
            "right": _RIGHT,
            "majority": _MAJORITY,
            "best": _BEST,
            "log evidence": _evidence,
            "read": _show("read", 0, 1),
        },
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
    parser = argparse.ArgumentParser(prog="scripts.result_tables", description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the tables of the page")
    arguments = parser.parse_args()
    if arguments.write:
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    for name, make in TABLES.items():
        print(f"{name}\n\n{_compact(as_markdown(make()))}\n")


if __name__ == "__main__":
    main()
