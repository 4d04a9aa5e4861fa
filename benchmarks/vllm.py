"""Valid and finished answers of vLLM with small budgets.

    P=.venv-vllm/bin/python; S=../shared/data/public_schemas
    $P -m benchmarks.vllm run ours --model DIR --schemas $S        # and the other sides: SIDES
    $P -m benchmarks.vllm table

`docs/vllm.md` describes schemas, budgets and which answers count. Each side is a separate engine;
finished work is stored in a file and not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import head, line, public_schemas, read_rows

SIDES = {  # vLLM's structured output, if any
    "ours": None,
    "xgrammar": {"backend": "xgrammar"},
    "xgrammar, no white space": {"backend": "xgrammar", "disable_any_whitespace": True},
    "llguidance, no white space": {"backend": "guidance", "disable_any_whitespace": True},
}
TIMES = (1.0, 1.25, 1.5, 2.0)
MORE = 16
LONGEST = 100  # tokens of a shortest answer
LONGEST_SCHEMA = 2000  # characters
AT_ONCE = 32


class Case(NamedTuple):
    """A schema, and the fewest tokens of its answers."""

    name: str
    schema: Any
    fewest: int

    def budget(self, times: float) -> int:
        return math.ceil(times * self.fewest) + MORE


def draw_schemas(folder: Path, model: str, count: int) -> Iterator[Case]:
    """Return a number of schemas of a folder, in a random order independent of the number."""
    from gcd_cli._sources import vocabulary
    from gcd_vllm._constraint_cache import ConstraintCache
    from gcd_vllm._requests import ConstraintRequest

    cache = ConstraintCache(vocabulary(model))
    for name, schema in public_schemas(folder, shuffled=True):
        if not count:
            return
        if len(json.dumps(schema)) > LONGEST_SCHEMA:
            continue
        try:
            automaton = cache.get(ConstraintRequest("json_schema", schema))
        except ValueError:
            continue
        fewest = automaton.fewest_tokens
        if fewest <= LONGEST:
            count -= 1
            yield Case(name, schema, fewest)


def run(options: argparse.Namespace) -> None:
    """Request an answer to every schema with every budget from one side."""
    from vllm import LLM, SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    done = {(row["side"], row["schema"], row["times"]) for row in read_rows(options.out)}
    cases = list(draw_schemas(options.schemas, options.model, options.count))
    left = [
        (case, times)
        for case in cases
        for times in TIMES
        if (options.side, case.name, times) not in done
    ]
    backend = SIDES[options.side]
    extra = {} if backend is None else {"structured_outputs_config": backend}
    llm = LLM(
        options.model, dtype="float32", max_model_len=2048, max_num_seqs=16, seed=0,
        enforce_eager=True, **extra,
    )  # fmt: skip

    def request_of(case: Case, times: float | None = None) -> tuple[list[dict[str, str]], Any]:
        """Return the prompt and the parameters of a request for an answer to a schema.

        Without `times`, the request is as short as possible, to see whether the schema is refused.
        """
        text = json.dumps(case.schema)
        content = f"Write a JSON document for this schema:\n{text}"
        how: dict[str, Any] = (
            {"extra_args": {"gcd": json.dumps({"json_schema": case.schema})}}
            if backend is None
            else {"structured_outputs": StructuredOutputsParams(json=case.schema)}
        )
        tokens = case.budget(times) if times else case.budget(1.0) if backend is None else 1
        limits = {"max_tokens": tokens, "temperature": 0.7, "seed": cases.index(case)}
        return [{"role": "user", "content": content}], SamplingParams(**limits, **how)

    def keep(case: Case, times: float, text: str, reason: str, tokens: int) -> None:
        row = {
            "side": options.side,
            "schema": case.name,
            "times": times,
            "reason": reason,
            "tokens": tokens,
            "budget": case.budget(times),
            "text": text,
            "valid": valid(case.schema, text),
        }
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")

    for case in {case.name: case for case, _ in left}.values():
        prompt, parameters = request_of(case)
        try:
            llm.chat([prompt], parameters, use_tqdm=False)
        except (ValueError, VLLMValidationError) as error:
            for each in [each for each in left if each[0] == case]:
                left.remove(each)
                keep(*each, str(error), "refused", 0)
    for start in range(0, len(left), AT_ONCE):
        part = left[start : start + AT_ONCE]
        prompts, given = zip(*(request_of(*each) for each in part), strict=True)
        found = llm.chat(list(prompts), list(given), use_tqdm=False)
        for each, answer in zip(part, found, strict=True):
            output = answer.outputs[0]
            keep(*each, output.text, output.finish_reason, len(output.token_ids))


def valid(schema: Any, text: str) -> bool:
    """Tell whether a text is JSON that satisfies a schema, by `jsonschema`."""
    import jsonschema

    try:
        kind = jsonschema.validators.validator_for(schema)
        return bool(kind(schema, format_checker=kind.FORMAT_CHECKER).is_valid(json.loads(text)))
    except (ValueError, RecursionError):
        return False


def table(options: argparse.Namespace) -> None:
    """Print a table of all sides, over the schemas that every side answered with every budget."""
    rows = read_rows(options.out)
    count = Counter(row["schema"] for row in rows)
    sides = [side for side in SIDES if any(row["side"] == side for row in rows)]
    whole = {name for name, number in count.items() if number == len(TIMES) * len(sides)}
    rows = [row for row in rows if row["schema"] in whole]
    print(f"{len(whole)} schemas\n")
    print(head("", *(f"{times:g} x fewest + {MORE}" for times in TIMES), "ends: stop, length"))
    for side in sides:
        mine = [row for row in rows if row["side"] == side]
        good = [
            sum(r["valid"] and r["reason"] == "stop" for r in mine if r["times"] == times)
            for times in TIMES
        ]
        ends = Counter(row["reason"] for row in mine)
        others = "".join(f", {ends[e]} {e}" for e in sorted(ends) if e not in ("stop", "length"))
        ended = f"{ends['stop']}, {ends['length']}{others}"
        print(line(side, *(f"{n} of {len(whole)}" for n in good), ended))


def main() -> None:
    """Parse the command line and run one of the two commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    for name, do in (("run", run), ("table", table)):
        command = commands.add_parser(name, help=do.__doc__)
        command.set_defaults(do=do)
        command.add_argument("--out", type=Path, default=Path("runs/vllm.jsonl"))
        if name == "run":
            command.add_argument("side", choices=list(SIDES))
            command.add_argument("--model", required=True, help="directory of a model")
            command.add_argument("--schemas", type=Path, required=True)
            command.add_argument("--count", type=int, default=50, help="schemas")
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
