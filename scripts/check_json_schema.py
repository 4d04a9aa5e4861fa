"""What becomes of every schema of the official JSON Schema test suite.

    python -m scripts.check_json_schema ../shared/data/json_schema_test_suite

A schema is compiled with undeclared members let in, as the standard has it; each of its instances
is written as JSON, whole numbers without a fraction, and must be accepted if and only if the suite
calls it valid. The automaton admits one order of members, so an instance counts as accepted if
some order of its members is. `format.json` describes `format` as an annotation and is read so; the
files under `optional/format` read it as an assertion.

The outcomes are one line for each schema. `--update` writes them to the golden file that the tests
compare with, `--markdown` the table of shares.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gcd
from gcd.languages.text.formats import FORMATS

GOLDEN = Path(__file__).parents[1] / "tests" / "gcd" / "languages" / "json_schema" / "suite.json"
DRAFT = "draft2020-12"
_FORMATS = f"{DRAFT}/optional/format"
_MAX_ORDERS = 5_000


def outcomes(suite: Path, files: list[str] | None = None) -> dict[str, str]:
    """Outcome of each schema, by file and description.

    "compiled"; "refused: " and why; "narrower: " and the valid instances that are not admitted; or
    "wrong: " and the instances judged wrongly, invalid ones that are admitted among them.
    """
    found: dict[str, str] = {}
    for path in sorted(_files(suite) if files is None else (suite / name for name in files)):
        name = path.relative_to(suite).as_posix()
        for group in json.loads(path.read_text()):
            key = f"{name}: {group['description']}"
            assert key not in found, key
            formats = "ignore" if name == f"{DRAFT}/format.json" else "assert"
            found[key] = _outcome(group, formats, max_depth=3)
            if found[key].startswith("narrower"):  # recursion may have been cut short
                deeper = _outcome(group, formats, max_depth=4)
                found[key] = deeper if deeper == "compiled" else found[key]
    return found


def _files(suite: Path) -> Iterator[Path]:
    yield from (suite / DRAFT).glob("*.json")
    yield from (path for path in (suite / _FORMATS).glob("*.json") if path.stem in FORMATS)


def _outcome(group: dict[str, Any], formats: str, *, max_depth: int) -> str:
    language = None
    try:
        language = gcd.json_schema(
            group["schema"],
            additional_properties="open",
            formats=formats,
            max_depth=max_depth,
        )
    except gcd.EmptyLanguageError:
        pass
    except gcd.ConstraintError as error:
        if isinstance(error, gcd.UnsupportedSchemaError):
            return f"refused: {error.keyword} at {error.pointer or '/'}"
        return (
            "refused: too many states"
            if isinstance(error, gcd.StateLimitError)
            else f"refused: {error}"
        )
    wrong = [
        test
        for test in group["tests"]
        if (language is not None and _is_accepted(language, test["data"])) != test["valid"]
    ]
    if not wrong:
        return "compiled"
    kind = "narrower" if all(test["valid"] for test in wrong) else "wrong"
    return f"{kind}: {'; '.join(test['description'] for test in wrong)}"


def _is_accepted(language: gcd.Automaton, value: Any) -> bool:
    return any(
        language.accepts(json.dumps(ordered, separators=(",", ":"), ensure_ascii=False))
        for ordered in itertools.islice(_orders(_written(value)), _MAX_ORDERS)
    )


def _written(value: Any) -> Any:
    """The value with whole numbers as integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_written(item) for item in value]
    if isinstance(value, dict):
        return {name: _written(item) for name, item in value.items()}
    return value


def _orders(value: Any) -> Iterator[Any]:
    """The value with the members of its objects in every order."""
    if isinstance(value, list):
        yield from map(list, itertools.product(*map(_orders, value)))
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            for members in itertools.product(*(_orders(value[key]) for key in keys)):
                yield dict(zip(keys, members, strict=True))
    else:
        yield value


class Shares(NamedTuple):
    """Numbers of schemas in one part of the suite."""

    part: str
    schemas: int
    compiled: int
    refused: int
    narrower: int
    wrong: int


def shares(found: dict[str, str]) -> list[Shares]:
    """The outcomes counted, for the required part and for the formats."""
    required = [outcome for key, outcome in found.items() if not key.startswith(_FORMATS)]
    formats = [outcome for key, outcome in found.items() if key.startswith(_FORMATS)]
    rows = []
    for part, chosen in (("required part", required), ("formats", formats)):
        kinds = Counter(outcome.partition(":")[0] for outcome in chosen)
        counts = (kinds[kind] for kind in ("compiled", "refused", "narrower", "wrong"))
        rows.append(Shares(part, len(chosen), *counts))
    return rows


def markdown(found: dict[str, str]) -> str:
    """The shares, and what is refused, as tables."""
    lines = [
        "| part of the suite | schemas | compiled | refused | narrower | wrong |",
        "|---|---|---|---|---|---|",
    ]
    for row in shares(found):
        percent = [f"{count} ({count / max(row.schemas, 1):.1%})" for count in row[2:4]]
        cells = [row.part, row.schemas, *percent, row.narrower, row.wrong]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| refused because of | schemas |", "|---|---|"]
    reasons = Counter(
        outcome.removeprefix("refused: ").partition(" at ")[0]
        for outcome in found.values()
        if outcome.startswith("refused")
    )
    lines += [f"| `{reason}` | {count} |" for reason, count in reasons.most_common()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("suite", type=Path, help="folder that holds draft2020-12/")
    parser.add_argument("--update", action="store_true", help=f"write {GOLDEN.name}")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    chosen = parser.parse_args()
    if not (chosen.suite / DRAFT).is_dir():
        sys.exit(f"error: {chosen.suite} has no folder {DRAFT}; give the folder of the test suite")
    found = outcomes(chosen.suite)
    for key, outcome in found.items():
        if outcome != "compiled":
            print(f"{key}\n    {outcome}")
    print(markdown(found))
    if chosen.markdown:
        chosen.markdown.write_text(markdown(found))
    if chosen.update:
        GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    if any(outcome.startswith("wrong") for outcome in found.values()):
        sys.exit("error: some schemas are compiled wrongly")


if __name__ == "__main__":
    main()
