"""Lists of tools and forms with many bounded strings: time to compile, size, and first mask.

    OMP_NUM_THREADS=1 python -m benchmarks.large_schemas FILE.tiktoken

All engines get the same JSON Schemas. Each schema is compiled in a forked process with a time
limit; times are processor time of one thread. *Unchecked* is the number of bounds that this project
leaves to a check of the finished text.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from benchmarks.common import head, line, read_ranks, with_ranks
from benchmarks.engines import COMPETITORS, Engine, Ours, Row, is_installed
from benchmarks.first_mask import call_forked
from gcd import Matcher, TokenAutomaton

SECONDS = 120
BUDGET = 400  # tokens


class Measured(NamedTuple):
    """Figures of one schema: ms to compile and to the first mask, MB, states, unchecked bounds."""

    compile: float
    first: float
    size: float | None
    states: int | None
    unchecked: int | None


def tools(count: int, longest: int, arguments: int = 1) -> dict[str, Any]:
    """Return the schema of lists of calls; the arguments' types take turns, strings first."""
    text = {"type": "string", "maxLength": longest}
    kinds: list[Any] = [
        text,
        {"type": "integer", "minimum": 0, "maximum": 100},
        {"type": "array", "items": text, "maxItems": 5},
        {"enum": [f"a choice of the caller, number {i}" for i in range(9)]},
        {"type": "number"},
        {"type": "boolean"},
    ]
    calls = []
    for tool in range(count):
        members = {f"argument_{i}_of_{tool}": kinds[i % len(kinds)] for i in range(arguments)}
        given = {"type": "object", "properties": members, "required": [f"argument_0_of_{tool}"]}
        given["additionalProperties"] = False
        call = {"name": {"const": f"tool_{tool}"}, "arguments": given}
        calls.append({"type": "object", "properties": call, "required": list(call)})
        calls[-1]["additionalProperties"] = False
    return {"type": "array", "items": {"anyOf": calls}, "minItems": 1}


def form(count: int, longest: int) -> dict[str, Any]:
    """Return the schema of an object of optional bounded strings."""
    members = {f"field_{i}": {"type": "string", "maxLength": longest} for i in range(count)}
    return {"type": "object", "properties": members, "additionalProperties": False}


CASES = {
    "form of 25 texts of 500": form(25, 500),
    "form of 49 texts of 255": form(49, 255),
    "form of 30 texts of 1,000": form(30, 1_000),
    "form of 5 texts of 65,536": form(5, 65_536),
    "25 tools, a text of 500": tools(25, 500),
    "25 tools, a text of 65,536": tools(25, 65_536),
    "128 tools, a text of 500": tools(128, 500),
    "20 tools, 12 arguments, texts of 64": tools(20, 64, 12),
    "128 tools, 12 arguments, texts of 64": tools(128, 64, 12),
}


def measure(engine: Engine, schema: Any) -> Measured | None:
    """Compile a schema, and compute its first mask; None if the engine refuses the schema."""
    row = Row(engine.vocabulary_size)
    start = time.process_time()
    try:
        compiled = engine.compile(schema)
    except Exception:  # engines raise different errors for refused schemas
        return None
    taken = time.process_time() - start
    is_ours = isinstance(compiled, TokenAutomaton)
    engine.first(Matcher(compiled, budget=BUDGET) if is_ours else engine.matcher(compiled), row)
    first = time.process_time() - start
    size = engine.num_bytes(compiled)
    ours = compiled if is_ours else None
    return Measured(
        taken * 1e3,
        first * 1e3,
        None if size is None else size / 1e6,
        ours and ours.num_states,
        ours and sum(caveat.is_unchecked for caveat in ours.caveats),
    )


def rows(makers: dict[str, Any], vocabulary: Any) -> Iterator[str]:
    """Yield the table, engine by engine."""
    yield head(
        "schema", "KB", "engine", "compile, ms", "first mask, ms", "MB", "states", "unchecked"
    )
    for name, maker in makers.items():
        engine: Engine = maker(vocabulary, 1)
        engine.vocabulary_size, engine.ends = vocabulary.size, set(vocabulary.eos_ids)
        for case, schema in CASES.items():
            found = call_forked(partial(measure, engine, schema), SECONDS)
            cells = [
                "–" if v is None else f"{v:,.3g}" if v < 100 else f"{v:,.0f}" for v in found or ()
            ]
            shown = cells or [f"refused, or over {SECONDS} s", "", "", "", ""]
            yield line(case, round(len(json.dumps(schema)) / 1e3), name, *shown)


def main() -> None:
    """Parse the command line and run."""
    arguments = with_ranks(__doc__).parse_args()
    warnings.simplefilter("ignore")
    installed = {name: maker for name, maker in COMPETITORS.items() if is_installed(name)}
    for text in rows({"ours": Ours, **installed}, read_ranks(arguments.ranks)):
        print(text, flush=True)


if __name__ == "__main__":
    main()
