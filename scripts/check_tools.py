"""Check how many tool lists compile, and whether their gold answers are accepted.

    python -m scripts.check_tools ../shared/data/bfcl/*.json ../shared/data/toolcalls/*.json
    python -m scripts.check_tools ../shared/data/xlam/first_600.jsonl --style python

The tools of every record are compiled to an automaton, or refused with a reason. If the record has
a gold answer, it is written in the style with arguments in declared order, and the record's
automaton must accept it. For a rejected answer the report names the byte where it leaves the
language, and the expected bytes.

Three file formats are supported:

* xLAM's JSON lines (`.jsonl`);
* lists of records with `query`, `tools` and `answers` (`.json`);
* the questions of the Berkeley Function Calling Leaderboard (`.json` with JSON lines, tools under
  `function`, no answers).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tqdm import tqdm

from experiments.tool_calling.answers import Call, write_answer
from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.records import read_xlam
from gcd import ConstraintError, UnsupportedSchemaError, tool_calls
from gcd_cli._explaining import standing

Style = Literal["json", "python"]
STYLES: tuple[Style, ...] = ("json", "python")

_SLOWEST = 3  # number of slowest records in the report


class Record(NamedTuple):
    """A tool list, and the gold answer if the source has one."""

    id: str
    tools: Sequence[dict[str, Any]]
    calls: Sequence[Call] | None


def read_records(path: Path) -> tuple[list[Record], list[str]]:
    """Read a file in one of the three formats; return its records, and the reasons for skipping.

    Raises:
        DataError: the file can't be read, or has no well-formed record.
    """
    if path.suffix != ".jsonl" and _is_bfcl(path):
        rows = [
            json.loads(line) for line in path.read_text("utf-8-sig").splitlines() if line.strip()
        ]
        return [Record(row["id"], row["function"], None) for row in rows], []
    result = read_xlam(path)
    records = [Record(record.id, record.tools, record.calls) for record in result.records]
    return records, [f"line {skipped.position}: {skipped.reason}" for skipped in result.skipped]


def _is_bfcl(path: Path) -> bool:
    """Return whether the first line of a file is a JSON object with the key `function`."""
    with path.open(encoding="utf-8-sig") as file:
        try:
            first = json.loads(file.readline())
        except ValueError:
            return False
    return isinstance(first, dict) and "function" in first


@dataclass
class Report:
    """The results for the records of some files in one style.

    Attributes:
        style: "json" or "python".
        refused: (record, reason) of each tool list that doesn't compile.
        reasons: number of occurrences of each reason, ignoring its location.
        answers: number of gold answers of the tool lists that compile.
        rejected: (record, reason) of each gold answer that is not accepted.
        unknown_types: types that are treated as any JSON value.
        compiled: (seconds, states, record) of each tool list that compiles.
    """

    style: str
    refused: list[tuple[str, str]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    rejected: list[tuple[str, str]] = field(default_factory=list)
    unknown_types: Counter[str] = field(default_factory=Counter)
    compiled: list[tuple[float, int, str]] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the lines of the report."""
        compiled = len(self.compiled)
        total = compiled + len(self.refused)
        found = [
            f"{self.style}: {total} records",
            f"  tool lists compiled    {compiled} of {total} ({compiled / max(total, 1):.2%})",
        ]
        if self.answers:
            accepted = self.answers - len(self.rejected)
            found.append(
                f"  gold answers accepted  {accepted} of {self.answers} of those compiled "
                f"({accepted / self.answers:.2%})"
            )
        if compiled:
            milliseconds = [1e3 * seconds for seconds, _, _ in self.compiled]
            states = [states for _, states, _ in self.compiled]
            slowest = sorted(self.compiled, reverse=True)[:_SLOWEST]
            found += [
                f"  compile time           median {statistics.median(milliseconds):.1f} ms, "
                f"worst {max(milliseconds):.0f} ms; states: median "
                f"{statistics.median(states):.0f}, most {max(states)}",
                "  slowest                "
                + ", ".join(f"{name} ({1e3 * s:.0f} ms, {n} states)" for s, n, name in slowest),
            ]
        if self.unknown_types:
            listed = ", ".join(f"{name} ({n}x)" for name, n in self.unknown_types.most_common())
            found.append(f"  types read as any JSON value: {listed}")
        found += [f"  refused {n}x: {reason}" for reason, n in self.reasons.most_common()]
        found += [f"  refused   record {name}: {reason}" for name, reason in self.refused]
        found += [f"  rejected  record {name}: {reason}" for name, reason in self.rejected]
        return found


def check(records: Sequence[Record], style: Style) -> Report:
    """Compile every record's tools, and check its gold answer."""
    report = Report(style)
    for record in tqdm(records, desc=style, leave=False):
        started = time.perf_counter()
        try:
            unknown = Counter[str]()
            language = tool_calls(to_json_schema_tools(record.tools, unknown), style=style)
        except ConstraintError as error:
            report.refused.append((record.id, str(error)))
            report.reasons[_reason(error)] += 1
            continue
        seconds = time.perf_counter() - started
        report.compiled.append((seconds, language.num_states, record.id))
        report.unknown_types.update(unknown)
        if record.calls is None:
            continue
        report.answers += 1
        answer = write_answer(record.calls, record.tools, style)
        if not language.accepts(answer):
            report.rejected.append((record.id, standing(language, answer.encode()).reason() or ""))
    return report


def _reason(error: ConstraintError) -> str:
    """Return the message without its location, so that equal reasons are counted together."""
    if isinstance(error, UnsupportedSchemaError):
        return str(error).replace(f" at {error.pointer!r}", "")
    return str(error)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("paths", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--style", choices=(*STYLES, "both"), default="both")
    arguments = parser.parse_args()
    records: list[Record] = []
    for path in arguments.paths:
        found, skipped = read_records(path)
        records += found
        print("".join(f"skipped   {path.name}, {reason}\n" for reason in skipped), end="")
    for style in STYLES:
        if arguments.style in (style, "both"):
            check(records[:1], style)  # loads the kernels, which is not timed
            print("\n".join(check(records, style).lines()))


if __name__ == "__main__":
    main()
