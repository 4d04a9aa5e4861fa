"""How well tool lists compile, and whether their gold answers are in the language.

    python -m scripts.check_xlam ../shared/data/xlam/first_600.jsonl [--style json|python|both]

For every record: the tools become an automaton, or are refused, with the reason; the gold answer is
written in the style, arguments in declared order, and must be accepted by the automaton of its own
record. A rejected answer is traced to the call and the argument that the language does not have.
Reads xLAM's JSON lines (`.jsonl`) and lists of records (`.json`).
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from experiments.tool_calling.answers import Call, name_of, parameters_of, write_answer
from experiments.tool_calling.records import ToolRecord, read_toolcalls, read_xlam
from gcd.automata.automaton import Automaton
from gcd.errors import ConstraintError
from gcd.languages.tools.tool_calls import tool_calls
from gcd.languages.tools.tool_types import parse_tools

Style = Literal["json", "python"]
STYLES: tuple[Style, ...] = ("json", "python")


@dataclass
class Report:
    """Outcomes of one style over all records."""

    style: str
    refused: list[tuple[str, str]] = field(default_factory=list)
    rejected: list[tuple[str, str]] = field(default_factory=list)
    unknown_types: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    states: list[int] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The report, one line each."""
        compiled = len(self.states)
        total = compiled + len(self.refused)
        accepted = compiled - len(self.rejected)
        found = [
            f"{self.style}: {total} records",
            f"  tool lists compiled    {compiled} of {total} ({compiled / total:.2%})",
            f"  gold answers accepted  {accepted} of {total} ({accepted / total:.2%} of all, "
            f"{accepted / max(compiled, 1):.2%} of those compiled)",
        ]
        if compiled:
            milliseconds = [1e3 * s for s in self.seconds]
            found.append(
                f"  compile time           median {statistics.median(milliseconds):.1f} ms, "
                f"worst {max(milliseconds):.0f} ms; states: median "
                f"{statistics.median(self.states):.0f}, most {max(self.states)}"
            )
        if self.unknown_types:
            listed = ", ".join(f"{name} ({n}x)" for name, n in self.unknown_types.most_common())
            found.append(f"  types read as any JSON value: {listed}")
        found += [f"  refused   record {name}: {reason}" for name, reason in self.refused]
        found += [f"  rejected  record {name}: {reason}" for name, reason in self.rejected]
        return found


def check(records: Sequence[ToolRecord], style: Style) -> Report:
    """Compile every record's tools, and run its gold answer through the automaton."""
    report = Report(style)
    for record in tqdm(records, desc=style, leave=False):
        started = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # unknown types are counted below
                language = tool_calls(record.tools, style=style)
        except ConstraintError as error:
            report.refused.append((record.id, str(error)))
            continue
        report.seconds.append(time.perf_counter() - started)
        report.states.append(language.num_states)
        report.unknown_types.update(parse_tools(record.tools).unknown_types)
        answer = write_answer(record.calls, record.tools, style)
        if not language.accepts(answer):
            report.rejected.append((record.id, explain(record, answer, language, style)))
    return report


def explain(record: ToolRecord, answer: str, language: Automaton, style: Style) -> str:
    """Why an answer is not in the language of its tools."""
    faults = [fault for call in record.calls for fault in _faults(call, record.tools, style)]
    if faults:
        return "; ".join(dict.fromkeys(faults))
    end = _first_refused(language, answer.encode())
    return f"the language ends at byte {end}: {answer[max(0, end - 40) : end + 20]!r}"


def _faults(call: Call, tools: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    tool = next((tool for tool in tools if name_of(tool) == call.name), None)
    if tool is None:
        return [f"{call.name} is not one of the tools"]
    declared = parameters_of(tool)
    parsed = next(t for t in parse_tools(tools).tools if t.name == call.name)
    required = [parameter.name for parameter in parsed.parameters if parameter.required]
    faults = [
        f"{call.name} lacks the required {name} ({_type_of(declared[name])})"
        for name in required
        if name not in call.arguments
    ]
    for name, value in call.arguments.items():
        if name not in declared:
            faults.append(f"{call.name} has no parameter {name}")
            continue
        alone = {"name": "f", "parameters": {name: declared[name]}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            language = tool_calls([alone], style=style)
        if not language.accepts(write_answer([Call("f", {name: value})], [alone], style)):
            shown = repr(value) if len(repr(value)) < 60 else repr(value)[:57] + "..."
            faults.append(f"{call.name}: {name} is {_type_of(declared[name])}, not {shown}")
    return faults


def _type_of(declaration: Any) -> str:
    return str(declaration.get("type", "any")) if isinstance(declaration, Mapping) else "any"


def _first_refused(language: Automaton, text: bytes) -> int:
    """The first byte after which no accepted string goes on, or the length."""
    state = 0
    for position in range(len(text)):
        state = language.run(text[position : position + 1], state)
        if state < 0:
            return position
    return len(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("path", type=Path, help="xLAM's JSON lines, or a JSON list of records")
    parser.add_argument("--style", choices=(*STYLES, "both"), default="both")
    arguments = parser.parse_args()
    read = read_xlam if arguments.path.suffix == ".jsonl" else read_toolcalls
    result = read(arguments.path)
    for skipped in result.skipped:
        print(f"skipped   line {skipped.position}: {skipped.reason}")
    for style in STYLES:
        if arguments.style in (style, "both"):
            print("\n".join(check(result.records, style).lines()))


if __name__ == "__main__":
    main()
