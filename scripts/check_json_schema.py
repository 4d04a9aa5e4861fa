"""Check the schemas of the official JSON Schema test suite, or of a folder of public schemas.

    python -m scripts.check_json_schema ../shared/data/json_schema_test_suite
    python -m scripts.check_json_schema ../shared/data/public_schemas

**The official suite** is checked draft by draft (docs/json_schema.md describes how schemas are
interpreted). An instance is written as JSON, whole numbers without a fraction, and must be accepted
if and only if the suite calls it valid. Because an automaton accepts one order of members, an
instance counts as accepted if some order of its members is. `--update` writes the outcomes, one
line per schema, to the golden files of the tests.

**Public schemas** (`schema`, and `tests` with `data` and `valid`) are compiled without options. A
valid instance that is rejected is checked again in every order, with undeclared members allowed,
and with deeper nesting.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import gcd
from gcd._languages.text.formats import FORMATS

GOLDEN = Path(__file__).parents[1] / "tests" / "gcd" / "languages" / "json_schema" / "suite"
DRAFTS = ("4", "6", "7", "2019-09", "2020-12")
_FORMATS = "optional/format"
_DEEPER = (4, 5, 6)  # values of `max_depth` for deeply nested instances
_MAX_STEPS = 20_000  # in the search for an order of members


def golden(draft: str) -> Path:
    """Return the file with the outcomes of one draft."""
    return GOLDEN / f"draft{draft}.json"


def outcomes(suite: Path, draft: str, files: list[str] | None = None) -> dict[str, str]:
    """Return the outcome of each schema of a draft, by file and description.

    An outcome is "compiled"; "refused: " with the reason; "narrower: " with the valid instances
    that are rejected; or "wrong: " with all misjudged instances, some of them invalid and accepted.
    """
    found: dict[str, str] = {}
    for name in sorted(suite_files(suite, draft)) if files is None else files:
        for group in json.loads((suite / f"draft{draft}" / name).read_text("utf-8-sig")):
            key = f"{name}: {group['description']}"
            assert key not in found, key
            schema = group["schema"]
            says = isinstance(schema, dict) and "$schema" in schema
            options = {
                "draft": None if says else draft,
                "formats": "ignore" if name == "format.json" else "assert",
            }
            found[key] = _outcome(group, max_depth=3, **options)
            if found[key].startswith("narrower"):  # the depth limit may be the cause
                deeper = _outcome(group, max_depth=4, **options)
                found[key] = deeper if deeper == "compiled" else found[key]
    return found


def suite_files(suite: Path, draft: str) -> Iterator[str]:
    """Yield the files of a draft: its required part, and the supported formats."""
    folder = suite / f"draft{draft}"
    yield from (path.name for path in folder.glob("*.json"))
    for path in (folder / _FORMATS).glob("*.json"):
        if path.stem in FORMATS:
            yield f"{_FORMATS}/{path.name}"


def _outcome(group: dict[str, Any], **options: Any) -> str:
    language = None
    try:
        language = gcd.json_schema(
            group["schema"],
            additional_properties="open",
            unknown="ignore",
            unsupported="refuse",
            **options,
        )
    except gcd.EmptyLanguageError:
        pass
    except gcd.ConstraintError as error:
        return _refusal(error, place=True)
    wrong = [
        test
        for test in group["tests"]
        if (language is not None and accepts(language, test["data"])) != test["valid"]
    ]
    if not wrong:
        return "compiled"
    kind = "narrower" if all(test["valid"] for test in wrong) else "wrong"
    return f"{kind}: {'; '.join(test['description'] for test in wrong)}"


def _refusal(error: gcd.ConstraintError, *, place: bool) -> str:
    if isinstance(error, gcd.UnsupportedSchemaError):
        return f"refused: {error.keyword}" + (f" at {error.pointer or '/'}" if place else "")
    if isinstance(error, gcd.StateLimitError):
        return "refused: too many states"
    if isinstance(error, gcd.WorkLimitError):
        return "refused: too much work"
    return f"refused: {error}"


# -- acceptance of values -------------------------------------------------------------------------


def accepts(
    language: gcd.Automaton, value: Any, *, any_order: bool = True, whole: bool = True
) -> bool:
    """Return whether a language has a value, with its members in any order or as given.

    Args:
        whole: whether to write 1.0 as 1, which is the same number in all drafts except draft 4.
    """
    orders = _Orders(language, any_order)
    ends = orders.ends(language.initial, _normalize(value) if whole else value)
    return any(state >= 0 and bool(language.accepting[state]) for state in ends)


class _Orders:
    """Search for the states after a value's JSON texts, with members in any order or as given."""

    def __init__(self, language: gcd.Automaton, any_order: bool) -> None:
        self._run, self._any_order, self._steps = language.run, any_order, _MAX_STEPS

    def ends(self, state: int, value: Any) -> Iterator[int]:
        """Yield the state after each text of a value that the language allows after `state`."""
        self._steps -= 1
        if state < 0 or self._steps < 0:
            return
        if isinstance(value, dict):
            yield from self._members(self._run("{", state), value, frozenset(value), set())
        elif isinstance(value, list):
            yield from self._items(self._run("[", state), value, 0)
        else:
            yield self._run(json.dumps(value, ensure_ascii=False), state)

    def _items(self, state: int, value: list[Any], at: int) -> Iterator[int]:
        if state >= 0 and at == len(value):
            yield self._run("]", state)
        elif state >= 0:
            for after in self.ends(self._run("," if at else "", state), value[at]):
                yield from self._items(after, value, at + 1)

    def _members(
        self, state: int, value: dict[str, Any], left: frozenset[str], seen: set[Any]
    ) -> Iterator[int]:
        if state < 0 or (state, left) in seen:
            return
        seen.add((state, left))
        if not left:
            yield self._run("}", state)
        due = self._run("," if len(left) < len(value) else "", state)
        for name in [name for name in value if name in left][: None if self._any_order else 1]:
            key = json.dumps(name, ensure_ascii=False) + ":"
            at = self._run(key, due) if due >= 0 else -1
            for after in self.ends(at, value[name]) if at >= 0 else ():
                yield from self._members(after, value, left - {name}, seen)


def _normalize(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_normalize(item) for item in value]
    if isinstance(value, dict):
        return {name: _normalize(item) for name, item in value.items()}
    return value


# -- the official suite ---------------------------------------------------------------------------


class Shares(NamedTuple):
    """Numbers of schemas in one part of the suite, by outcome."""

    part: str
    schemas: int
    compiled: int
    refused: int
    narrower: int
    wrong: int


def shares(draft: str, found: dict[str, str]) -> list[Shares]:
    """Count the outcomes of a draft, for the required part and for the formats."""
    required = [outcome for key, outcome in found.items() if not key.startswith(_FORMATS)]
    formats = [outcome for key, outcome in found.items() if key.startswith(_FORMATS)]
    rows = []
    for part, chosen in ((f"draft {draft}", required), (f"draft {draft}, formats", formats)):
        kinds = Counter(outcome.partition(":")[0] for outcome in chosen)
        counts = (kinds[kind] for kind in ("compiled", "refused", "narrower", "wrong"))
        rows.append(Shares(part, len(chosen), *counts))
    return rows


def check_suite(suite: Path, *, update: bool) -> tuple[str, bool]:
    """Check all drafts; return a table, and whether a schema is compiled wrongly.

    Outcomes other than "compiled" are printed.
    """
    found = {draft: outcomes(suite, draft) for draft in DRAFTS}
    for draft, by_schema in found.items():
        for key, outcome in by_schema.items():
            if outcome != "compiled":
                print(f"draft{draft}/{key}\n    {outcome}")
        if update:
            GOLDEN.mkdir(exist_ok=True)
            text = json.dumps(by_schema, indent=1, ensure_ascii=False)
            golden(draft).write_text(text + "\n")
    wrong = any(o.startswith("wrong") for by_schema in found.values() for o in by_schema.values())
    rows = [Shares._fields, *(row for draft in found for row in shares(draft, found[draft]))]
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(Shares._fields) + "|", *lines[1:]]) + "\n", wrong


# -- public schemas -------------------------------------------------------------------------------


def public_instances(schema: Any, tests: list[dict[str, Any]]) -> Counter[str]:
    """Count the instances of a schema by result; raise `ConstraintError` if it doesn't compile."""
    language = _compile(schema)
    is_draft_4 = "draft-04" in str(schema.get("$schema"))
    found: Counter[str] = Counter()
    for test in tests:
        if not test["valid"]:
            wrong = accepts(language, test["data"], whole=not is_draft_4)
            found["wrongly accepted" if wrong else "right"] += 1
        elif accepts(language, test["data"], any_order=False):
            found["right"] += 1
        elif accepts(language, test["data"]):
            found["valid, refused for the order of members"] += 1
        else:
            found[f"valid, refused for {_why_refused(schema, test['data'])}"] += 1
    return found


def _why_refused(schema: Any, value: Any) -> str:
    """Return what a valid instance needs, in any order of its members."""
    for reason, depth in (("undeclared members", 3), *(("its depth", each) for each in _DEEPER)):
        with suppress(gcd.ConstraintError):
            if accepts(_compile(schema, additional_properties="open", max_depth=depth), value):
                return reason
    return "another reason"


def _compile(schema: Any, **options: Any) -> gcd.Automaton:
    """Compile a public schema."""
    return gcd.json_schema(schema, unknown="ignore", unsupported="refuse", **options)


def check_public(folder: Path) -> tuple[str, bool]:
    """Return tables, and whether an instance is wrongly accepted; print the failures."""
    outcomes, instances = Counter[str](), Counter[str]()
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text("utf-8-sig"))
        start, found, outcome = time.perf_counter(), Counter[str](), "compiled"
        try:
            found = public_instances(record["schema"], record["tests"])
        except gcd.ConstraintError as error:
            outcome = _refusal(error, place=False)
        outcomes[outcome] += 1
        instances += found
        if outcome != "compiled" or {"wrongly accepted", "valid, refused for another reason"} & {
            *found
        }:
            seconds = time.perf_counter() - start
            print(f"{path.stem} ({seconds:.1f} s)\n    {outcome} {dict(found)}", flush=True)
    lines = ["| schemas, instances of those compiled | |", "|---|---|"]
    for counts in (outcomes, instances):
        lines += [
            f"| {name} | {count} of {counts.total()} |" for name, count in counts.most_common()
        ]
    return "\n".join(lines) + "\n", bool(instances["wrongly accepted"])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="the test suite, or a folder of public schemas")
    parser.add_argument(
        "--update", action="store_true", help=f"update the golden files in {GOLDEN.name}/"
    )
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if (chosen.folder / f"draft{DRAFTS[0]}").is_dir():
        tables, wrong = check_suite(chosen.folder, update=chosen.update)
    elif any(chosen.folder.glob("*.json")):
        tables, wrong = check_public(chosen.folder)
    else:
        sys.exit(f"error: expected a test suite or public schemas in {chosen.folder}, got neither")
    print(tables)
    if wrong:
        sys.exit("error: some schemas are compiled wrongly")


if __name__ == "__main__":
    main()
