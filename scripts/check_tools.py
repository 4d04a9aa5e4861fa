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
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tqdm import tqdm

from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.task import Call, read_xlam, write_answer
from gcd import ConstraintError, tool_calls
from gcd_cli._explaining import standing

Style = Literal["json", "python"]
STYLES: tuple[Style, ...] = ("json", "python")


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


class Report(NamedTuple):
    """The results for the records of some files in one style.

    Attributes:
        compiled: milliseconds and states of each tool list that compiles, by record.
        refused: reason of each tool list that doesn't compile, by record.
        answers: number of gold answers of the tool lists that compile.
        rejected: reason of each gold answer that is not accepted, by record.
        unknown_types: types that are treated as any JSON value.
    """

    compiled: dict[str, tuple[float, int]]
    refused: dict[str, str]
    answers: int
    rejected: dict[str, str]
    unknown_types: Counter[str]

    def lines(self) -> list[str]:
        """Return the lines of the report."""
        compiled, total = len(self.compiled), len(self.compiled) + len(self.refused)
        found = [f"  tool lists compiled    {compiled} of {total} ({compiled / max(total, 1):.2%})"]
        if self.answers:
            accepted = self.answers - len(self.rejected)
            found.append(f"  gold answers accepted  {accepted} of {self.answers} of those compiled")
        if compiled:
            times, states = zip(*self.compiled.values(), strict=True)
            found.append(
                f"  compile time           median {statistics.median(times):.1f} ms, worst "
                f"{max(times):.0f} ms; states: median {statistics.median(states):.0f}, most "
                f"{max(states)}"
            )
        found += [f"  {name} read as any JSON value {n}x" for name, n in self.unknown_types.items()]
        found += [f"  refused   record {name}: {reason}" for name, reason in self.refused.items()]
        found += [f"  rejected  record {name}: {reason}" for name, reason in self.rejected.items()]
        return found


def check(records: Sequence[Record], style: Style) -> Report:
    """Compile every record's tools, and check its gold answer."""
    compiled, refused, rejected = {}, {}, {}
    answers, unknown = 0, Counter[str]()
    for record in tqdm(records, desc=style, leave=False):
        started, types = time.perf_counter(), Counter[str]()
        try:
            language = tool_calls(to_json_schema_tools(record.tools, types), style=style)
        except ConstraintError as error:
            refused[record.id] = str(error)
            continue
        compiled[record.id] = 1e3 * (time.perf_counter() - started), language.num_states
        unknown += types
        if record.calls is not None:
            answers += 1
            answer = write_answer(record.calls, record.tools, style)
            if not language.accepts(answer):
                rejected[record.id] = standing(language, answer.encode()).reason() or ""
    return Report(compiled, refused, answers, rejected, unknown)


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
            print(f"{style}: {len(records)} records", *check(records, style).lines(), sep="\n")


if __name__ == "__main__":
    main()
